"""Measure how many terms of a glossary a model's translations use, and what that costs.

    python benchmarks/terms.py runs/help --train corpora/help/train --test corpora/help/test
    python benchmarks/terms.py runs/help --train ... --test ... --most 12

The glossary is made of the training text: words of the source, the most frequent ones of the test
first, each with the capitalised word that most often stands in its translations (in German, a
noun), or, for every second term, with the one that does so second most often, which the model says
less often by itself. `--most` leaves out words that the test has more often, as a glossary of rare
terms does. Printed are the share of the occurrences of terms that translations use, without the
glossary and with it; sacreBLEU of the lines without terms and of those with terms, both ways; and
the time of a translation with the glossary, in relation to one without, as the median of pairs of
measurements (`--repeats`).
"""

import argparse
import re
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from measuring import machine

from t2t_jax.data.lines import read_lines
from t2t_jax.data.terms import Glossary, Term
from t2t_jax.decoding.glossary import missing_terms, translate_with_terms
from t2t_jax.run.loading import load
from t2t_jax.system.program import run
from t2t_jax.tasks.measures.bleu import corpus_scores

_WORD = re.compile(r"[^\W\d_]{4,}")
_NOUN = re.compile(r"\b[A-ZÄÖÜ][a-zäöüß]{3,}\b")


def terms_of(
    sources: Sequence[str], targets: Sequence[str], test: str, count: int, most: int
) -> list[Term]:
    """Return terms that a test set has, but no more often than `most`, by Dice coefficients."""
    words = [frozenset(_WORD.findall(line.lower())) for line in sources]
    others = [frozenset(_NOUN.findall(line)) for line in targets]
    first = Counter(word for line in words for word in line)
    second = Counter(word for line in others for word in line)
    asked = [
        word
        for word, number in Counter(_WORD.findall(test.lower())).most_common()
        if 50 <= first[word] <= 2000 and number <= most
    ]
    together: dict[str, Counter[str]] = defaultdict(Counter)
    for line, other in zip(words, others, strict=True):
        for word in line.intersection(asked):
            together[word].update(other)
    found: list[Term] = []
    for word in asked:
        dice = {
            other: 2 * number / (first[word] + second[other])
            for other, number in together[word].items()
        }
        best = sorted(dice, key=lambda other: -dice[other])[:2]
        is_noun = len(best) == 2 and dice[best[0]] > 0.3 and dice[best[1]] > 0.1
        if is_noun and best[0][:4] != best[1][:4]:
            found.append(Term(word, best[len(found) % 2]))
    return found[:count]


def main(arguments: Sequence[str]) -> int:
    """Print the figures, and return the exit code."""
    flags = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    flags.add_argument("workdir", type=Path)
    flags.add_argument("--train", required=True)
    flags.add_argument("--test", required=True)
    flags.add_argument("--terms", type=int, default=50)
    flags.add_argument("--most", type=int, default=1000, help="occurrences of a term")
    flags.add_argument("--lines", type=int, default=1000)
    flags.add_argument("--repeats", type=int, default=3)
    asked = flags.parse_args(arguments)
    translator = load(asked.workdir)
    data = translator.config.data
    ends = data.source_language, data.target_language
    known = ([*read_lines(Path(f"{asked.train}.{end}"))] for end in ends)
    sources, targets = ([*read_lines(Path(f"{asked.test}.{end}"))][: asked.lines] for end in ends)
    text, bounds = "\n".join(sources), (asked.terms, asked.most)
    glossary = Glossary(tuple(terms_of(next(known), next(known), text, *bounds)))
    wanted = [glossary.found(line) for line in sources]
    have, total = sum(map(bool, wanted)), sum(map(len, wanted))
    print(
        f"{machine()}\n{len(sources):,} lines, {have} with any of {len(glossary.terms)} terms: ",
        end="",
    )
    print(", ".join(f"{one.source} = {one.target}" for one in glossary.terms))

    ways = {
        "without": lambda: translator.translate(sources, before=None),
        "with": lambda: translate_with_terms(translator, sources, glossary, before=None).lines,
    }
    found = {name: way() for name, way in ways.items()}
    ratios = []
    for _ in range(asked.repeats):
        seconds = []
        for way in ways.values():
            start = time.perf_counter()
            way()
            seconds.append(time.perf_counter() - start)
        ratios.append(seconds[1] / seconds[0])
    for name, lines in found.items():
        pairs = zip(lines, wanted, strict=True)
        missing = sum(len(missing_terms([one.term for one in own], line)) for line, own in pairs)
        scores = [
            corpus_scores(
                [line for line, own in zip(lines, wanted, strict=True) if bool(own) == has],
                [line for line, own in zip(targets, wanted, strict=True) if bool(own) == has],
                ends[1],
            ).bleu
            for has in (False, True)
        ]
        print(
            f"{name:8} terms used {1 - missing / total:.1%} of {total:,}  "
            f"BLEU of lines without terms {scores[0]:.2f}, with terms {scores[1]:.2f}"
        )
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    print(f"time with / without: {statistics.median(ratios):.2f} ({spread})")
    return 0


if __name__ == "__main__":
    run(main)
