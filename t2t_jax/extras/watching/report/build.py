"""The report on a run, made from the files of its directory."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from t2t_jax.config import Config
from t2t_jax.extras.watching.report.cost import cost_section, goodput_sections
from t2t_jax.extras.watching.report.page import UNKNOWN, Row, RunReport, Section, curves_section
from t2t_jax.extras.watching.report.scores import last_evaluation, scored_test_set, scores_section
from t2t_jax.extras.watching.report.settings import published_settings, settings_section
from t2t_jax.run.history import History
from t2t_jax.run.job import read_goodput
from t2t_jax.run.profile import read_profiles
from t2t_jax.run.provenance import COMPUTING, changes, read_provenance
from t2t_jax.system.records import Record
from t2t_jax.tasks import task_of
from t2t_jax.workdir import read_config, read_log, read_scores


def beside_the_paper(config: Config, scores: Sequence[Record]) -> list[str]:
    """Return the paper's results for the experiment that a run repeats, and its deviations.

    Returns:
      Lines of text; none if no score is on a test set of the paper.
    """
    task = task_of(config.data.corpus, config.data.task)
    experiment = task.experiment(config)
    if not any(scored_test_set(score) in experiment.comparable for score in scores):
        return []
    published = published_settings(experiment, config, scores)
    settings = settings_section(task, experiment, config, published, scores)
    return [*experiment.figures, *settings.notes]


def build_report(
    workdir: Path,
    sustained_tflops: float | None = None,
    price: float | None = None,
    watts: float | None = None,
) -> RunReport:
    """Build the report on a run, which may be in training or at step 0.

    Args:
      sustained_tflops: TFLOP/s that a device of the run sustains, for an estimate of the training
        cost by the paper's method (section 6.1); None omits it.
      price: price of a device hour; None omits the costs.
      watts: power of a device; None omits the energy.
    """
    config, log = read_config(workdir), read_log(workdir)
    scores, time_spent = read_scores(workdir), read_goodput(workdir)
    task = task_of(config.data.corpus, config.data.task)
    experiment = task.experiment(config)
    published = published_settings(experiment, config, scores)
    sections = [
        settings_section(task, experiment, config, published, scores),
        cost_section(experiment, config, published, log, sustained_tflops),
        *(goodput_sections(time_spent, price, watts) if time_spent else []),
        curves_section(log),
        software_section(read_provenance(workdir)),
        *health_sections(config, log, read_profiles(workdir)),
        scores_section(task, experiment, [*last_evaluation(config, log), *scores]),
    ]
    return RunReport(f"Report on {workdir}", sections)


def health_sections(
    config: Config, log: Sequence[Record], profiles: Sequence[Path]
) -> list[Section]:
    """Return the section with a run's warnings, its early end and its profiles; [] without any."""
    history = History.of(log)
    rows: list[Row] = [(f"{one['step']:,}", one.get("text", "")) for one in history.warnings]
    end = history.end
    is_early = end is not None and end["step"] < config.training.num_train_steps
    notes = [end.get("text", "")] if end is not None and is_early else []
    notes += [f"A profile, for xprof and Perfetto: {place}" for place in profiles]
    header = ("step", "warning") if rows else ()
    return [Section("What the training said", notes, header, rows)] if rows or notes else []


def software_section(software: Sequence[Record]) -> Section:
    """Return the section with the code and the packages that trained a run."""
    if not software:
        return Section("Software", ["The software of the training is not recorded."])
    notes = [
        f"From step {now['first_step'] + 1:,} on, other software continued the training: "
        f"{', '.join(changes(before, now))}."
        for before, now in pairwise(software)
    ]
    rows = [_row(one) for one in software]
    return Section("Software", notes, ("from step", "t2t-jax", "commit", "code", *COMPUTING), rows)


def _row(software: Record) -> Row:
    numbers, commit = software["versions"], software.get("commit", "")[:12] or UNKNOWN
    return (
        f"{software['first_step'] + 1:,}",
        numbers.get("t2t-jax", UNKNOWN),
        f"{commit} (modified)" if software.get("dirty") else commit,
        software["code"],
        *(numbers.get(name, UNKNOWN) for name in COMPUTING),
    )
