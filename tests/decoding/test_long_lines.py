import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_jax import Translator, UserError, score
from t2t_jax.decoding.long_lines import split
from tests.refusals import refused

LONG = "rot haus und blau haus. " * 12
LINES = ["rot haus", "", LONG.strip(), "zwei", "r" * 200]


def test_lines_out_are_lines_in_whatever_their_length(tiny):
    found = tiny.translate(LINES)
    assert len(found) == len(LINES)
    assert not any("\n" in line for line in found)
    assert found[1] == ""
    short = [0, 1, 3]
    assert [found[i] for i in short] == tiny.translate([LINES[i] for i in short])


@settings(max_examples=60)
@given(
    line=st.text(st.sampled_from("abc dehmrtu.!?。\"'ü\U0001f600"), max_size=300),
    limit=st.integers(8, 40),
)
def test_parts_are_the_line_and_none_is_longer_than_the_limit(tiny, line, limit):
    [source] = tiny.encode([line])
    found = list(split(source, tiny.vocabulary, limit))
    assert [token for part in found for token in part[:-1]] == source[:-1]
    assert (
        all(2 <= len(part) <= limit and part[-1] == source[-1] for part in found)
        or not line.strip()
    )
    assert all(len(part) > limit // 2 - 1 for part in found[:-1])


CUTS = {
    "at the end of a sentence": ("rot haus. und blau haus und rot", "rot haus."),
    "after the quotation mark that follows it": ('rot haus." und blau haus und rot', 'rot haus."'),
    "at the last of several": ("rot. haus und. blau haus und rot", "rot. haus und."),
    "at a space, without one": ("rot haus und blau haus und rot", "rot haus und blau"),
    "at no point within a word": ("rot haus 3.14 blau haus und rot", "rot haus 3.14"),
}


@pytest.mark.parametrize("case", CUTS)
def test_a_line_is_cut(case, tiny):
    line, first = CUTS[case]
    room = len(tiny.encode([first])[0])
    following = line.removeprefix(first).split()[0]
    limit = room + len(tiny.encode([following])[0]) - 2  # all but the last subword of what follows
    cut = list(split(tiny.encode([line])[0], tiny.vocabulary, limit))
    assert cut[0] == tiny.encode([first])[0]


def test_a_split_line_is_the_translation_of_its_parts(tiny):
    [source] = tiny.encode([LONG])
    parts = tiny.vocabulary.decode(list(split(source, tiny.vocabulary, 16)))
    assert len(parts) > 3
    each = [best[0] for best in tiny.nbest(parts, 1)]
    [[whole]] = tiny.nbest([LONG], 1)
    assert whole.text == " ".join(one.text for one in each if one.text)
    assert whole.tokens == tuple(token for one in each for token in one.tokens)
    assert whole.log_prob == pytest.approx(sum(one.log_prob for one in each))
    assert whole.score == pytest.approx(sum(one.score for one in each))


def test_the_best_of_a_split_line_are_the_best_combinations_of_its_parts(tiny):
    [found] = tiny.nbest([LONG], 2, beam_size=2)
    [[first]] = tiny.nbest([LONG], 1, beam_size=2)
    assert found[0] == first
    assert len({one.tokens for one in found}) == 2
    assert found[0].score >= found[1].score


def test_parts_of_a_split_line_are_drawn_apart(tiny):
    same = "rot haus und blau haus und rot haus. "
    how = {"temperature": 1.0, "beam_size": 1, "max_source_length": len(tiny.encode([same])[0])}
    [found] = tiny.translate([same * 2], **how)
    assert tiny.translate([same * 2], **how) == [found]
    assert found != " ".join(tiny.translate([same], **how) * 2)


def test_a_long_line_is_refused_by_its_number_before_any_is_translated(tiny, monkeypatch):
    monkeypatch.setattr(Translator, "search", None)
    message = r"line 12 has \d+ subwords, more than decoding.max_source_length=16; .*lines=split"
    with refused(match=message):
        tiny.translate(LINES, first_line=10, long_lines="refuse")
    with refused(match=message):
        tiny.check_lines(iter(LINES), first_line=10, long_lines="refuse")
    tiny.check_lines(LINES)


def test_learned_positions_split_a_line_too(tiny):
    learned = {"model.position": "learned", "model.max_positions": 38}
    config = tiny.config.replace({**learned, "decoding.max_source_length": 1024})
    table = np.random.default_rng(0).normal(size=(38, 16))
    positions = {f"{side}_position": {"embedding": table} for side in ("source", "target")}
    translator = Translator(config, tiny.vocabulary, tiny.params | positions)
    assert len(translator.translate(LINES)) == len(LINES)
    with pytest.raises(UserError, match=r"line 3 has \d+ subwords.* allow 32 .*long_lines=split"):
        translator.translate(LINES, long_lines="refuse")


def test_a_pair_too_long_to_be_searched_is_scored_as_a_whole(tiny):
    [found] = score(tiny, [LONG], [LONG])
    assert len(found.tokens) == len(tiny.encode([LONG])[0])
    assert math.isfinite(found.log_prob)


def test_a_pair_too_long_for_one_pass_is_refused_by_its_number(tiny):
    with refused(match=r"target line 8 has \d+ subwords, and at most 32768 can be"):
        score(tiny, ["rot", "rot"], ["rot", "rot. " * 33_000], first_line=7)


SEARCHES = {
    "a beam that is too wide": {"beam_size": 1000, "max_extra_length": 100_000},
    "too many lines at once": {"tokens_per_batch": 100_000_000, "beam_size": 1000},
}


@pytest.mark.parametrize("search", SEARCHES)
def test_a_search_that_cannot_fit_is_refused_before_it_starts(search, tiny, monkeypatch):
    monkeypatch.setattr("t2t_jax.decoding.translator.decode", None)
    monkeypatch.setattr("t2t_jax.parallel.devices.usable_host_memory", lambda: 2**30)
    with refused(match=r"needs [\d,.]+ GiB on each device, which has only 1\.0 GiB: lower "):
        tiny.translate(["rot haus"] * 1000, **SEARCHES[search])
