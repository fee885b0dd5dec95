"""Find the rows of a grid with another dev set before anything is trained."""

from contextlib import suppress
from typing import Any

from t2t_jax.config import Config
from t2t_jax.config.file import Grid
from t2t_jax.errors import UserError, warn
from t2t_jax.sweep.cell import SPLIT

_OF_DEV_SET = (
    *("data.corpus", "data.source_language", "data.target_language"),
    *("data.task", "data.documents", "data.fields"),
)


def warn_of_other_dev_sets(grid: Grid) -> None:
    """Warn of rows that will be scored on other sentences than the base, by name.

    Nothing is read if all rows have the same data. A corpus that cannot be read here is left to its
    cells, which may train on another machine.
    """
    rows: dict[Any, list[str]] = {}
    for name, config in grid.variants.items():
        rows.setdefault(tuple(config.value(path) for path in _OF_DEV_SET), []).append(name)
    if len(rows) == 1:
        return
    found: dict[str, object] = {}
    for names in rows.values():
        with suppress(UserError):
            found |= dict.fromkeys(names, _sentences(grid.variants[names[0]]))
    others = [name for name, one in found.items() if one != found.get(grid.base, one)]
    if others:
        warn(
            f"the {SPLIT} set of {', '.join(others)} is not that of {grid.base}, so the table will "
            "not compare their scores; to compare them, give all rows the same one"
        )


def _sentences(config: Config) -> object:
    """Return a value that is equal for configs that are scored on the same sentences."""
    from t2t_jax.data.corpus import open_corpus
    from t2t_jax.tasks import task_of

    corpus = open_corpus(config.data)
    whole = task_of(corpus.name, corpus.task).grid.whole_split
    return corpus.lines(SPLIT)[1] if whole else corpus.name
