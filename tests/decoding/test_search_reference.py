"""The search by the rule of transformers against one in plain Python, with all constraints."""

import pytest

from tests.against.search.ours import plain_search_of, search
from tests.against.search.part import PART, same
from tests.decoding.plain_search import Rules

CASE = {
    **PART.simplest,
    "sentences": [[[4, 6, 5], []], [[7, 4], [5, 6]], [[9], [5]]],
    "beam_size": 3,
    "num_best": 3,
    "limit": 12,
    "size": 12,
    "length_penalty": 1.0,
    "distribution": "special",
}
CONSTRAINTS = {"no_repeat_ngram_size": 2, "min_length": 4, "forbidden": [4, 8]}


@pytest.mark.parametrize("constraints", [{}, CONSTRAINTS], ids=["free", "constrained"])
def test_a_search_in_plain_python_finds_the_same(constraints, tmp_path):
    case = CASE | constraints
    assert same(search(case, str(tmp_path)), plain_search_of(case).found(Rules()))
