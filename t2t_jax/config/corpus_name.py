"""Names of corpora and mixtures in the field `data.corpus` of a config.

NAME      SCHEME:PATH               text:DIR, bundled:, trees:DIR+DIR
OWN       python:                   the data of the program that trains or evaluates
MIXTURE   NAME*WEIGHT+NAME*WEIGHT   text:A*3+text:B, bundled:*2+text:DIR

A `+` begins another corpus only before a scheme and a colon. The default weight is 1. Text after
the last `*` is a weight unless it has a `/`: end a directory whose name has a `*` with a `/`.
"""

import re
from collections.abc import Mapping
from functools import cache
from itertools import chain
from typing import NamedTuple

from t2t_jax.config.checks import is_stored_config
from t2t_jax.config.tasks import TASKS, TaskFacts
from t2t_jax.errors import UserError, quote
from t2t_jax.plugins import CorpusRow, rows

OWN = "python:"
"""The name of a corpus that a Python program gives as objects: see `data.own`."""
BUNDLED = "bundled:"
PUBLIC = "wmt14-en-de", "wmt14-en-fr", "wmt16-en-ro", "multi30k-en-de", "iwslt14-de-en"
"""The names of the public corpora."""
_TASK_SCHEMES = (scheme for row in TASKS.values() for scheme in row.schemes or ())
_CORE_SCHEMES = ("bundled", "text", "python", *_TASK_SCHEMES)
_LISTING = "t2t_jax.extras.shards.listing"
# Known without the extras too, so that an error can name them.
_EXTRA_SCHEMES = {
    "shards": CorpusRow(f"{_LISTING}:pair_splits", "PATTERN", f"{_LISTING}:document_splits"),
    "tfds": CorpusRow("t2t_jax.extras.corpora.tfds:pair_splits", "NAME/CONFIG"),
    **dict.fromkeys(PUBLIC, CorpusRow("t2t_jax.extras.corpora.prepare:pair_splits")),
}
_READERS = "t2t_jax.data.corpus:"
_WITH_WEIGHT = re.compile(r"(.*)\*([^/*]*)", re.DOTALL)
_WEIGHT = re.compile(r"[1-9][0-9]{0,3}")
_TFDS_NAMES = {
    "tfds:wmt14_translate/de-en": "wmt14-en-de",
    "tfds:wmt14_translate/fr-en": "wmt14-en-fr",
}


@cache
def added_schemes() -> Mapping[str, CorpusRow]:
    """Return the corpus schemes, such as `tfds`, that extras and plugins add."""
    return _EXTRA_SCHEMES | rows("corpora", (*_CORE_SCHEMES, *_EXTRA_SCHEMES))


@cache
def _next_corpus() -> re.Pattern[str]:
    schemes = "|".join(map(re.escape, (*_CORE_SCHEMES, *added_schemes())))
    return re.compile(rf"\+(?=(?:{schemes}):)")


class Component(NamedTuple):
    """A corpus of a mixture, with its weight."""

    name: str
    """The name of the corpus, without its weight."""
    weight: int
    """The number of times that an epoch reads the corpus's train split."""

    def __str__(self) -> str:
        """Format the corpus and its weight as in the name of a mixture."""
        return self.name if self.weight == 1 else f"{self.name}*{self.weight}"


def components_of(name: str) -> list[Component]:
    """Parse the name of a corpus or mixture, such as text:A*3+text:B, into corpora and weights."""
    components = []
    for part in _next_corpus().split(name):
        match = _WITH_WEIGHT.fullmatch(part)
        corpus, weight = match.groups() if match else (part, "1")
        if part.startswith("shards:") and not _WEIGHT.fullmatch(weight):
            corpus, weight = part, "1"  # the * is a wildcard
        if not _WEIGHT.fullmatch(weight):
            raise UserError(
                f"the weight {quote(weight)} of corpus {part} is not a whole number from 1 to "
                "9999; write text:A*3+text:B to read A three times an epoch, or end a directory "
                "whose own name has a * with a /"
            )
        components.append(Component(corpus, int(weight)))
    return components


def check_corpus(name: str, facts: TaskFacts) -> None:
    """Refuse a corpus or mixture of an unknown form, unless a stored config names it.

    Tasks of extras and plugins read further schemes, such as npz.
    """
    is_reader = isinstance(facts.corpora, str) and facts.corpora.startswith(_READERS)
    if name == OWN or is_stored_config() or not is_reader:
        return
    schemes = {"text", *added_schemes(), *chain(*(row.schemes or () for row in TASKS.values()))}
    for corpus, _ in components_of(name):
        scheme, _, path = corpus.partition(":")
        if corpus != BUNDLED and not (path and scheme in schemes):
            raise unknown_corpus(corpus)


def unknown_corpus(name: str) -> UserError:
    """Return the error for a corpus of an unknown form, which lists the forms."""
    added = ", ".join(f"{scheme}:{row.form}" for scheme, row in added_schemes().items())
    return UserError(
        f"corpus={quote(name)} is not bundled:, text:DIR, text:FILE.tsv, text:FILE.jsonl, "
        f"trees:DIR, {OWN} (data of a program), {added}, nor a mixture such as text:A*3+text:B"
    )


def public_name(name: str) -> str:
    """Return the common name of a public corpus, such as wmt14-en-de, without its path.

    Other names stay unchanged. A mixture has the common names of its corpora, with their weights.
    """
    components = []
    for corpus, weight in components_of(name):
        scheme = corpus.partition(":")[0]
        common_name = scheme if scheme in PUBLIC else _TFDS_NAMES.get(corpus, corpus)
        components.append(str(Component(common_name, weight)))
    return "+".join(components)
