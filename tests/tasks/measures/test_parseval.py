"""Trees are scored exactly as EVALB scores them, with COLLINS.prm."""

import json
import string
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_jax.data.trees import Tree, build_tree, is_tag, parse_trees
from t2t_jax.tasks.measures.parseval import parseval
from tests.refusals import refused

GOLDENS = json.loads(
    (Path(__file__).parents[2] / "goldens" / "parseval_goldens.json").read_text(encoding="utf-8")
)
CASES = GOLDENS["cases"]


@pytest.fixture(scope="module")
def pairs() -> list[tuple[Tree, Tree]]:
    """The gold and the predicted tree of each case."""
    sides = [parse_trees([case[side] for case in CASES], side) for side in ("gold", "predicted")]
    return list(zip(*sides, strict=True))


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case["about"] for case in CASES])
def test_every_pair_scores_as_with_evalb(pairs: list[tuple[Tree, Tree]], number: int):
    gold, predicted = pairs[number]
    case = CASES[number]
    scores = parseval([gold], [predicted])
    status = scores.num_errors + 2 * scores.num_skipped
    complete = case["gold_brackets"] == case["predicted_brackets"] == case["matched"]
    assert status == case["status"]
    assert round(scores.recall, 2) == case["recall"]
    assert round(scores.precision, 2) == case["precision"]
    assert round(scores.tagging_accuracy, 2) == case["tagging_accuracy"]
    assert scores.complete_match == 100 * (complete and status == 0)
    brackets = case["gold_brackets"] + case["predicted_brackets"]
    assert scores.f1 == pytest.approx(200 * case["matched"] / max(brackets, 1))
    assert scores.f1_short == (scores.f1 if case["length"] <= 40 else 0)


def test_all_pairs_together_score_as_with_evalb(pairs: list[tuple[Tree, Tree]]):
    scores = parseval(*zip(*pairs, strict=True))
    assert {name: round(getattr(scores, name), 2) for name in GOLDENS["all"]} == GOLDENS["all"]
    assert round(scores.f1_short, 2) == GOLDENS["short"]["f1"]
    assert scores.signature == "EVALB, COLLINS.prm"


def any_tree(num_words: int, symbols: list[str]) -> Tree:
    words = [string.ascii_lowercase[number] for number in range(num_words)]
    return build_tree(words, symbols)[0]


symbols = st.lists(
    st.sampled_from(["(S", ")S", "(NP", ")NP", "(PRT", ")PRT", "(ADVP", ")ADVP", "NN", "DT"]),
    max_size=24,
)


def brackets(tree: Tree) -> list[tuple[str, int, int]]:
    """Every constituent below the root: each opening bracket, up to the one that closes it."""
    found = []
    for index, symbol in enumerate(tree.symbols):
        if symbol[0] == "(":
            depth = accumulate((x[0] == "(") - (x[0] == ")") for x in tree.symbols[index:])
            end = index + list(depth).index(0)
            start, stop = (sum(map(is_tag, tree.symbols[:n])) for n in (index, end))
            found.append((symbol[1:].replace("PRT", "ADVP"), start, stop))
    return found


@given(st.integers(1, 9), symbols, symbols)
def test_matches_are_pairs_of_equal_brackets_each_used_once(num_words, one, other):
    gold, predicted = any_tree(num_words, one), any_tree(num_words, other)
    wanted, offered, matched = brackets(gold), brackets(predicted), 0
    num_wanted, num_offered = len(wanted), len(offered)
    for bracket in offered:
        if bracket in wanted:
            wanted.remove(bracket)
            matched += 1
    scores = parseval([gold], [predicted])
    assert scores.recall == 100 * matched / max(num_wanted, 1)
    assert scores.precision == 100 * matched / max(num_offered, 1)
    swapped = parseval([predicted], [gold])
    assert (swapped.recall, swapped.precision) == (scores.precision, scores.recall)
    assert swapped.f1 == pytest.approx(scores.f1)
    assert parseval([gold], [gold]).f1 == (100 if num_wanted else 0)


@pytest.mark.parametrize(("num_gold", "num_predicted"), [(0, 0), (1, 0), (2, 1), (1, 2)])
def test_unequal_numbers_are_refused(num_gold: int, num_predicted: int):
    tree: Any = any_tree(1, [])
    with refused(match=f"{num_predicted} predicted .* {num_gold} gold"):
        parseval([tree] * num_gold, [tree] * num_predicted)


def test_deep_trees_are_scored():
    depth = 5000
    tree = any_tree(2, ["(S"] * depth + ["NN", "NN"])
    assert parseval([tree], [tree]).recall == 100
