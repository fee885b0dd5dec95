"""Make a contrastive test of terms, for `t2t-jax contrast`, of text with documents.

    python benchmarks/contrastive_terms.py corpora/help terms.jsonl

DIR has `train.en train.de train.doc` and the same for dev and test. A word of the source that the
training text translates by either of two words is a term, where a document keeps to one of them. An
item is a line of dev or test with such a term, in a document whose line before, or one of the few
before (`--context`), has the term too, translated alike; the wrong translation has the other word
instead. So only the lines before say which word it is.
"""

import argparse
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from t2t_jax.system.program import run

_WORD = re.compile(r"\w+")
_LEAST_LINES = 20


class _Line(NamedTuple):
    source: str
    target: str
    words: frozenset[str]
    target_words: frozenset[str]


def documents(folder: Path, split: str) -> Iterator[list[_Line]]:
    """Yield the documents of a split."""
    files = [
        (folder / f"{split}.{end}").read_text(encoding="utf-8").split("\n")[:-1]
        for end in ("en", "de", "doc")
    ]
    for _, lines in groupby(zip(*files, strict=True), key=lambda one: one[2]):
        yield [
            _Line(a, b, frozenset(_WORD.findall(a.lower())), frozenset(_WORD.findall(b)))
            for a, b, _ in lines
        ]


def rivals(folder: Path) -> dict[str, tuple[str, str]]:
    """Return the terms of the training text, each with its two most usual translations.

    These are two long words that stand in most lines with the term, rarely in others, and hardly
    ever together.
    """
    lines = [line for document in documents(folder, "train") for line in document]
    sources = Counter(word for line in lines for word in line.words if len(word) > 3)
    targets = Counter(word for line in lines for word in line.target_words)
    together: dict[str, Counter[str]] = defaultdict(Counter)
    places: dict[tuple[str, str], set[int]] = defaultdict(set)
    usual = {word for word, count in sources.items() if count >= 2 * _LEAST_LINES}
    for number, line in enumerate(lines):
        for word in line.words & usual:
            for other in line.target_words:
                if len(other) > 4 and other[0].isupper():
                    together[word][other] += 1
                    places[word, other].add(number)
    found = {}
    for word, counts in together.items():
        good = [
            other
            for other, count in counts.most_common(12)
            if count >= _LEAST_LINES and count > 0.5 * targets[other]
        ]
        pairs = [
            (one, other)
            for n, one in enumerate(good)
            for other in good[n + 1 :]
            if one[:4] != other[:4]
            and len(places[word, one] & places[word, other]) < 0.05 * counts[other]
        ]
        if pairs:
            found[word] = pairs[0]
    return found


def items(folder: Path, context: int) -> Iterator[dict[str, object]]:
    """Yield the items of dev and test."""
    terms = rivals(folder)
    for document in (one for split in ("dev", "test") for one in documents(folder, split)):
        for place, line in enumerate(document):
            before = document[max(0, place - context) : place]
            for word in line.words & terms.keys():
                for right, wrong in (terms[word], terms[word][::-1]):
                    agree = any(word in one.words and right in one.target_words for one in before)
                    differ = any(wrong in one.target_words for one in [*before, line])
                    if right in line.target_words and agree and not differ:
                        other = re.sub(rf"\b{right}\b", wrong, line.target)
                        yield {
                            "source": line.source,
                            "target": line.target,
                            "wrong": [other],
                            "context": [(one.source, one.target) for one in before],
                            "kind": word,
                        }


def main(arguments: Sequence[str]) -> int:
    """Write the items, and return the exit code."""
    flags = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    flags.add_argument("folder", type=Path)
    flags.add_argument("output", type=Path)
    flags.add_argument("--context", type=int, default=1)
    asked = flags.parse_args(arguments)
    found = [*items(asked.folder, asked.context)]
    lines = (f"{json.dumps(one, ensure_ascii=False)}\n" for one in found)
    asked.output.write_text("".join(lines), encoding="utf-8")
    kinds = Counter(one["kind"] for one in found)
    print(f"{len(found):,} items of {len(kinds)} terms: {kinds.most_common(20)}")
    return 0


if __name__ == "__main__":
    run(main)
