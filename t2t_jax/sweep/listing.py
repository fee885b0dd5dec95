"""The list of the rows of a grid before it is trained, with what they are estimated to take."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from t2t_jax.ahead_of_time.report import StepReport, binary
from t2t_jax.config import Config, walk
from t2t_jax.config.cost import num_parameters
from t2t_jax.config.file import Grid, describe_difference
from t2t_jax.errors import UserError
from t2t_jax.run.report.page import duration
from t2t_jax.sweep.cell import Cell
from t2t_jax.sweep.estimate import Estimate, estimated, least_bytes, timings_here, timings_of
from t2t_jax.sweep.plan import foreseen
from t2t_jax.sweep.published_columns import published_columns
from t2t_jax.sweep.rules import PlannedGrid


def print_estimates(
    planned: PlannedGrid, workdir: Path | None, jobs: int | None, console: Console
) -> None:
    """Print the rows of a grid with their estimated times and memory, and the time of all of it.

    Args:
      planned: the grid; the time of a variant is that of all values that are tried for it, each
        until the step that halving leaves it.
      workdir: the directory of the grid, where some cells may have run; None if it has none yet.
      jobs: how many cells run at once on this machine; None for a cluster, where all of them do.
    """
    grid, wanted = planned.grid, foreseen(planned.for_reading)
    try:
        estimate, reason = _estimate(wanted, workdir, jobs, console), ""
    except UserError as error:
        estimate, reason = None, str(error)
    rows, variant_of = [*grid.variants], planned.rows
    # After the trials, as JAX takes most of a GPU's memory.
    memory = {row: _least_memory(grid.variants[row], jobs or 1) for row in rows}
    columns = {"memory": memory}
    if estimate:
        seconds = dict.fromkeys(rows, 0.0)
        for cell in wanted:
            seconds[variant_of[cell.variant]] += estimate.of_cells[cell.name] / planned.seeds
        columns["time"] = {row: duration(one) for row, one in seconds.items()}
    console.print(listing(grid, rows, planned.seeds, columns))
    console.print(
        "memory is the least that parameters, optimizer and activations take on each device; the "
        "compiler may double it, which --compile-only measures",
        soft_wrap=True,
    )
    if estimate is None:
        console.print(f"times are not estimated: {reason}", markup=False, soft_wrap=True)
        return
    count, whole = len(estimate.left), duration(estimate.seconds(jobs))
    text = f"time is that of one seed; {count} of {len(wanted)} cells are left: about {whole}"
    if count > 1:
        text += f" with {'all at once' if jobs is None else f'--jobs {jobs}'}"
        text += "" if jobs == 1 else f", {duration(sum(estimate.left))} of cells in all"
    console.print(f"{text} ({estimate.source})", highlight=False, markup=False, soft_wrap=True)


def _least_memory(config: Config, jobs: int) -> str:
    """Return the least memory of a config as text; "?" if its mesh is of more devices than here."""
    try:
        return binary(least_bytes(config, jobs))
    except UserError:
        return "?"


def _estimate(
    wanted: Sequence[Cell], workdir: Path | None, jobs: int | None, console: Console
) -> Estimate:
    """Estimate the time of cells from those that have run, or else from trials on this machine."""
    timings = timings_of(wanted) if workdir else []
    if timings:
        source = f"by {len(timings)} cell(s) of {workdir} that have run"
    elif jobs is None:
        raise UserError(
            "no cell has run on the cluster yet; once one has, --dry-run reads its times"
        )
    else:
        timings = timings_here(wanted, jobs, console)
        source = f"by {len(timings)} short trial(s) on this machine, as busy as it is now"
    return estimated(wanted, timings, source)


def compiled_rows(grid: Grid, rows: Sequence[str], topology: str, console: Console) -> bool:
    """Compile the step of each row, print what memory it takes, and return whether all rows fit.

    Args:
      topology: the devices, as `t2t-jax train --compile-only` takes them.

    Raises:
      UserError: there are no such devices, or a row does not fit their mesh.
    """
    from t2t_jax.ahead_of_time.compile import compile_ahead
    from t2t_jax.ahead_of_time.topologies import devices_of

    devices = devices_of(topology)
    programs = {row: _program(grid.variants[row]) for row in rows}
    compiled: dict[object, StepReport] = {}
    for row, program in programs.items():
        if program not in compiled:
            compiled[program] = compile_ahead(grid.variants[row], devices)
    reports = {row: compiled[program] for row, program in programs.items()}
    columns = {
        "memory": {row: binary(report.memory.total) for row, report in reports.items()},
        "fits": {
            row: {None: "?", True: "yes", False: "NO"}[one.fits] for row, one in reports.items()
        },
        "time": {row: _least_time(grid, row, report) for row, report in reports.items()},
    }
    console.print(listing(grid, rows, 1, columns))
    one = reports[rows[0]]
    has = "" if one.available_bytes is None else f", each with {binary(one.available_bytes)}"
    console.print(
        f"by the compiler for {one.devices}{has}; the time is a bound on the steps alone",
        highlight=False,
        soft_wrap=True,
    )
    return all(report.fits is not False for report in reports.values())


def _program(config: Config) -> tuple[tuple[str, object], ...]:
    """Return what decides on the kernels and the memory of a config's step.

    Rates, numbers of steps and seeds are constants in a program, of which only 0 may change more.
    """
    return tuple(
        (path, bool(value) if isinstance(value, float) or is_count else value)
        for path, _, value in walk(config)
        if (section := path.partition(".")[0]) in ("model", "data", "training", "parallel")
        for is_count in [section == "training" and type(value) is int]
    )


def _least_time(grid: Grid, row: str, report: StepReport) -> str:
    """Return the least time of a row's steps, as text; "" where no bound is known."""
    if report.roofline is None:
        return ""
    return duration(report.roofline.seconds * grid.variants[row].training.num_train_steps)


def listing(
    grid: Grid,
    chosen: Sequence[str],
    num_seeds: int,
    columns: Mapping[str, Mapping[str, str]],
) -> Table:
    """Return a table of the variants: their differences from the base, unless their names have
    these already, their numbers of parameters, and their published figures.

    Args:
      columns: further columns: the cells of each by the name of the variant.
    """
    differences = {
        name: describe_difference(grid.variants[grid.base], grid.variants[name]) for name in chosen
    }
    is_news = any({*text.split()} - {*name.split(",")} for name, text in differences.items())
    published = published_columns(grid.published, chosen)
    title = f"{len(chosen)} variants, {num_seeds} seed(s)"
    table = Table(box=None, title=title, title_justify="left")
    table.add_column("variant", overflow="fold")
    if is_news:
        table.add_column("differs in", overflow="fold")
    heads = [published.listed_as] if published else []
    for name in ("parameters", *heads, "steps", *columns):
        table.add_column(name, justify="right")
    for name in chosen:
        config = grid.variants[name]
        parameters = num_parameters(config.model, config.data.vocab_size)
        table.add_row(
            name,
            *([differences[name]] if is_news else []),
            f"{parameters:,}",
            *([published.cells(name).listed] if published else []),
            f"{config.training.num_train_steps:,}",
            *(column[name] for column in columns.values()),
        )
    return table
