"""Names of corpora, as `data.corpus` of a config has them: one corpus, or several that are mixed.

NAME      SCHEME:PLACE              text:DIR, bundled:, trees:DIR+DIR
MIXTURE   NAME*WEIGHT+NAME*WEIGHT   text:A*3+text:B, bundled:*2+text:DIR

A `+` begins another corpus only where a scheme and a colon follow, and a weight that is left out
is 1. What follows the last `*` of a place is a weight unless it holds a `/`: a directory whose own
name has a `*` is written with a `/` at its end.
"""

import re
from typing import NamedTuple

from t2t_jax.config.tasks import TASKS
from t2t_jax.data.download.catalogue import CORPORA
from t2t_jax.errors import UserError

_OF_TASKS = (scheme for row in TASKS.values() for scheme in row.schemes or ())
SCHEMES: tuple[str, ...] = ("bundled", "text", "tfds", *_OF_TASKS, *CORPORA)
"""What a corpus can be kept as: the part of its name before the colon."""

_NEXT_CORPUS = re.compile(rf"\+(?=(?:{'|'.join(map(re.escape, SCHEMES))}):)")
_WITH_WEIGHT = re.compile(r"(.*)\*([^/*]*)", re.DOTALL)
_WEIGHT = re.compile(r"[1-9][0-9]{0,3}")
_SAME_IN_TFDS = {
    "tfds:wmt14_translate/de-en": "wmt14-en-de",
    "tfds:wmt14_translate/fr-en": "wmt14-en-fr",
}


class Component(NamedTuple):
    """One corpus of a mixture."""

    name: str
    """The corpus, without its weight."""
    weight: int
    """How often an epoch reads its train split."""

    def __str__(self) -> str:
        """The corpus and its weight, as in a mixture's name."""
        return self.name if self.weight == 1 else f"{self.name}*{self.weight}"


def components_of(name: str) -> list[Component]:
    """The corpora that a name has, with their weights: one, unless it is a mixture.

    Args:
      name: the corpus as a config names it.

    Raises:
      UserError: a weight is not a whole number from 1 to 9999.
    """
    return [_component(part) for part in _NEXT_CORPUS.split(name)]


def _component(text: str) -> Component:
    match = _WITH_WEIGHT.fullmatch(text)
    if match is None:
        return Component(text, 1)
    name, weight = match.groups()
    if not _WEIGHT.fullmatch(weight):
        raise UserError(
            f"the weight {weight!r} of corpus {text} is not a whole number from 1 to 9999; write "
            "text:A*3+text:B to read A three times an epoch, or end a directory whose own name has "
            "a * with a /"
        )
    return Component(name, int(weight))


def scheme_of(name: str) -> str:
    """What one corpus is kept as: the part of its name before the colon, such as `text`."""
    return name.partition(":")[0]


def public_name(name: str) -> str:
    """What a corpus is known as: one that anybody can get has the same name wherever it is kept.

    Args:
      name: the corpus, or the mixture, as a config names it.

    Returns:
      A name such as wmt14-en-de for a public corpus, from TensorFlow Datasets too; for any other
      corpus, `name` itself. A mixture has the names of its corpora, with their weights.
    """
    known = (Component(_public_name(name), weight) for name, weight in components_of(name))
    return "+".join(map(str, known))


def _public_name(name: str) -> str:
    scheme = scheme_of(name)
    return scheme if scheme in CORPORA else _SAME_IN_TFDS.get(name, name)
