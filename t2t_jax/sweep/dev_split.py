"""Check the dev sets of the rows of a grid before anything is trained."""

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from t2t_jax.config.file import Grid
from t2t_jax.errors import UserError, warn
from t2t_jax.sweep.cell import SPLIT

if TYPE_CHECKING:
    from t2t_jax.data.corpus import Corpus

_DEV_SET_FIELDS = (
    "data.corpus",
    "data.source_language",
    "data.target_language",
    "data.task",
    "data.documents",
    "data.fields",
    "data.dev_lines",
)


def check_dev_sets(grid: Grid) -> None:
    """Refuse rows without a dev set, and warn of rows with another than the base.

    A corpus that this machine cannot read is skipped, because its cells may train on another
    machine.
    """
    from t2t_jax.data.corpus import open_corpus

    rows: dict[Any, list[str]] = {}
    for name, config in grid.variants.items():
        rows.setdefault(tuple(config.value(path) for path in _DEV_SET_FIELDS), []).append(name)
    sentences: dict[str, object] = {}
    lacking = []
    for names in rows.values():
        with suppress(UserError):
            corpus = open_corpus(grid.variants[names[0]].data)
            if SPLIT not in corpus.splits:
                lacking.append(f"{names[0]}: {corpus.name} has no {SPLIT} split")
            elif len(rows) > 1:
                sentences |= dict.fromkeys(names, _sentences(corpus))
    if lacking:
        raise UserError(
            f"nothing was started: {lacking[0]} to compare rows on; add one, or set data.dev_lines"
        )
    if grid.base not in sentences:
        return
    if differing := [name for name in sentences if sentences[name] != sentences[grid.base]]:
        warn(
            f"{', '.join(differing)}: the {SPLIT} set differs from {grid.base}'s, so the table "
            f"will not compare the scores; to compare them, give all rows the same {SPLIT} set"
        )


def _sentences(corpus: "Corpus") -> object:
    """Return a value that is equal for corpora that are scored on the same sentences."""
    from t2t_jax.tasks import task_of

    is_whole = task_of(corpus.name, corpus.task).grid.whole_split
    return corpus.lines(SPLIT)[1] if is_whole else corpus.name
