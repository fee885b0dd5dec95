"""Measure what the rules of `t2t-jax data clean` find of noise that is planted among real pairs.

    python benchmarks/cleaning.py DIR
    python benchmarks/cleaning.py DIR --rules standard language ending --out corpora/planted

Of the pairs of DIR, some are drawn, and a tenth of them (`--noise`) is replaced by noise of seven
kinds, as many of each:

    misaligned       the target of another pair
    copied           the source in the place of the target
    wrong language   the source of another pair in the place of the target
    truncated        the first half of the words of the target, of those with six or more
    garbage          a tag or a character reference on one side, broken or twice encoded characters
    numbers          a digit of the target changed, of those with digits on both sides
    repeated         a pair that stands before it, as it is or with other case, digits or marks

Printed is, for each rule and kind, the share of the pairs that the rule drops by itself; likewise
of the pairs that are not planted, which may be noise of their own. The precision of a rule is the
share of what it drops that was planted. The speed is in pairs for each second of the processor, of
one core, without reading and writing. Every flag of `t2t-jax data clean` may be given. With `--out`
the planted corpus is written: DIR/clean without the noise, DIR/noisy with it, and DIR/cleaned.
"""

import copy
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import measuring
import numpy as np

from t2t_jax.commands.data_clean import DataCleanCommand
from t2t_jax.commands.flags import parse_flags
from t2t_jax.data.cleaning.clean import CleaningState, rules_that_drop
from t2t_jax.data.cleaning.rules import PairCleaning
from t2t_jax.data.cleaning.stream import clean_corpus
from t2t_jax.data.text_files import corpus_directory, parallel_files
from t2t_jax.errors import UserError
from t2t_jax.system.program import run

_AT_ONCE = 10_000
_DIGIT = re.compile(r"\d")
Pair = tuple[str, str]


@dataclass(frozen=True)
class Cleaning(DataCleanCommand):
    """Plant noise, and measure what the rules find of it."""

    pairs: int = 100_000
    """Pairs that are drawn from the corpus; the largest number there is if it has fewer."""
    noise: float = 0.1
    """Share of them that is replaced by noise."""
    seed: int = 1
    """Seed of the drawing and of the noise."""
    out: Path | None = None
    """Directory to write clean, noisy and cleaned to."""
    json: bool = False
    """Print one JSON object for each rule."""


def misaligned(pair: Pair, other: Pair, rng: random.Random) -> Pair:
    """Return the source with the target of another pair."""
    return pair[0], other[1]


def copied(pair: Pair, other: Pair, rng: random.Random) -> Pair:
    """Return the source twice."""
    return pair[0], pair[0]


def in_wrong_language(pair: Pair, other: Pair, rng: random.Random) -> Pair:
    """Return the source with the source of another pair."""
    return pair[0], other[0]


def truncated(pair: Pair, other: Pair, rng: random.Random) -> Pair:
    """Return the pair with the first half of the target's words."""
    words = pair[1].split()
    return pair[0], " ".join(words[: len(words) // 2])


def garbled(pair: Pair, other: Pair, rng: random.Random) -> Pair:
    """Return the pair with marks in the target that are none of the text."""
    target, place = pair[1], rng.randrange(len(pair[1]))
    kind = rng.randrange(4)
    if kind == 0:
        return pair[0], f"{target[:place]}<br>{target[place:]}"
    if kind == 1:
        return pair[0], f"{target[:place]}&nbsp;{target[place:]}"
    if kind == 2 and not target.isascii():
        return pair[0], target.encode().decode("latin-1")
    return pair[0], f"{target[:place]}\N{REPLACEMENT CHARACTER}{target[place + 1 :]}"


def renumbered(pair: Pair, other: Pair, rng: random.Random) -> Pair:
    """Return the pair with one digit of the target changed."""
    place = rng.choice([found.start() for found in _DIGIT.finditer(pair[1])])
    digit = rng.choice([digit for digit in "123456789" if digit != pair[1][place]])
    return pair[0], f"{pair[1][:place]}{digit}{pair[1][place + 1 :]}"


def repeated(pair: Pair, other: Pair, rng: random.Random) -> Pair:
    """Return another pair that stands in the corpus, as it is or a little changed."""
    kind = rng.randrange(4)
    if kind == 0:
        return other[0].upper(), other[1].upper()
    if kind == 1:
        return f"{other[0]} 7", f"{other[1]} 7"
    if kind == 2:
        return f"- {other[0]} ...", f"- {other[1]} ..."
    return other


Plant = Callable[[Pair, Pair, random.Random], Pair]
KINDS: dict[str, Plant] = {
    "numbers": renumbered,
    "truncated": truncated,
    "misaligned": misaligned,
    "copied": copied,
    "wrong language": in_wrong_language,
    "garbage": garbled,
    "repeated": repeated,
}
ELIGIBLE: dict[str, Callable[[Pair], bool]] = {
    "numbers": lambda pair: all(map(_DIGIT.search, pair)),
    "truncated": lambda pair: len(pair[1].split()) >= 6,
}


def planted(pairs: list[Pair], share: float, seed: int) -> tuple[list[Pair], list[str]]:
    """Return pairs with noise in the place of some, and the kind of each, or an empty string."""
    rng = random.Random(seed)
    order, kinds = [*range(len(pairs))], [""] * len(pairs)
    rng.shuffle(order)
    each = round(share * len(pairs) / len(KINDS))
    for kind in KINDS:
        fits = ELIGIBLE.get(kind, lambda pair: True)
        free = (line for line in order if not kinds[line] and line > 9 and fits(pairs[line]))
        for _, line in zip(range(each), free, strict=False):
            kinds[line] = kind
    noisy = list(pairs)
    for line, kind in enumerate(kinds):
        if kind:
            other = rng.randrange(line)
            while kinds[other]:
                other = rng.randrange(line)
            noisy[line] = KINDS[kind](pairs[line], pairs[other], rng)
    return noisy, kinds


def dropped_by(pairs: Sequence[Pair], cleaning: PairCleaning) -> tuple[dict[str, Any], float]:
    """Return which pairs each rule drops alone, and all of them; and the processor's seconds."""
    masks: dict[str, Any] = {}
    for name in (*cleaning.rules, "all rules"):
        applied, state, found = copy.copy(cleaning), CleaningState(), []
        applied.rules = cleaning.rules if name == "all rules" else (name,)
        start = time.process_time()
        for begin in range(0, len(pairs), _AT_ONCE):
            chunk = tuple(map(list, zip(*pairs[begin : begin + _AT_ONCE], strict=True)))
            found.append(rules_that_drop(chunk, applied, state).reasons > 0)
        masks[name] = np.concatenate(found)
    return masks, time.process_time() - start


def figures(masks: dict[str, Any], kinds: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the shares of each rule."""
    of_kind = {kind: np.array([one == kind for one in kinds]) for kind in (*KINDS, "")}
    for name, drops in masks.items():
        shares = {kind: float(drops[of_kind[kind]].mean()) for kind in KINDS}
        right = int((drops & ~of_kind[""]).sum())
        yield {
            "rule": name,
            "drops": int(drops.sum()),
            **shares,
            "planted": right / int((~of_kind[""]).sum()),
            "not planted": float(drops[of_kind[""]].mean()),
            "precision": right / max(1, int(drops.sum())),
        }


def write_corpora(out: Path, source: Path, asked: Cleaning, noisy: Any, kinds: Any) -> None:
    """Write the corpora clean, noisy and cleaned, with the other splits of the source."""
    languages = asked.source_language, asked.target_language
    there = parallel_files(source, *languages)
    pairs = {"clean": compress(noisy, [not kind for kind in kinds]), "noisy": noisy}
    for name, kept in pairs.items():
        directory = out / name
        directory.mkdir(parents=True, exist_ok=True)
        texts = {"train": zip(*kept, strict=True)}
        texts |= {split: [*map(lines_of, there[split])] for split in there if split != "train"}
        for split, sides in texts.items():
            for language, lines in zip(languages, sides, strict=True):
                text = "".join(f"{line}\n" for line in lines)
                (directory / f"{split}.{language}").write_text(text, encoding="utf-8")
    (out / "noisy" / "kinds.txt").write_text("".join(f"{kind}\n" for kind in kinds))
    clean_corpus(asked.splits([str(out / "noisy")]), out / "cleaned", asked.cleaning())


def lines_of(file: Any) -> list[str]:
    """Return the lines of a file."""
    return [*file.lines()]


def main(arguments: Sequence[str]) -> int:
    """Measure what the command line asks for."""
    asked: Cleaning = parse_flags(Cleaning, arguments)
    if len(asked.paths) != 1 or not 0 < asked.noise < 1:
        raise UserError("name one directory of parallel text, and a share of noise from 0 to 1")
    directory = corpus_directory(asked.paths[0])
    files = parallel_files(directory, asked.source_language, asked.target_language)["train"]
    every = [pair for pair in zip(*map(lines_of, files), strict=True) if all(pair)]
    drawn = random.Random(asked.seed).sample(range(len(every)), min(asked.pairs, len(every)))
    noisy, kinds = planted([every[line] for line in sorted(drawn)], asked.noise, asked.seed)
    masks, seconds = dropped_by(noisy, asked.cleaning())
    common = {**measuring.machine(), "pairs": len(noisy), "seed": asked.seed}
    common |= {f"planted: {kind}": kinds.count(kind) for kind in KINDS}
    common["pairs per processor second"] = len(noisy) / seconds
    measuring.show(common, [*figures(masks, kinds)], asked.json)
    if asked.out is not None:
        write_corpora(asked.out, directory, asked, noisy, kinds)
    return 0


if __name__ == "__main__":
    run(main)
