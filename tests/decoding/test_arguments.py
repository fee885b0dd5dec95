"""What is given to a model is taken, or refused by the name of the argument: never half done."""

import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor

import jaxtyping
import numpy as np
import pytest

from t2t_jax import UserError, attention_maps, evaluate, score
from tests.selection import thorough_after

pytestmark = pytest.mark.usefixtures("_types_are_unchecked")

HALF = "rot \ud800 haus"


@pytest.fixture(scope="module")
def _types_are_unchecked():
    """As they are for users: annotations are checked under pytest alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        yield


REFUSED = {
    # What is no sequence of lines.
    "translate None": (lambda t: t.translate(None), TypeError, "lines is None of type NoneType"),
    "translate bytes": (lambda t: t.translate(b"rot"), TypeError, "lines is b'rot' of type bytes"),
    "translate a string": (lambda t: t.translate("rot"), TypeError, "give a list of lines"),
    "translate a set": (lambda t: t.translate({"rot"}), TypeError, "lines is .* of type set"),
    "score None": (lambda t: score(t, None, []), TypeError, "sources is None"),
    "score a string": (lambda t: score(t, ["a"], "a"), TypeError, "targets is one string"),
    "attention of None": (lambda t: attention_maps(t, None), TypeError, "source is None"),
    "attention of a list": (lambda t: attention_maps(t, "a", ["a"]), TypeError, "target is .*list"),
    "encode None": (lambda t: t.encode(None), TypeError, "lines is None"),
    # What is no line.
    "a line that is None": (
        lambda t: t.translate(["rot", None], first_line=7),
        TypeError,
        r"lines\[1\] \(line 8\) is None of type NoneType; give a str",
    ),
    "a line of bytes": (lambda t: t.nbest([b"rot"], 1), TypeError, r"lines\[0\] .* is b'rot'"),
    "a line that is a number": (lambda t: t.translate([1.5]), TypeError, r"lines\[0\].* is 1\.5"),
    "an array of numbers": (lambda t: t.translate(np.arange(3)), TypeError, r"lines\[0\].*int64"),
    "half of a surrogate pair": (
        lambda t: t.translate(iter(["rot", HALF])),
        UserError,
        r"lines\[1\] \(line 2\) is not text: character 5 is .* U\+D800",
    ),
    "half of one to be scored": (lambda t: score(t, ["a"], [HALF]), UserError, r"targets\[0\]"),
    "half of one to look at": (lambda t: attention_maps(t, HALF), UserError, "source is not text"),
    # Numbers.
    "nbest 2.0": (lambda t: t.nbest(["rot"], 2.0), TypeError, "num_best is 2.0 of type float"),
    "nbest True": (lambda t: t.nbest(["rot"], True), TypeError, "num_best is True of type bool"),
    "nbest 10**30": (lambda t: t.nbest(["rot"], 10**30), UserError, "more than beam_size=2"),
    "nbest 0": (lambda t: t.nbest(["rot"], 0), UserError, "num_best=0 is not positive"),
    "two samples": (lambda t: t.nbest(["a"], 2, temperature=1.0), UserError, "sampling gives one"),
    "seed None": (lambda t: t.translate(["rot"], seed=None), TypeError, "seed is None"),
    "seed -1": (lambda t: t.translate(["rot"], seed=-1), UserError, "seed=-1 is outside"),
    "seed 2**32": (lambda t: t.translate([], seed=2**32), UserError, r"seed=4294967296 is outside"),
    "line None": (lambda t: t.translate([], first_line=None), TypeError, "first_line is None"),
    "line -1": (lambda t: t.translate([], first_line=-1), UserError, "first_line=-1 is outside"),
    "line 1.5": (lambda t: score(t, [], [], first_line=1.5), TypeError, "first_line is 1.5"),
    "evaluate with seed -1": (lambda t: evaluate(t, None, "dev", seed=-1), UserError, "seed=-1"),
    "evaluate 2.5 sentences": (
        lambda t: evaluate(t, None, "dev", num_sentences=2.5),
        TypeError,
        "num_sentences is 2.5 of type float",
    ),
    # Fields of the config.
    "a beam of True": (lambda t: t.translate([], beam_size=True), UserError, "=True is a bool"),
    "a beam of 1e9": (lambda t: t.translate([], beam_size=10**9), UserError, "outside .1, 1000"),
    "room without end": (lambda t: t.translate([], max_extra_length=10**9), UserError, "outside"),
    "temperature nan": (lambda t: t.translate([], temperature=float("nan")), UserError, "finite"),
    "a top_p of 0": (lambda t: t.translate([], top_p=0.0), UserError, "leaves nothing"),
    "a penalty of 1e30": (lambda t: t.translate([], length_penalty=1e30), UserError, "outside"),
    "unknown field": (lambda t: t.translate([], beamsize=3), UserError, "did you mean .*beam_size"),
    "another section": (lambda t: t.translate([], d_model=2), UserError, "unknown config"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_name(case, tiny):
    work, error, message = REFUSED[case]
    with pytest.raises(error, match=message) as caught:
        work(tiny)
    assert "\n" not in str(caught.value)


GIVEN = ["rot haus", "", "blau"]


@pytest.mark.parametrize("kind", [tuple, iter, np.array])
def test_lines_may_be_given_as(kind, tiny):
    assert tiny.translate(kind(GIVEN)) == tiny.translate(GIVEN)


def test_a_generator_of_blank_lines_gives_a_line_for_each(tiny):
    assert tiny.translate(line for line in ["", " ", "\t"]) == ["", "", ""]


def test_pairs_to_score_may_come_from_generators(tiny):
    assert score(tiny, iter(GIVEN), iter(GIVEN)) == score(tiny, GIVEN, GIVEN)


LINES = {
    "control characters": "\x01\x02\x1b[31m",
    "only a NUL": "\x00",
    "a NUL within": "rot\x00haus",
    "a byte order mark": "\ufeffrot haus",
    "only a byte order mark": "\ufeff",
    "line separators of Unicode": "rot\u2028haus\u2029blau\x85rot",
    "a carriage return": "rot\rhaus\r",
    "a form feed": "\x0crot\x0b",
    "no character that is assigned": "\uffff\U0010ffff",
    "private use": "\ue000 rot",
    "a family of emoji": "👨‍👩‍👧‍👦 rot",
    "a hundred combining marks": "e" + "\u0301" * 100,
    "text from right to left": "\u202eשלום\u202c",
    "zero width": "\u200b\u200b",
    "a replacement character": "\ufffd",
    "spaces that are no ASCII": "\u3000\xa0rot\u2003",
    "SentencePiece's own space": "\u2581\u2581",
    "what looks like special tokens": "</s> <pad> <s> <unk> <0x41>",
    "a number of 500 digits": "7" * 500,
}


@pytest.fixture(scope="module")
def translations(tiny):
    return dict(zip(LINES, tiny.translate(LINES.values()), strict=True))


@pytest.mark.parametrize("line", LINES)
def test_a_line_gives_one_line(line, translations):
    assert "\n" not in translations[line]
    translations[line].encode()


def test_a_line_of_a_million_letters_is_one_that_is_too_long(tiny):
    with pytest.raises(UserError, match=r"line 2 has [\d]+ subwords"):
        tiny.translate(["rot", "r" * 1_000_000], long_lines="refuse")


SEARCHES = {
    "temperature 1e-30": {"temperature": 1e-30},
    "temperature 1e-300": {"temperature": 1e-300},
    "top_p 1e-50": {"temperature": 1.0, "top_p": 1e-50},
    "top_p 5e-324": {"temperature": 1.0, "top_p": 5e-324},
    "top_k 1": {"temperature": 1e300, "top_k": 1},
}


@pytest.mark.thorough
@pytest.mark.parametrize("how", SEARCHES)
def test_sampling_that_leaves_one_token_is_greedy_search(how, tiny):
    expected = tiny.nbest(GIVEN, 1, beam_size=1)
    found = tiny.nbest(GIVEN, 1, beam_size=1, **SEARCHES[how])
    assert [one[0].tokens for one in found] == [one[0].tokens for one in expected]


EXTREMES = {
    "temperature 1e30": {"temperature": 1e30},
    "temperature 1e300": {"temperature": 1e300},
    "top_k 1e9": {"temperature": 1.0, "top_k": 10**9},
    "top_k 1e30": {"temperature": 1.0, "top_k": 10**30},
    "top_p just below 1": {"temperature": 1.0, "top_p": 1 - 1e-16},
    "length penalty 10": {"length_penalty": 10.0},
    "a beam wider than the vocabulary": {"beam_size": 150},
    "the largest seed": {"temperature": 1.0, "seed": 2**32 - 1},
    "a seed of NumPy": {"temperature": 1.0, "seed": np.int64(3)},
    "a line number beyond 32 bits": {"temperature": 1.0, "first_line": 10**12},
    "one token at a time": {"tokens_per_batch": 1},
}


@pytest.mark.parametrize("how", thorough_after(4, EXTREMES))
def test_extreme_settings_give_translations(how, tiny):
    [[best]] = tiny.nbest(["rot haus"], 1, **EXTREMES[how])
    assert best.tokens
    assert np.isfinite([best.score, best.log_prob]).all()


def test_fewer_hypotheses_than_asked_for_are_no_error(tiny):
    [found] = tiny.nbest(["rot"], 150, beam_size=150, max_extra_length=1)
    assert 1 <= len(found) <= 150
    assert len({one.tokens for one in found}) == len(found)


def test_two_threads_translate_at_once(tiny):
    with ThreadPoolExecutor(2) as threads:
        assert [*threads.map(tiny.translate, [GIVEN] * 2)] == [tiny.translate(GIVEN)] * 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.parametrize(
    "work",
    [
        lambda t: t.translate(GIVEN),
        lambda t: score(t, GIVEN, GIVEN),
        lambda t: attention_maps(t, "rot"),
        lambda t: evaluate(t, None, "dev"),
    ],
    ids=["translate", "score", "attention_maps", "evaluate"],
)
def test_in_a_forked_process_it_is_refused_instead_of_hanging(work, tiny, monkeypatch):
    # A real fork would warn of its threads.
    monkeypatch.setitem(vars(tiny), "_process", os.getpid() + 1)
    with pytest.raises(UserError, match=r"forked.*spawn"):
        work(tiny)


def test_a_real_fork_ends_at_once(tiny):
    receiving, sending = multiprocessing.Pipe(duplex=False)

    def work():
        try:
            tiny.translate(GIVEN)
        except UserError as error:
            sending.send(str(error))

    process = multiprocessing.get_context("fork").Process(target=work)
    with pytest.warns(Warning, match="fork"):
        process.start()
    assert receiving.poll(60)
    assert "spawn" in receiving.recv()
    process.join()
