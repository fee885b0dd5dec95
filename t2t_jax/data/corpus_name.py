"""Names of corpora in `data.corpus` of a config: one corpus, or a mixture of several.

NAME      SCHEME:PLACE              text:DIR, bundled:, trees:DIR+DIR
MIXTURE   NAME*WEIGHT+NAME*WEIGHT   text:A*3+text:B, bundled:*2+text:DIR

A `+` begins another corpus only before a scheme and a colon, and the default weight is 1. The text
after the last `*` of a place is a weight unless it has a `/`: write a directory whose name has a
`*` with a `/` at its end.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from t2t_jax.config.tasks import TASKS
from t2t_jax.errors import UserError, quote
from t2t_jax.plugins import CorpusRow, rows

PUBLIC = "wmt14-en-de", "wmt14-en-fr", "wmt16-en-ro", "multi30k-en-de", "iwslt14-de-en"
"""The names of the public corpora."""
_OF_TASKS = (scheme for row in TASKS.values() for scheme in row.schemes or ())
_OF_CORE = ("bundled", "text", *_OF_TASKS)
_LISTING = "t2t_jax.extras.shards.listing"
# Known without the extras too, so that an error can name them.
_OF_EXTRAS = {
    "shards": CorpusRow(f"{_LISTING}:pair_splits", "PATTERN", f"{_LISTING}:document_splits"),
    "tfds": CorpusRow("t2t_jax.extras.corpora.tfds:pair_splits", "NAME/CONFIG"),
    **dict.fromkeys(PUBLIC, CorpusRow("t2t_jax.extras.corpora.prepare:pair_splits")),
}
_WITH_WEIGHT = re.compile(r"(.*)\*([^/*]*)", re.DOTALL)
_WEIGHT = re.compile(r"[1-9][0-9]{0,3}")
_SAME_IN_TFDS = {
    "tfds:wmt14_translate/de-en": "wmt14-en-de",
    "tfds:wmt14_translate/fr-en": "wmt14-en-fr",
}


@cache
def added_schemes() -> Mapping[str, CorpusRow]:
    """Return the schemes of corpora that extras and plugins of other packages provide."""
    return _OF_EXTRAS | rows("corpora", (*_OF_CORE, *_OF_EXTRAS))


@cache
def _next_corpus() -> re.Pattern[str]:
    schemes = "|".join(map(re.escape, (*_OF_CORE, *added_schemes())))
    return re.compile(rf"\+(?=(?:{schemes}):)")


class Component(NamedTuple):
    """One corpus of a mixture, with its weight."""

    name: str
    """The name of the corpus, without its weight."""
    weight: int
    """The number of times that an epoch reads the corpus's train split."""

    def __str__(self) -> str:
        """Return the corpus and its weight in the form of a mixture's name."""
        return self.name if self.weight == 1 else f"{self.name}*{self.weight}"


def components_of(name: str) -> list[Component]:
    """Return the corpora of a name with their weights: one corpus, unless it is a mixture."""
    found = []
    for part in _next_corpus().split(name):
        match = _WITH_WEIGHT.fullmatch(part)
        place, weight = match.groups() if match else (part, "1")
        if part.startswith("shards:") and not _WEIGHT.fullmatch(weight):
            place, weight = part, "1"  # the * is a wildcard
        if not _WEIGHT.fullmatch(weight):
            raise UserError(
                f"the weight {quote(weight)} of corpus {part} is not a whole number from 1 to "
                "9999; write text:A*3+text:B to read A three times an epoch, or end a directory "
                "whose own name has a * with a /"
            )
        found.append(Component(place, int(weight)))
    return found


def public_name(name: str) -> str:
    """Return the common name of a public corpus, wherever it is stored; other names stay.

    The common name is one such as wmt14-en-de, for a corpus from TensorFlow Datasets too. A mixture
    has the names of its corpora, with their weights.
    """
    found = []
    for place, weight in components_of(name):
        scheme = place.partition(":")[0]
        known = scheme if scheme in PUBLIC else _SAME_IN_TFDS.get(place, place)
        found.append(str(Component(known, weight)))
    return "+".join(found)
