"""Contrastive tests: is a right translation more probable than wrong ones that differ in a word?

Such a test shows what corpus scores hide (Sennrich 2017; Müller et al. 2018, "A Large-Scale Test
Set for the Evaluation of Context-Aware Pronoun Translation"). A model that uses the context of a
sentence is right more often with that context than without, and than with one of another sentence.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool

from t2t_jax.data.lines import read_lines
from t2t_jax.decoding.scoring import score
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError
from t2t_jax.system.records import Each, Schema, parse_object

_SCHEMA = Schema(
    {"source": str, "target": str, "wrong": Each(list, str)},
    {"context": Each(list, Each(list, str)), "kind": str},
)


class Contrast(NamedTuple):
    """A sentence with a right translation and wrong ones."""

    source: str
    target: str
    """The right translation."""
    wrong: tuple[str, ...]
    """The wrong translations."""
    context: tuple[tuple[str, str], ...] = ()
    """The sentences before it in its document, and their translations."""
    kind: str = "all"
    """What the test is of, such as a pronoun."""


class Contrasts(NamedTuple):
    """Whether the right translation of each item is the most probable one."""

    in_context: Bool[np.ndarray, " items"]
    """With the item's context."""
    alone: Bool[np.ndarray, " items"]
    """Without a context."""
    in_another: Bool[np.ndarray, " items"]
    """With the context of another item."""


def read_contrasts(path: Path) -> list[Contrast]:
    """Read a file with an item a line, as an object of JSON with the fields of `Contrast`.

    Raises:
      UserError: the file cannot be read, has no items, or a line is no item.
    """
    found = []
    for number, line in enumerate(read_lines(path), 1):
        try:
            record = parse_object(line, _SCHEMA)
            context = record.get("context", [])
            if any(len(pair) != 2 for pair in context):
                raise ValueError("its field 'context' has something else than pairs of sentences")
            if not record["wrong"] or record["target"] in record["wrong"]:
                raise ValueError("its field 'wrong' is empty, or has the right translation")
        except ValueError as error:
            raise UserError(f"{path} line {number} is no item of a test: {error}") from error
        pairs = tuple((source, target) for source, target in context)
        wrong, kind = tuple(record["wrong"]), record.get("kind", "all")
        found.append(Contrast(record["source"], record["target"], wrong, pairs, kind))
    if not found:
        raise UserError(f"{path} has no items; give one on each line")
    return found


def contrasts(translator: Translator, items: Sequence[Contrast]) -> Contrasts:
    """Return whether a model finds the right translation of each item the most probable one.

    Raises:
      UserError: the model does not translate, has diverged, or cannot read a line.
    """
    half = len(items) // 2
    others = [items[(number + half) % len(items)].context for number in range(len(items))]
    return Contrasts(
        _is_right(translator, items, [one.context for one in items]),
        _is_right(translator, items, [()] * len(items)),
        _is_right(translator, items, others),
    )


def _is_right(
    translator: Translator,
    items: Sequence[Contrast],
    contexts: Sequence[tuple[tuple[str, str], ...]],
) -> Bool[np.ndarray, " items"]:
    sources: list[str] = []
    targets: list[str] = []
    last: list[list[int]] = []  # the lines with the candidates of each item
    for one, context in zip(items, contexts, strict=True):
        last.append([])
        for candidate in (one.target, *one.wrong):
            pairs = [*context, (one.source, candidate), ("", "")]
            sources += [source for source, _ in pairs]
            targets += [target for _, target in pairs]
            last[-1].append(len(sources) - 2)
    found = score(translator, sources, targets)
    right = [
        found[lines[0]].log_prob > max(found[line].log_prob for line in lines[1:]) for lines in last
    ]
    return np.array(right, bool)


def exact_p(first: Bool[np.ndarray, " n"], second: Bool[np.ndarray, " n"]) -> float:
    """Return the probability of so unequal numbers of items that only one of two ways gets right.

    That is McNemar's exact test of two sides; 1 if each item is right either way or neither.
    """
    only = int(np.sum(first & ~second)), int(np.sum(second & ~first))
    tail = sum(math.comb(sum(only), k) for k in range(min(only) + 1))
    return min(1.0, 2 * tail / 2 ** sum(only))
