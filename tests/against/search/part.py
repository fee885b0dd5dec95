"""Settings of searches with tiny models, compared with transformers and CTranslate2.

A case has the ids of this package. All programs read the same parameters: the files are exports.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from tests.against.part import OURS, Case, Difference, Part, Step

Found: TypeAlias = list[list[tuple[list[int], float, float]]]
"""For each sentence the hypotheses, best first: ids with the prefix, score, and log-probability."""

TOLERANCE = 2e-4
"""Of scores and log-probabilities: float32 sums of up to 20 tokens differ by 2e-5 between programs.
Hypotheses whose scores differ by less may change places."""
EMPTY = -1e8
"""Scores below are empty slots of the other programs, which this package leaves out."""

DISTRIBUTIONS: Mapping[str, tuple[float, float, float, float]] = {
    "plain": (0.25, 0.5, 0.0, -6.0),
    "flat": (0.02, 0.05, 0.0, -6.0),
    "peaked": (0.25, 3.0, 0.0, -9.0),
    "looping": (1.0, 0.5, 0.0, -9.0),
    "eager": (0.25, 0.5, 2.5, -6.0),
    "reluctant": (0.25, 0.5, -4.0, -9.0),
    "special": (0.25, 0.5, 0.0, 0.0),
}
"""Standard deviations of the embeddings and of the output bias; what is added to the output bias of
the end, and of the padding, the start and the unknown subword."""

MOST_TOKENS = 16
"""The longest output of all cases, so that they share compiled programs."""
NETWORK = "size", "d_model", "layers", "start"
"""The fields that determine the network."""

SIMPLEST: Case = {
    "sentences": [],
    "via": "arguments",
    "early_stopping": False,
    "patience": 1,
    "renormalize": False,
    "ngram": 0,
    "forbidden": [],
    "forbidden_by": "bad_words_ids",
    "counts_start": False,
    "min_length": 0,
    "beam_size": 1,
    "num_best": 1,
    "length_penalty": 0.0,
    "limit": 1,
    "distribution": "plain",
    "start": "begin",
    "layers": 1,
    "d_model": 8,
    "size": 8,
    "seed": 0,
}


def generate(rng: np.random.Generator) -> Case:
    """Make a case."""

    def one(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    def ids(longest: int, least: int = 0) -> list[int]:
        return rng.integers(4, size, rng.integers(least, longest + 1)).tolist()

    size = one(8, 12, 24, 48)
    beam_size = one(1, 1, 2, 3, 4, 5, 6, 8)
    via = one("arguments", "arguments", "export", "import")
    limit = one(1, 2, 3, 5, 8, 8, 12, 16)
    has_prefixes = via == "arguments" and rng.random() < 0.25
    longest = min(limit - 1, 5) if has_prefixes else 0
    return {
        "sentences": [[ids(7, 1), ids(longest)] for _ in range(one(1, 2, 3, 4))],
        "via": via,
        "early_stopping": one(False, False, False, True, "never") if via != "export" else False,
        "patience": one(1, 1, 100),
        "renormalize": via != "export" and rng.random() < 0.15,
        "ngram": one(0, 0, 0, 1, 2, 3),
        "forbidden": sorted(set(ids(4))) if rng.random() < 0.3 else [],
        "forbidden_by": one("bad_words_ids", "suppress_tokens"),
        "counts_start": bool(rng.random() < 0.5),
        "min_length": one(0, 0, 0, 1, 2, 4, limit) if rng.random() < 0.6 else 0,
        "beam_size": beam_size,
        "num_best": one(1, beam_size, int(rng.integers(1, beam_size + 1))),
        "length_penalty": one(0.0, 0.0, 0.5, 1.0, 1.0, 2.0),
        "limit": limit,
        "distribution": one(*DISTRIBUTIONS),
        "start": one("begin", "begin", "end", "padding"),
        "layers": one(1, 1, 1, 2),
        "d_model": 8,
        "size": size,
        "seed": int(rng.integers(1000)),
    }


def is_valid(case: Case) -> bool:
    """Return whether a case that shrinking made is one that `generate` could make."""
    ids = [number for sentence in case["sentences"] for part in sentence for number in part]
    longest_prefix = max((len(prefix) for _, prefix in case["sentences"]), default=0)
    return (
        bool(case["sentences"])
        and max([*ids, *case["forbidden"]]) < case["size"]
        and longest_prefix < case["limit"]
        and case["num_best"] <= case["beam_size"]
        and (case["via"] == "arguments" or not longest_prefix)
        and case["d_model"] % 4 == 0
    )


def settings_of_transformers(case: Case, prefix_length: int = 0) -> dict[str, Any]:
    """Return the settings of `generate` for sentences with a prefix of some length."""
    settings = {
        "num_beams": case["beam_size"],
        "length_penalty": case["length_penalty"],
        "early_stopping": case["early_stopping"],
        "renormalize_logits": case["renormalize"],
        "no_repeat_ngram_size": case["ngram"],
        "do_sample": False,
    }
    if case["counts_start"]:
        settings |= {"max_length": case["limit"] + 1, "min_length": case["min_length"] + 1}
    else:
        settings["max_new_tokens"] = case["limit"] - prefix_length
        settings["min_new_tokens"] = max(0, case["min_length"] - prefix_length)
    ids = [(number - 1) % case["size"] for number in case["forbidden"]]
    if ids:
        by_word = case["forbidden_by"] == "bad_words_ids"
        settings[case["forbidden_by"]] = [[number] for number in ids] if by_word else ids
    return settings


def routes(case: Case) -> dict[str, list[Step]]:
    """Return the programs that can search with the settings of a case."""
    names = ["transformers"]
    if case["via"] != "import" and not case["renormalize"]:
        names.append("ctranslate2")
    return {name: [(OURS, "search"), (name, "search"), (OURS, f"score_{name}")] for name in names}


def compare(case: Case, name: str, answers: Sequence[Any]) -> Difference | None:
    """Compare the hypotheses of each sentence, and their scores."""
    ours, theirs, scored = answers
    for number, (own, other, log_probs) in enumerate(zip(ours, theirs, scored, strict=True)):
        other = [one for one in other if one[1] > EMPTY]
        num_given = len(case["sentences"][number][1])
        detail = f"sentence {number}: {own} and {other}"
        for program, found, begin in ((OURS, own, 0), (name, other, num_given)):
            for tokens, _, log_prob in found:
                if abs(sum(log_probs[str(tokens)][begin:]) - log_prob) > TOLERANCE:
                    return Difference(f"log-probabilities of {program}", detail)
        if len(own) != len(other):
            return Difference("number of hypotheses", detail)
        gaps = [abs(one[1] - two[1]) for one, two in zip(own, other, strict=True)]
        if max(gaps) > TOLERANCE:
            return Difference("scores", detail)
    return None


PART = Part(
    programs={
        OURS: "tests.against.search.ours",
        "transformers": "tests.against.search.transformers",
        "ctranslate2": "tests.against.search.ctranslate2",
    },
    generate=generate,
    routes=routes,
    compare=compare,
    simplest=SIMPLEST,
    documented={},
    is_valid=is_valid,
)
