"""The lines that servers are asked to translate."""

from itertools import chain, cycle, islice
from pathlib import Path

from t2t_jax.config import DataConfig
from t2t_jax.data.corpus import open_corpus
from t2t_jax.errors import UserError


def lines_of(path: Path | None, number: int) -> list[str]:
    """Return `number` non-blank lines of a file; read a shorter file again from its start.

    Args:
      path: the file; None is dev and test of the bundled corpus, in English.
      number: the number of lines.

    Raises:
      UserError: there are no lines.
    """
    if path is None:
        corpus = open_corpus(DataConfig())
        found = [*chain.from_iterable(corpus.lines(split)[0] for split in ("dev", "test"))]
    else:
        found = path.read_text(encoding="utf-8").splitlines()
    kept = [line.strip() for line in found if line.strip()]
    if not kept:
        raise UserError(f"{path} has no lines to translate")
    return [*islice(cycle(kept), number)]
