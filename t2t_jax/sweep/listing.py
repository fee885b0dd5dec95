"""The list of the rows of a grid, before training."""

import textwrap
from collections.abc import Sequence

from rich.table import Table

from t2t_jax.config.cost import num_parameters
from t2t_jax.config.file import Grid, describe_difference
from t2t_jax.sweep.paper_columns import HEADS, paper_cells

WIDTH_OF_FIGURES = 62
"""The columns that the figures of a grid take in a console of 80 columns."""
_NARROWEST = 12  # characters of a line of a name


def listing(grid: Grid, chosen: Sequence[str], num_seeds: int, width: int) -> Table:
    """Return a table of the chosen rows of a grid.

    It has the differences of each row from the base, the number of parameters and of steps, and the
    figures of Table 3, if the grid has any.

    Args:
      width: the columns of the console.
    """
    title = f"{len(chosen)} variants, {num_seeds} seed(s)"
    table = Table(box=None, title=title, title_justify="left")
    table.add_column("variant", no_wrap=True)
    table.add_column("differs in", overflow="fold")
    for name in ("parameters", "steps", *(HEADS if grid.published else ())):
        table.add_column(name, justify="right")
    for name in chosen:
        config = grid.variants[name]
        table.add_row(
            in_lines(name, width // 3),
            describe_difference(grid.variants[grid.base], config),
            f"{num_parameters(config.model, config.data.vocab_size):,}",
            f"{config.training.num_train_steps:,}",
            *(paper_cells(grid.published.get(name)) if grid.published else ()),
        )
    return table


def in_lines(name: str, width: int) -> str:
    """Break a name into lines of `width` characters, after `,` or `=`."""
    width = max(width, _NARROWEST)
    if len(name) <= width:
        return name
    words = name.replace(",", ", ").replace("=", "= ")
    lines = textwrap.wrap(words, width, break_on_hyphens=False)
    return "\n".join(line.replace("= ", "=").replace(", ", ",") for line in lines)
