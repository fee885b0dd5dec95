"""Searches of tiny models with random settings, compared with transformers and CTranslate2.

A case has the ids of this package. All programs read the same parameters: the files are exports.
Most cases give the settings as arguments. In others, transformers and the README for CTranslate2
have them from an export, or an import reads them from the files of transformers.

Where a program finds other hypotheses, `plain_search` searches by its rules. The kind of a
difference is the fewest rules that explain the whole result, hypotheses and scores.
"""

from collections.abc import Mapping, Sequence
from itertools import chain, combinations
from typing import Any

import numpy as np

from tests.against.part import OURS, Case, Difference, Fields, Part, Step, drawn, simplest_case
from tests.decoding.plain_search import END, Found

TOLERANCE = 2e-4
"""Of scores and log-probabilities: float32 sums of up to 16 tokens differ by 2e-5 between programs.
Hypotheses whose scores differ by less may change places."""
TIE = 1e-5
"""Choices between less different numbers depend on the order of sums in float32."""
EMPTY = -1e8
"""Log-probabilities below are empty slots of the other programs, which this package leaves out."""
UNKNOWN = 3
MOST_TOKENS = 16
"""The longest output of all cases, so that they share compiled programs."""
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


_FIELDS: Fields = {
    "sentences": [[]],
    "via": ["arguments", "arguments", "export", "import"],
    "in_config": [False, False, True],
    "early_stopping": [False, False, False, True, "never"],
    "patience": [1, 1, 100],
    "renormalize_logits": [False, False, True],
    "no_repeat_ngram_size": [0] * 9 + [1, 2, 2, 3],
    "forbidden": [[]],
    "forbidden_by": ["bad_words_ids", "suppress_tokens"],
    "counts_start": [False, True],
    "min_length": [0] * 16 + [1, 2, 4, 16],
    "beam_size": [1],
    "num_best": [1, 1, 1, *range(1, 9)],
    "length_penalty": [0.0],
    "limit": [1, 2, 3, 5, 8, 12, 16],
    "distribution": [*DISTRIBUTIONS],
    "start": ["begin"],
    "size": [8],
    "seed": range(1000),
}
_NETWORKS = (8, "padding"), (12, "end"), (12, "begin"), (40, "begin")
_SEARCHES = (1, 0.0), (1, 1.0), (2, 0.6), (3, 1.0), (4, 0.0), (5, 1.0), (6, 0.0), (8, 2.0)
"""Beam sizes and length penalties. Few networks and searches, as each is compiled anew."""


def generate(rng: np.random.Generator, _: int) -> Case:
    """Make a case."""
    case = drawn(rng, _FIELDS)
    case["size"], case["start"] = _NETWORKS[rng.integers(len(_NETWORKS))]
    case["beam_size"], case["length_penalty"] = _SEARCHES[rng.integers(len(_SEARCHES))]

    def ids(least: int, longest: int) -> list[int]:
        return rng.integers(4, case["size"], rng.integers(least, longest + 1)).tolist()

    longest = 5 if rng.random() < 0.25 else 0
    case["sentences"] = [[ids(1, 7), ids(0, longest)] for _ in range(rng.integers(3, 5))]
    end = [END] if rng.random() < 0.1 else []
    case["forbidden"] = end + (ids(0, 4) if rng.random() < 0.25 else [])
    return _mended(case)


def _mended(case: Case) -> Case:
    """Return a case whose settings fit each other."""
    via, sentences = case["via"], case["sentences"]
    if via != "import":
        case = case | {"in_config": False, "renormalize_logits": False}
    if via == "export":
        case["early_stopping"] = False
    forbidden = {number for number in case["forbidden"] if via == "import" or number != END}
    return case | {
        "sentences": [[source, prefix * (via == "arguments")] for source, prefix in sentences],
        "forbidden": sorted(forbidden),
        "min_length": min(case["limit"], case["min_length"]),
        "num_best": min(case["beam_size"], case["num_best"]),
    }


def is_valid(case: Case) -> bool:
    """Return whether a case that shrinking made is one that `generate` could make."""
    ids = [number for sentence in case["sentences"] for part in sentence for number in part]
    is_within = max([END, *ids, *case["forbidden"]]) < case["size"]
    return bool(case["sentences"]) and is_within and case == _mended(case)


def longest_prefix(case: Case) -> int:
    """Return the length of the longest prefix of a target."""
    return max(len(prefix) for _, prefix in case["sentences"])


def settings_of_transformers(case: Case, num_given: int = 0) -> dict[str, Any]:
    """Return the settings of `generate` for sentences with a prefix of so many tokens."""
    same = "length_penalty", "early_stopping", "renormalize_logits", "no_repeat_ngram_size"
    settings = {name: case[name] for name in same}
    settings |= {"num_beams": case["beam_size"], "do_sample": False}
    if case["counts_start"]:
        settings |= {"max_length": case["limit"] + 1, "min_length": case["min_length"] + 1}
    else:
        settings["max_new_tokens"] = case["limit"] - num_given
        settings["min_new_tokens"] = max(0, case["min_length"] - num_given)
    if ids := [(number - 1) % case["size"] for number in case["forbidden"]]:
        is_words = case["forbidden_by"] == "bad_words_ids"
        settings[case["forbidden_by"]] = [[number] for number in ids] if is_words else ids
    return settings


def routes(case: Case) -> dict[str, list[Step]]:
    """Return the programs that can search with the settings of a case."""
    names = ["transformers"] if longest_prefix(case) < case["limit"] else []
    if case["via"] != "import":
        names.append("ctranslate2")
    return {name: [(OURS, "search"), (name, "search"), (OURS, f"explain_{name}")] for name in names}


def rules_of(case: Case, name: str) -> dict[str, Any]:
    """Return the rules of a program that matter in a case; see `plain_search.Rules`."""
    by_words, has_prefix = case["forbidden_by"] == "bad_words_ids", longest_prefix(case) > 0
    normalized = case["renormalize_logits"]
    if name == OURS:
        # An import forbids padding unless bad_words_ids says what to forbid.
        is_padding = case["via"] != "import" or bool(case["forbidden"] and by_words)
        return {"padding": is_padding, "renormalizes": "forbidden" if normalized else "never"}
    rules: dict[str, Any] = {"dead_ends_live": False, "padding": True}
    if name == "transformers":
        late = "final" if case["length_penalty"] else "improvable"
        rules["stop"] = {True: "full", "never": late}.get(case["early_stopping"], "improvable")
        rules |= {"renormalizes": "all" if normalized else "never", "end_forbidden": not by_words}
        return rules | {"start_counts": True, "prefix": "prompt" if has_prefix else "scored"}
    late = "full" if case["patience"] == 1 else "limit"  # patience counts only with a penalty
    rules |= {"renormalizes": "all", "stop": late if case["length_penalty"] else "top"}
    return rules | {"prefix": "counted", "one_end": has_prefix, "greedy_penalty": True}


def same(found: Found, expected: Found) -> bool:
    """Return whether two searches give the same hypotheses with the same scores.

    Of different hypotheses at one rank, the scores have to be equal.
    """
    return [*map(len, found)] == [*map(len, expected)] and all(
        abs(score - other_score) <= TOLERANCE
        and (tokens != others or abs(log_prob - other_log_prob) <= TOLERANCE)
        for (tokens, score, log_prob), (others, other_score, other_log_prob) in zip(
            chain(*found), chain(*expected), strict=True
        )
    )


def compare(case: Case, name: str, answers: Sequence[Any]) -> Difference | None:
    """Compare the hypotheses of each sentence, and their scores."""
    ours, theirs, rules = answers
    if same(ours, theirs):
        return None
    return Difference(" and ".join(sorted(rules)), f"ours {ours}\n  {name} {theirs}")


DOCUMENTED = {
    "dead_ends_live": "no subword is allowed",
    "end_forbidden": "ignores the end-of-sentence token in `suppress_tokens`",
    "greedy_penalty": "scores of greedy search",
    "near tie": "closer than 1e-5",
    "one_end": "accepts an end-of-sentence token only if it is the best continuation",
    "padding": "may write padding",
    "prefix": "prefix of a target",
    "renormalizes": "normalizes probabilities over the allowed subwords",
    "start_counts": "include the start of the target",
    "stop": "ends a beam search",
}
"""The rules that `docs/differences.md` explains, each with a text of that page."""
COMBINED = (combinations(sorted(DOCUMENTED), count) for count in range(1, len(DOCUMENTED) + 1))

PART = Part(
    programs={name: f"{__package__}.{name}" for name in (OURS, "transformers", "ctranslate2")},
    generate=generate,
    routes=routes,
    compare=compare,
    simplest=simplest_case(_FIELDS),
    documented={" and ".join(rules): DOCUMENTED[rules[0]] for rules in chain(*COMBINED)},
    is_valid=is_valid,
    niceness=2,
)
