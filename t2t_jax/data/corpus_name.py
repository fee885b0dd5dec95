"""Names of corpora in `data.corpus` of a config: one corpus, or a mixture of several.

NAME      SCHEME:PLACE              text:DIR, bundled:, trees:DIR+DIR
MIXTURE   NAME*WEIGHT+NAME*WEIGHT   text:A*3+text:B, bundled:*2+text:DIR

A `+` begins another corpus only before a scheme and a colon, and the default weight is 1. The text
after the last `*` of a place is a weight unless it has a `/`: write a directory whose name has a
`*` with a `/` at its end.
"""

import re
from typing import NamedTuple

from t2t_jax.config.tasks import TASKS
from t2t_jax.data.download.catalogue import CORPORA
from t2t_jax.errors import UserError, quote

_OF_TASKS = (scheme for row in TASKS.values() for scheme in row.schemes or ())
SCHEMES: tuple[str, ...] = ("bundled", "text", "shards", "tfds", *_OF_TASKS, *CORPORA)
"""The schemes of corpora: the words that can stand before the colon of a name."""

_NEXT_CORPUS = re.compile(rf"\+(?=(?:{'|'.join(map(re.escape, SCHEMES))}):)")
_WITH_WEIGHT = re.compile(r"(.*)\*([^/*]*)", re.DOTALL)
_WEIGHT = re.compile(r"[1-9][0-9]{0,3}")
_SAME_IN_TFDS = {
    "tfds:wmt14_translate/de-en": "wmt14-en-de",
    "tfds:wmt14_translate/fr-en": "wmt14-en-fr",
}


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
    for part in _NEXT_CORPUS.split(name):
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
        known = scheme if scheme in CORPORA else _SAME_IN_TFDS.get(place, place)
        found.append(str(Component(known, weight)))
    return "+".join(found)
