"""The differences that later papers publish, written a second time as the papers print them."""

import re

import pytest

from t2t_jax.paper.published import DIFFERENCES, PublishedDifference, PublishedIn

# The base's score, the variant's, and the difference between the printed figures.
_PRINTED = """
relative_positions          26.5   26.8   +0.3
relative_positions_big      27.9   29.2   +1.3
rotary                      27.3   27.5   +0.2
multi_query                 26.7   26.5   -0.2
multi_query_log_perplexity  1.424  1.439  +0.015
multi_query_t5              28.4   28.5   +0.1
grouped_query_t5            28.4   28.4   +0.0
local_attention             26.7   26.6   -0.1
pre_norm                    27.58  26.83  -0.75
rms_norm                    26.6   26.8   +0.2
rms_norm_t5                 26.62  27.14  +0.52
rezero_t5                   26.62  26.37  -0.25
gelu                        26.62  26.47  -0.15
swish                       26.62  26.75  +0.13
elu                         26.62  26.08  -0.54
selu                        26.62  25.99  -0.63
sigmoid                     26.62  26.30  -0.32
softplus                    26.62  26.89  +0.27
glu                         26.62  27.12  +0.50
geglu                       26.62  26.87  +0.25
reglu                       26.62  27.02  +0.40
swiglu                      26.62  27.02  +0.40
liglu                       26.62  26.53  -0.09
layers_24                   26.62  26.89  +0.27
layers_18                   26.62  27.10  +0.48
layers_8                    26.62  26.85  +0.23
layers_6                    26.62  26.66  +0.04
shared_layers               26.62  25.48  -1.14
shared_encoder_layers       26.62  26.23  -0.39
shared_decoder_layers       26.62  26.08  -0.54
tied_input_embeddings       26.62  26.49  -0.13
tied_decoder_embeddings     26.62  26.67  +0.05
untied_embeddings           26.62  26.48  -0.14
"""


def test_the_differences_are_those_of_the_printed_scores():
    printed = [line.split() for line in _PRINTED.strip().splitlines()]
    assert list(DIFFERENCES) == [name for name, *_ in printed]
    for name, base, variant, difference in printed:
        found = DIFFERENCES[name]
        assert found.scores == f"{found.measure} {base} -> {variant}"
        assert found.difference == float(difference)


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_says_where_it_is_published_and_of_which_experiment(name):
    source, setting = DIFFERENCES[name].source, DIFFERENCES[name].setting
    assert re.fullmatch(r"\d{4}\.\d{5}", source.arxiv)
    assert re.fullmatch(r"Table \d", source.table)
    # A paper's number on arXiv begins with the year and month of its first version.
    assert 2000 + int(source.arxiv[:2]) == source.year
    assert source.citation in source.reference
    assert "WMT 2014 English-German" in setting
    assert re.search(r"newstest201[34]|test set|dev set|validation set", setting)
    assert "against" in setting  # what was changed
    assert not setting.endswith(".")


def test_scores_are_shown_as_precisely_as_the_paper_prints_them():
    source = PublishedIn("Doe", 2020, "A title", "2001.00001", "Table 1")
    difference = PublishedDifference("BLEU", 26.62, 26.3, source, "a model")
    assert difference.scores == "BLEU 26.62 -> 26.30"
    assert difference.difference == -0.32
    assert source.reference == 'Doe 2020, "A title", arXiv 2001.00001, Table 1'
