"""Sentences that join a search under way get what they get among a closed list, and no less."""

import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait

import numpy as np
import pytest

from t2t_jax.config import DecodingConfig
from t2t_jax.decoding import row_group
from t2t_jax.decoding.forbidden import constraints_of
from t2t_jax.decoding.open_search import ClosedError, Limits, OpenSearch, QueueFullError
from t2t_jax.decoding.programs import Search, SearchInputs
from t2t_jax.decoding.row_group import Sentence
from t2t_jax.decoding.scheduler import decode, strategy_of
from t2t_jax.decoding.search.constraints import UNCONSTRAINED
from tests.decoding.random_models import sentences
from tests.selection import thorough_after

_EXTRA = 6
_LIMITS = Limits(rows=6, max_length=32, max_steps=3, max_waiting=500)


@pytest.fixture(scope="module")
def params(tiny):
    return tiny.model.prepare(tiny.params, "none")


def _search(tiny, beam_size):
    return Search(tiny.model, strategy_of(DecodingConfig(beam_size=beam_size)), tiny.mesh, 1)


@pytest.fixture
def opened(tiny, params):
    """A function that opens a search; it is closed after the test."""
    searches = []

    def open_(beam_size=1, limits=_LIMITS, constraints=UNCONSTRAINED):
        inputs = SearchInputs(params, np.uint32(0), constraints)
        searches.append(OpenSearch(_search(tiny, beam_size), inputs, _EXTRA, limits))
        return searches[-1]

    yield open_
    for search in searches:
        search.close()


class _Held:
    """Holds the search, once it has begun a sentence, until it may proceed."""

    def __init__(self, monkeypatch):
        self.begun, self.proceed = threading.Event(), threading.Event()
        collect = row_group.RowGroup.collect

        def held(group, progress):
            self.begun.set()
            self.proceed.wait(60)
            return collect(group, progress)

        monkeypatch.setattr(row_group.RowGroup, "collect", held)


@pytest.fixture(scope="module")
def sources(tiny):
    lines = sentences(60, 8, seed=3)
    return [tokens for tokens in tiny.encode(lines) if len(tokens) <= 32]


def _closed(tiny, params, sources, beam_size):
    decoding = DecodingConfig(beam_size=beam_size, max_extra_length=_EXTRA)
    sentences = [Sentence(tokens, len(tokens) + _EXTRA, 0) for tokens in sources]
    inputs = SearchInputs(params, np.uint32(0))
    found = dict(decode(_search(tiny, beam_size), inputs, decoding, sentences))
    return [found[index] for index in range(len(sources))]


def _assert_same(found, expected):
    lengths = expected.lengths
    np.testing.assert_array_equal(found.lengths, lengths)
    np.testing.assert_allclose(found.log_probs, expected.log_probs, rtol=1e-4)
    for tokens, other, length in zip(found.tokens, expected.tokens, lengths, strict=True):
        np.testing.assert_array_equal(tokens[:length], other[:length])


@pytest.mark.parametrize("beam_size", thorough_after(1, [1, 2]))
def test_sentences_get_what_they_get_in_a_closed_list(tiny, params, opened, sources, beam_size):
    expected = _closed(tiny, params, sources, beam_size)
    search = opened(beam_size)
    futures = [None] * len(sources)

    def client(first):
        rng = np.random.default_rng(first)
        for index in range(first, len(sources), 4):
            futures[index] = search.submit(sources[index])
            if rng.random() < 0.3:
                wait([futures[index]], timeout=60)

    with ThreadPoolExecutor(4) as clients:
        list(clients.map(client, range(4)))
    for future, result in zip(futures, expected, strict=True):
        _assert_same(future.result(60), result)


def test_nothing_is_compiled_after_the_warm_up(opened, sources):
    search = opened(limits=Limits(rows=3, max_length=32, max_steps=3))
    search.warm_up()
    names = "begin_work", "encode", "fit_memory", "admit", "resize_work", "proceed"
    programs = [getattr(row_group.programs, name) for name in names]
    before = [program._cache_size() for program in programs]
    futures = [search.submit(tokens) for tokens in sources]
    for future in futures[::3]:
        future.cancel()
    assert not wait(futures, timeout=60).not_done
    assert [program._cache_size() for program in programs] == before


@pytest.mark.thorough
def test_a_search_with_constraints_warms_up_and_keeps_them(tiny, opened, sources):
    decoding = DecodingConfig(beam_size=1, max_extra_length=_EXTRA, min_length=6)
    search = opened(constraints=constraints_of(decoding, tiny.vocabulary))
    search.warm_up()
    for future in [search.submit(tokens) for tokens in sources[:4]]:
        assert future.result(60).lengths[0] > 6


def test_a_sentence_that_is_given_up_makes_way(tiny, params, opened, sources, monkeypatch):
    one = Limits(rows=1, max_length=32, max_steps=1)
    monkeypatch.setattr("t2t_jax.decoding.open_search.num_groups", lambda *_: 1)
    search = opened(limits=one)
    long, short = max(sources, key=len), min(sources, key=len)
    held = _Held(monkeypatch)
    given_up = search.submit(long)
    assert held.begun.wait(60)
    late = search.submit(long, timeout=0.01)
    cancelled = search.submit(long)
    other = search.submit(short)
    assert search.num_waiting == 3
    time.sleep(0.02)
    assert given_up.cancel()
    assert cancelled.cancel()
    held.proceed.set()
    (expected,) = _closed(tiny, params, [short], 1)
    _assert_same(other.result(60), expected)
    with pytest.raises(TimeoutError, match="longer than its timeout"):
        late.result(60)
    for future in (given_up, cancelled):
        with pytest.raises(CancelledError):
            future.result(0)


def test_shorter_sentences_overtake_within_a_bound(opened, sources, monkeypatch):
    monkeypatch.setattr("t2t_jax.decoding.open_search.num_groups", lambda *_: 1)
    long, short = max(sources, key=len), min(sources, key=len)
    orders = []
    for seconds_per_token in (100.0, 0.0):
        limits = Limits(rows=1, max_length=32, seconds_per_token=seconds_per_token)
        search = opened(limits=limits)
        held = _Held(monkeypatch)
        futures = [search.submit(long)]
        assert held.begun.wait(60)
        order = []
        for name, tokens in (("long", long), ("short", short)):
            futures.append(search.submit(tokens))
            futures[-1].add_done_callback(lambda _, name=name, order=order: order.append(name))
        held.proceed.set()
        wait(futures, timeout=60)
        orders.append(order)
    assert orders == [["short", "long"], ["long", "short"]]


def test_long_sentences_come_together_in_the_first_group(opened, monkeypatch):
    monkeypatch.setattr("t2t_jax.decoding.open_search.num_groups", lambda *_: 0)  # none takes any
    search = opened(limits=Limits(rows=2, max_length=32, seconds_per_token=0.0))
    long, short = [4] * 30, [4] * 5

    def lengths(group):
        return [len(request.sentence.source) for request in search._next_arrivals(group, 0)]

    for tokens in [long, short, long, short, long, short, short]:
        search.submit(tokens)
    assert lengths(1) == [5, 5]
    assert lengths(0) == [30, 30]  # which were due first
    assert lengths(1) == [5, 5]
    for _ in range(6):  # the last long one has been passed over twice
        search.submit(short), search.submit(short)
        assert lengths(1) == [5, 5]
    search.submit(short), search.submit(short)
    assert lengths(1) == [30, 5]
    assert lengths(1) == [5]


def test_too_many_and_too_long_sentences_are_refused(opened, sources):
    search = opened(limits=Limits(rows=1, max_length=8, max_waiting=0))
    with pytest.raises(QueueFullError, match="0 sentences are already waiting"):
        search.submit([5, 1])
    with pytest.raises(ValueError, match="9 tokens of the source and 0 of the prefix"):
        search.submit([5] * 8 + [1])
    with pytest.raises(ValueError, match="1 of the prefix exceed the limits of 8 and 0"):
        search.submit(sources[0][:4], prefix=[5])
    search.close()
    with pytest.raises(ClosedError):
        search.submit([5, 1])


def test_sentences_that_were_given_up_leave_the_queue(opened, sources, monkeypatch):
    search = opened(limits=Limits(rows=1, max_length=32, max_steps=1, max_waiting=2))
    held = _Held(monkeypatch)
    first = search.submit(sources[0])
    assert held.begun.wait(60)
    given_up = [search.submit(sources[0]), search.submit(sources[0], timeout=0)]
    assert given_up[0].cancel()
    last = search.submit(sources[1])  # both make way
    assert isinstance(given_up[1].exception(timeout=60), TimeoutError)
    waiting = search.submit(sources[1])
    with pytest.raises(QueueFullError, match="2 sentences are already waiting"):
        search.submit(sources[1])
    held.proceed.set()
    assert wait([first, last, waiting], timeout=60).not_done == set()


def test_a_search_that_is_closed_ends_what_it_has_taken(opened, sources):
    search = opened()
    futures = [search.submit(tokens) for tokens in sources]
    search.close()
    assert all(future.done() and not future.exception() for future in futures)


def test_a_sentence_that_has_its_result_is_no_longer_under_way(opened, sources, monkeypatch):
    search, counts = opened(), []
    held = _Held(monkeypatch)  # so that the future has its callback before its result
    future = search.submit(sources[0])
    assert held.begun.wait(60)
    future.add_done_callback(lambda _: counts.append(search.num_live))
    held.proceed.set()
    search.close()
    assert counts == [0]


def test_a_failure_is_told_and_the_search_goes_on(tiny, params, opened, sources, monkeypatch):
    search = opened()
    real, failures = row_group.programs.proceed, [RuntimeError("out of memory")]

    def fail_once(*arguments, **options):
        if failures:
            raise failures.pop()
        return real(*arguments, **options)

    monkeypatch.setattr(row_group.programs, "proceed", fail_once)
    with pytest.raises(RuntimeError, match="out of memory"):
        search.submit(sources[0]).result(60)
    (expected,) = _closed(tiny, params, sources[:1], 1)
    _assert_same(search.submit(sources[0]).result(60), expected)
