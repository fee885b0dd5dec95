"""Translations that begin with a given text."""

import pytest

from t2t_jax import UserError, score
from t2t_jax.batch import EOS_ID
from t2t_jax.decoding import translator
from tests.decoding.random_models import sentences
from tests.selection import thorough_after

LINES = ["ein rot haus", "nicht", "zwei blau baum und kleine tür.", "", "große fenster sehen"]
PREFIXES = ["große", "", "zwei blau baum und zwei fenster", "rot", "ha"]


@pytest.mark.parametrize(
    "how", thorough_after(1, [{"beam_size": 3}, {"beam_size": 1}, {"temperature": 0.8}])
)
def test_translations_begin_with_their_prefixes_and_are_scored_as_a_whole(how, tiny):
    found = [best for [best] in tiny.nbest(LINES, 1, prefixes=PREFIXES, **how)]
    free = [best for [best] in tiny.nbest(LINES, 1, **how)]
    assert found[1] == free[1]
    assert found[3].text == ""  # a blank line stays blank
    for i, (line, prefix) in enumerate(zip(LINES, PREFIXES, strict=True)):
        forced = tuple(tiny.encode([prefix])[0][:-1])
        assert i == 3 or found[i].tokens[: len(forced)] == forced
        [alone] = tiny.translate([line], prefixes=[prefix], first_line=i + 1, **how)
        assert alone == found[i].text
        if list(found[i].tokens) == tiny.encode([found[i].text])[0]:
            [again] = score(tiny, [line], [found[i].text])
            assert again.log_prob == pytest.approx(found[i].log_prob, rel=1e-4)


def test_the_log_probability_is_that_of_the_whole_translation(tiny, monkeypatch):
    [[best]] = tiny.nbest(["ein rot haus"], 1, prefixes=["nicht oder zwei"])
    tokens = [*best.tokens] if best.tokens[-1] == EOS_ID else [*best.tokens, EOS_ID]
    monkeypatch.setattr(tiny, "encode_targets", lambda lines: [tokens for _ in lines])
    [again] = score(tiny, ["ein rot haus"], ["of these tokens"])
    expected = sum(again.token_log_probs[: len(best.tokens)])
    assert best.log_prob == pytest.approx(expected, rel=1e-5)


def test_a_long_prefix_leaves_as_much_room_after_it_as_a_source_of_its_length(tiny):
    prefix = "ein zwei rot blau"
    length = len(tiny.encode([prefix])[0]) - 1
    extra = tiny.config.decoding.max_extra_length
    [[best]] = tiny.nbest(["ein"], 1, prefixes=[prefix], min_length=100)
    assert len(best.tokens) == max(length, len(tiny.encode(["ein"])[0])) + extra
    assert best.text.startswith(prefix)


def test_a_prefix_longer_than_a_source_may_be_is_refused_before_anything_is_translated(
    tiny, monkeypatch
):
    monkeypatch.setattr(translator, "decode", None)
    with pytest.raises(UserError, match=r"the prefix of line 8 has \d+ subwords, but .* most 16;"):
        tiny.translate(["ein", "zwei"], prefixes=["", "große fenster " * 9], first_line=7)
    with pytest.raises(UserError, match=r"2 lines have 1 prefixes; give one for each line, and"):
        tiny.translate(["ein", "zwei"], prefixes=["zwei"])
    with pytest.raises(TypeError, match=r"prefixes is one string; give a list of lines"):
        tiny.translate(["ein", "zwei"], prefixes="zwei")


def test_of_a_line_that_is_split_the_first_part_has_the_prefix(tiny):
    line = "nicht große fenster und kleine tür. " * 4
    [[best]] = tiny.nbest([line], 1, prefixes=["blau baum"])
    forced = tuple(tiny.encode(["blau baum"])[0][:-1])
    assert best.tokens[: len(forced)] == forced
    [[free]] = tiny.nbest([line], 1)
    of_rest = free.text.split()[-1]
    assert best.text.split()[-1] == of_rest


def test_sentences_with_prefixes_come_and_go_in_few_rows(tiny):
    lines, prefixes = sentences(40, 5, seed=2), sentences(40, 4, seed=3)
    how = {"max_source_length": 64}
    together = tiny.translate(lines, prefixes=prefixes, tokens_per_batch=100, **how)
    for i in range(0, 40, 8):
        assert tiny.translate(lines[i : i + 1], prefixes=prefixes[i : i + 1], **how) == [
            together[i]
        ]
