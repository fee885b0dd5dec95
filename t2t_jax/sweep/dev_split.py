"""Find the rows of a grid with another dev set before anything is trained."""

from contextlib import suppress
from typing import Any

from t2t_jax.config import Config
from t2t_jax.config.file import Grid
from t2t_jax.errors import UserError, warn
from t2t_jax.sweep.cell import SPLIT

_DEV_SET_FIELDS = (
    "data.corpus",
    "data.source_language",
    "data.target_language",
    "data.task",
    "data.documents",
    "data.fields",
    "data.dev_lines",
)


def warn_of_other_dev_sets(grid: Grid) -> None:
    """Warn of rows that will be scored on other sentences than the base.

    If all rows have the same data, no corpus is read. A corpus that this machine cannot read is
    skipped, because its cells may train on another machine.
    """
    rows: dict[Any, list[str]] = {}
    for name, config in grid.variants.items():
        rows.setdefault(tuple(config.value(path) for path in _DEV_SET_FIELDS), []).append(name)
    if len(rows) == 1:
        return
    sentences: dict[str, object] = {}
    for names in rows.values():
        with suppress(UserError):
            sentences |= dict.fromkeys(names, _sentences(grid.variants[names[0]]))
    if grid.base not in sentences:
        return
    if differing := [name for name in sentences if sentences[name] != sentences[grid.base]]:
        warn(
            f"{', '.join(differing)}: the {SPLIT} set differs from {grid.base}'s, so the table "
            f"will not compare the scores; to compare them, give all rows the same {SPLIT} set"
        )


def _sentences(config: Config) -> object:
    """Return a value that is equal for configs that are scored on the same sentences."""
    from t2t_jax.data.corpus import open_corpus
    from t2t_jax.tasks import task_of

    corpus = open_corpus(config.data)
    is_whole = task_of(corpus.name, corpus.task).grid.whole_split
    return corpus.lines(SPLIT)[1] if is_whole else corpus.name
