"""The searches against enumeration, plain-Python searches and known distributions."""

import functools
import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_jax.decoding.search.hypotheses import IMPOSSIBLE, LengthPenalty, SearchResult
from t2t_jax.decoding.search.loop import admit, advance, begin, resize, results
from t2t_jax.decoding.search.reductions import Reductions, argmax_and_logsumexp
from t2t_jax.decoding.search.strategies import BeamSearch, Greedy, Sampling
from t2t_jax.kernels.cpu import CPU
from t2t_jax.kernels.gpu import GPU
from t2t_jax.kernels.tpu import TPU
from tests.selection import thorough_after

PAD, BOS, EOS = 0, 1, 2
STATES = 997
SENTENCES = np.arange(12)
BEAM = BeamSearch(EOS, 3, 0.6, 3)

# The toy model: a hypothesis is in a state, (sum of weight[position] * (token + 1) + 31 * sentence)
# mod 997, and a table says the logits of each state. A cache entry too many, too few, or of another
# hypothesis leads to another state. Entries not yet written hold 500 and would be noticed too.
WEIGHTS = np.random.default_rng(7).integers(1, STATES, size=32)


def make_table(seed, vocab_size, eos_bonus=0.0):
    table = np.random.default_rng(seed).normal(size=(STATES, vocab_size)).astype(np.float32) * 1.5
    table[:, EOS] += eos_bonus
    return table


def toy_step(table, sentences):
    def step(tokens, positions, clock, mask, cache):
        batch_size, beam_size, capacity, _ = mask.shape
        place = clock % capacity
        cache = jax.lax.dynamic_update_slice_in_dim(cache, tokens, place * beam_size, axis=1)
        entries = cache.reshape(batch_size, capacity, beam_size) + 1
        position_at = positions[:, None] - (place - jnp.arange(capacity)) % capacity  # [b, t]
        weights = jnp.asarray(WEIGHTS, jnp.int32)[position_at]
        state = jnp.einsum("bjti,bti,bt->bj", mask.astype(jnp.int32), entries, weights)
        return table[(state + 31 * sentences[:, None]) % STATES], cache

    return step


def toy_cache(batch_size, max_length, beam_size):
    return jnp.full((batch_size, max_length * beam_size), 500, jnp.int32)


def search_from(strategy, step, cache, limits, capacity, keys=None):
    how = {"beam_size": strategy.beam_size, "capacity": capacity, "bos_id": BOS, "keys": keys}
    state = begin(cache, jnp.minimum(limits, capacity), **how)
    return results(strategy, advance(strategy, step, state))


def toy_search(strategy, table, sentences, max_lengths, max_length=8, keys=None):
    cache = toy_cache(len(sentences), max_length, strategy.beam_size)
    step = toy_step(table, sentences)
    return search_from(strategy, step, cache, max_lengths, max_length, keys)


compiled_search = jax.jit(toy_search, static_argnames=("strategy", "max_length"))


def to_numpy(result):
    result = SearchResult(*map(np.asarray, result))
    for array in result:
        assert np.isfinite(array).all()
    assert result.scores.dtype == result.log_probs.dtype == np.float32
    assert result.tokens.dtype == result.lengths.dtype == np.int32
    return result


def hypotheses(result, row):
    """The n-best list of one sentence: [(tokens, score, log_prob)]; checks what is left empty."""
    found = []
    for tokens, score, log_prob, length in zip(*(array[row] for array in result), strict=True):
        assert (tokens[length:] == PAD).all()
        if score == IMPOSSIBLE:
            assert length == 0
        else:
            found.append((tuple(tokens[:length].tolist()), float(score), float(log_prob)))
    return found


def assert_same_hypotheses(found, expected):
    assert [tokens for tokens, _, _ in found] == [tokens for tokens, _, _ in expected]
    for (_, *numbers), (_, *expected_numbers) in zip(found, expected, strict=True):
        assert numbers == pytest.approx(expected_numbers, rel=1e-5, abs=1e-5)


# The oracles: float64, one hypothesis at a time, no early stop.


def next_log_probs(table, sentence, tokens):
    history = np.array([BOS, *tokens])
    state = (WEIGHTS[: len(history)] * (history + 1)).sum() + 31 * sentence
    logits = table[state % STATES].astype(np.float64)
    return logits - np.log(np.exp(logits).sum())


def penalised(log_prob, length, alpha):
    return log_prob / ((5 + length) / 6) ** alpha


def python_beam_search(table, sentence, beam_size, alpha, limit):
    live, finished = [((), 0.0)], []
    for length in range(1, limit + 1):
        candidates = [
            ((*tokens, token), log_prob + step_log_prob)
            for tokens, log_prob in live
            for token, step_log_prob in enumerate(next_log_probs(table, sentence, tokens))
        ]
        candidates.sort(key=lambda candidate: -candidate[1])
        candidates = candidates[: 2 * beam_size]
        live = [candidate for candidate in candidates if candidate[0][-1] != EOS][:beam_size]
        finished += [
            (tokens, penalised(log_prob, length, alpha), log_prob)
            for tokens, log_prob in candidates
            if tokens[-1] == EOS
        ]
        finished.sort(key=lambda hypothesis: -hypothesis[1])
        finished = finished[:beam_size]
    return finished or [(tokens, penalised(lp, limit, alpha), lp) for tokens, lp in live]


def limits_array(limits):
    return jnp.asarray(limits, jnp.int32)


def sentence_keys(sentences, seed=0):
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), jnp.asarray(sentences))


# {"k alpha": hypotheses of each sentence}, as a beam search of transformers finds them.
BY_TRANSFORMERS = json.loads(
    (Path(__file__).parents[1] / "goldens/beam_goldens.json").read_text(encoding="utf-8")
)
SEARCHES = ["1 0.0", "2 1.0", "3 2.0", "4 0.6", "8 0.0"]
SEARCHES += sorted(BY_TRANSFORMERS["searches"].keys() - SEARCHES)


@pytest.mark.parametrize("search_name", thorough_after(5, SEARCHES))
def test_the_rule_of_transformers_finds_the_hypotheses_of_that_library(search_name):
    beam_size, alpha = int(search_name.split()[0]), float(search_name.split()[1])
    table = jnp.array(BY_TRANSFORMERS["table"], jnp.float32)
    limits = limits_array(BY_TRANSFORMERS["limits"])
    sentences, capacity = jnp.arange(len(limits))[:, None], table.shape[1]

    def step(tokens, positions, clock, mask, cache):
        return table[sentences, positions[:, None], tokens], cache

    strategy = Greedy(EOS)
    if beam_size > 1:
        strategy = BeamSearch(EOS, beam_size, alpha, num_best=1, transformers_rule=True)
    result = jax.jit(lambda: search_from(strategy, step, (), limits, capacity))()
    for sentence, expected in enumerate(BY_TRANSFORMERS["searches"][search_name]):
        ours = hypotheses(to_numpy(result), sentence)
        assert ["".join(map(str, tokens)) for tokens, _, _ in ours] == [one for one, _ in expected]
        scores = [score for _, score in expected]
        assert [score for _, score, _ in ours] == pytest.approx(scores, rel=1e-5, abs=1e-6)


def test_length_penalty_matches_hand_computed_values():
    lengths = jnp.array([1, 7, 19])  # (5 + length) / 6 is 1, 2 and 4
    np.testing.assert_allclose(LengthPenalty(0.0)(lengths), [1, 1, 1])
    np.testing.assert_allclose(LengthPenalty(1.0)(lengths), [1, 2, 4])
    np.testing.assert_allclose(LengthPenalty(0.5)(lengths), [1, math.sqrt(2), 2], rtol=1e-6)
    np.testing.assert_allclose(LengthPenalty(0.6)(lengths), [1, 1.5157166, 2.2973967], rtol=1e-6)


@pytest.mark.parametrize(("beam_size", "alpha"), [(1, 0.0), (2, 1.5), (3, 0.6)])
@settings(max_examples=10)
@given(
    seed=st.integers(0, 10_000),
    eos_bonus=st.sampled_from([-4.0, -1.0, 0.0, 2.0]),
    limits=st.lists(st.integers(1, 8), min_size=12, max_size=12),
)
def test_beam_search_equals_plain_python_beam_search(beam_size, alpha, seed, eos_bonus, limits):
    table = make_table(seed, 7, eos_bonus)
    strategy = BeamSearch(EOS, beam_size, alpha, beam_size)
    result = to_numpy(compiled_search(strategy, table, SENTENCES, limits_array(limits)))
    for sentence, limit in enumerate(limits):
        expected = python_beam_search(table, sentence, beam_size, alpha, limit)
        assert_same_hypotheses(hypotheses(result, sentence), expected)


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), limits=st.lists(st.integers(0, 8), min_size=12, max_size=12))
def test_greedy_search_takes_the_most_probable_token_at_every_position(seed, limits):
    table = make_table(seed, 7)
    result = to_numpy(compiled_search(Greedy(EOS), table, SENTENCES, limits_array(limits)))
    for sentence, limit in enumerate(limits):
        tokens, log_prob = (), 0.0
        while len(tokens) < limit and tokens[-1:] != (EOS,):
            choices = next_log_probs(table, sentence, tokens)
            tokens, log_prob = (*tokens, int(choices.argmax())), log_prob + choices.max()
        assert_same_hypotheses(hypotheses(result, sentence), [(tokens, log_prob, log_prob)])


@pytest.mark.parametrize("kernels", [GPU, TPU], ids=["gpu", "tpu"])
@pytest.mark.parametrize(
    "strategy", [Greedy(EOS), BEAM, Sampling(EOS)], ids=["greedy", "beam", "sampling"]
)
def test_the_forms_for_accelerators_find_the_same(strategy, kernels):
    table, limits = jnp.array(make_table(3, 300)), jnp.full(len(SENTENCES), 8)
    sizes = {"beam_size": strategy.beam_size, "capacity": 8, "bos_id": BOS}

    @functools.partial(jax.jit, static_argnums=0)
    def found(kernels):
        cache = toy_cache(len(SENTENCES), 8, strategy.beam_size)
        state = begin(cache, limits, keys=sentence_keys(SENTENCES), **sizes)
        reductions = Reductions(kernels.logsumexp, kernels.greatest or argmax_and_logsumexp)
        state = advance(strategy, toy_step(table, SENTENCES), state, reductions=reductions)
        return results(strategy, state)

    expected = to_numpy(found(CPU))
    ours = to_numpy(found(kernels))
    np.testing.assert_array_equal(ours.tokens, expected.tokens)
    np.testing.assert_allclose(ours.log_probs, expected.log_probs, rtol=1e-5)


@pytest.mark.parametrize(
    "strategy", [Greedy(EOS), Sampling(EOS, 1.0, 4, 0.95), BEAM], ids=["greedy", "sample", "beam"]
)
def test_a_sentence_decoded_alone_gives_what_it_gives_in_a_batch(strategy):
    table = make_table(11, 7)
    limits = np.array([8, 1, 3, 8, 0, 5, 8, 2, 8, 7, 8, 4])

    def decode(rows):
        batch = SENTENCES[rows], limits_array(limits[rows])
        return to_numpy(compiled_search(strategy, table, *batch, keys=sentence_keys(rows)))

    together = decode(np.arange(12))
    reversed_rows = decode(np.arange(12)[::-1])
    for row in range(12):
        alone = decode(np.array([row]))
        for batched, turned, single in zip(together, reversed_rows, alone, strict=True):
            np.testing.assert_array_equal(batched[row], single[0])
            np.testing.assert_array_equal(turned[11 - row], single[0])


def test_best_live_hypotheses_are_returned_at_each_limit_if_none_ended():
    table = make_table(5, 7, eos_bonus=-60.0)  # never among the best 6 of the first 7 candidates
    limits = np.array([8, 1, 3, 20, 0, 5, 8, 2, 8, 7, 8, 4])  # 20 is more than there is room for
    result = to_numpy(compiled_search(BEAM, table, SENTENCES, limits_array(limits)))
    for sentence, limit in enumerate(np.minimum(limits, 8)):
        found = hypotheses(result, sentence)
        assert {len(tokens) for tokens, _, _ in found} == {limit}
        assert_same_hypotheses(found, python_beam_search(table, sentence, 3, 0.6, limit))


def test_places_without_a_hypothesis_are_empty():
    table = make_table(0, 7, eos_bonus=5.0)
    result = to_numpy(compiled_search(BEAM, table, SENTENCES, limits_array([1] * 12)))
    for sentence in SENTENCES:  # one token, of which one ends: one hypothesis for three places
        assert [tokens for tokens, _, _ in hypotheses(result, sentence)] == [(EOS,)]
    assert (result.scores[:, 1:] == IMPOSSIBLE).all()


def test_search_stops_early_without_changing_the_result():
    table = make_table(2, 5, eos_bonus=2.5)
    sentences, limits = np.arange(3), np.full(3, 30)
    steps = []

    @functools.partial(jax.jit, static_argnames="num_best")
    def counted_search(table, num_best):
        step = toy_step(table, sentences)

        def counted_step(tokens, positions, clock, mask, cache):
            jax.debug.callback(lambda clock: steps.append(int(clock)), clock)
            return step(tokens, positions, clock, mask, cache)

        strategy, cache = BeamSearch(EOS, 2, 0.6, num_best), toy_cache(3, 30, 2)
        return search_from(strategy, counted_step, cache, limits_array(limits), 30)

    counts = {}
    for num_best in (1, 2):
        steps.clear()
        result = to_numpy(counted_search(table, num_best))
        jax.effects_barrier()
        counts[num_best] = len(steps)
        for sentence in sentences:
            expected = python_beam_search(table, sentence, 2, 0.6, 30)
            found = hypotheses(result, sentence)
            assert_same_hypotheses(found[:num_best], expected[:num_best])
    assert counts[1] < counts[2] < 20


def test_forbidden_tokens_never_appear():
    table = make_table(4, 7)
    table[:, PAD], table[:, BOS] = -np.inf, -1e9
    limits = limits_array(np.full(len(SENTENCES), 8))
    for strategy in (BEAM, Sampling(EOS, temperature=2.0, top_p=0.99)):
        keys = sentence_keys(SENTENCES)
        result = to_numpy(compiled_search(strategy, table, SENTENCES, limits, keys=keys))
        for sentence in SENTENCES:
            for tokens, _, log_prob in hypotheses(result, sentence):
                assert not {PAD, BOS} & set(tokens)
                assert log_prob > -100


def test_scores_are_float32_for_bfloat16_logits():
    table = make_table(6, 5)
    rounded = jnp.asarray(table, jnp.bfloat16)
    limits = np.full(len(SENTENCES), 6)
    strategy = BeamSearch(EOS, 2, 0.6, 2)
    result = to_numpy(compiled_search(strategy, rounded, SENTENCES, limits_array(limits), 6))
    for sentence in SENTENCES:
        exact = python_beam_search(np.asarray(rounded, np.float32), sentence, 2, 0.6, 6)
        (_, score, _), *_ = hypotheses(result, sentence)
        assert score == pytest.approx(exact[0][1], rel=1e-5)


# Sentences that come and go.


@functools.partial(jax.jit, static_argnums=0)
def let_in(strategy, state, places, limits, keys):
    how = {"beam_size": strategy.beam_size, "capacity": state.capacity, "bos_id": BOS, "keys": keys}
    return admit(state, begin((), limits, **how).rows, places)


@functools.partial(jax.jit, static_argnums=0)
def search_on(strategy, table, sentences, state, leave):
    return advance(strategy, toy_step(table, sentences), state, leave)


@functools.partial(jax.jit, static_argnums=(1, 2))
def fit(state, num_rows, capacity):
    beam_size = state.rows.live.last.shape[1]
    return resize(state, num_rows, capacity, toy_cache(num_rows, capacity, beam_size), -1)


read = jax.jit(results, static_argnums=0)


def decode_in_turn(strategy, table, limits, capacity, num_rows=3):
    """All sentences through a few rows, in ring buffers that grow if they are full; the results."""
    none = jnp.zeros(num_rows, jnp.int32)
    keys = sentence_keys(np.zeros(num_rows, int))
    how = {"beam_size": strategy.beam_size, "capacity": capacity, "bos_id": BOS, "keys": keys}
    state = begin(toy_cache(num_rows, capacity, strategy.beam_size), none, **how)
    held, waiting, found = np.full(num_rows, -1), list(SENTENCES), {}
    while waiting or (held >= 0).any():
        free = np.flatnonzero(held < 0)[:2]
        places = np.full(2, num_rows)  # beyond the last row: nobody
        places[: len(free)] = free
        if len(waiting) < len(free):
            places[len(waiting) :] = num_rows
        for place in places[places < num_rows]:
            held[place] = waiting.pop(0)
        coming = np.array([held[place] if place < num_rows else 0 for place in places])
        coming_limits = jnp.array(limits)[coming]
        state = let_in(strategy, state, jnp.array(places), coming_limits, sentence_keys(coming))
        leave = num_rows - 1 if waiting else 0
        state = search_on(strategy, table, jnp.array(held), state, leave)
        result = to_numpy(read(strategy, state))
        searching = np.asarray(state.rows.searching)
        for row in np.flatnonzero((held >= 0) & ~searching):
            found[int(held[row])] = hypotheses(result, row)
        held[~searching] = -1
        ages = np.asarray(state.positions)[searching]
        if (ages >= state.capacity).any():
            state = fit(state, num_rows, state.capacity + 5)
        elif state.capacity > capacity and (ages < capacity).all():
            state = fit(state, num_rows, capacity)
        if num_rows < 5 and len(waiting) < 6:  # two more
            num_rows, held = num_rows + 2, np.append(held, [-1, -1])
            state = fit(state, num_rows, state.capacity)
    return found


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("strategy", "capacity"), [(Greedy(EOS), 8), (Sampling(EOS, 1.0, 4, 0.95), 3), (BEAM, 3)]
)
def test_sentences_that_come_and_go_give_what_they_give_in_one_batch(strategy, capacity):
    table = make_table(13, 7, -0.5)
    limits = np.array([8, 1, 3, 8, 2, 5, 8, 2, 8, 7, 8, 4])
    batch = SENTENCES, limits_array(limits)
    together = to_numpy(compiled_search(strategy, table, *batch, keys=sentence_keys(SENTENCES)))
    found = decode_in_turn(strategy, table, limits, capacity)
    assert sorted(found) == SENTENCES.tolist()
    for sentence in SENTENCES:
        assert_same_hypotheses(found[sentence], hypotheses(together, sentence))


@pytest.mark.parametrize("clock", [3, 14])
@pytest.mark.parametrize(("capacity", "new_capacity"), [(5, 8), (8, 5), (10, 2), (2, 10)])
def test_the_newest_steps_stay_at_their_places_also_in_a_cache_shorter_than_the_room(
    clock, capacity, new_capacity
):
    slots, longest = 2, 4

    def ring(places):
        """The number of the step in all slots of its place; -1 where there is none."""
        numbers = np.full(places, -1)
        for step in range(max(0, clock - places), clock):
            numbers[step % places] = step
        return np.repeat(numbers, slots)

    def cache(capacity, of=lambda places: np.full(places * slots, -1)):
        entries = jnp.array(of(min(capacity, longest)))
        return entries[None], entries[None, None]

    none = jnp.zeros(1, jnp.int32)
    state = begin(cache(capacity, ring), none, beam_size=slots, capacity=capacity, bos_id=BOS)
    state = state._replace(clock=jnp.int32(clock))
    found = resize(state, 2, new_capacity, cache(new_capacity), (1, 2))
    expected = ring(min(new_capacity, longest))
    known = expected >= max(0, clock - min(capacity, longest))  # the old cache had no older steps
    for entries in (found.cache[0][1], found.cache[1][1, 0]):
        assert entries.shape == expected.shape
        np.testing.assert_array_equal(np.asarray(entries)[known], expected[known])
    assert found.clock == clock
    assert found.capacity == new_capacity


# Sampling.

LOGITS = np.log(np.array([0.05, 0.3, 0.1, 0.2, 0.1, 0.25]))
NO_EOS = 99


@functools.cache
def two_draws(temperature, top_k, top_p):
    """Two tokens each for 6000 sentences, whatever came before: [6000, 2]."""
    count = 6000

    def step(tokens, positions, clock, mask, cache):
        return jnp.broadcast_to(jnp.asarray(LOGITS, jnp.float32), (count, 1, 6)), cache

    strategy = Sampling(NO_EOS, temperature, top_k, top_p)
    limits = jnp.full((count,), 2)
    found = jax.jit(lambda keys: search_from(strategy, step, (), limits, 2, keys))
    return to_numpy(found(sentence_keys(np.arange(count), seed=1)))


# (temperature, top_k, top_p), and the distribution that is left of LOGITS.
CUTS = [
    ((1.0, 0, 1.0), [0.05, 0.3, 0.1, 0.2, 0.1, 0.25]),
    ((0.5, 0, 1.0), np.array([0.0025, 0.09, 0.01, 0.04, 0.01, 0.0625]) / 0.215),
    ((1.0, 3, 1.0), np.array([0, 0.3, 0, 0.2, 0, 0.25]) / 0.75),
    ((1.0, 100, 1.0), [0.05, 0.3, 0.1, 0.2, 0.1, 0.25]),
    ((1.0, 0, 0.01), [0, 1, 0, 0, 0, 0]),
    ((1.0, 0, 0.8), np.array([0, 0.3, 0.1, 0.2, 0, 0.25]) / 0.85),  # two tokens tie; one is enough
    ((1.0, 3, 0.7), np.array([0, 0.3, 0, 0, 0, 0.25]) / 0.55),  # 0.55 / 0.75 is more than 0.7
    ((2.0, 2, 1.0), np.sqrt([0, 0.3, 0, 0, 0, 0.25]) / (np.sqrt(0.3) + 0.5)),
]


@pytest.mark.parametrize(("how", "expected"), CUTS)
def test_sampled_frequencies_follow_the_distribution(how, expected):
    tokens = two_draws(*how).tokens[:, 0]  # [sentence, position]
    expected = np.asarray(expected)
    for drawn in tokens.T:
        counts = np.bincount(drawn, minlength=6)
        support = expected > 0
        assert counts[~support].sum() == 0
        assert (counts[support] > 0).all()
        wanted = expected[support] * len(tokens)
        # 0.999 quantile of chi-square with 5 degrees of freedom.
        assert ((counts[support] - wanted) ** 2 / wanted).sum() < 20.5


@jax.jit
def half_of_the_probability(logits):
    """One token each for 2000 sentences, with top_p=0.5."""

    def step(tokens, positions, clock, mask, cache):
        return jnp.tile(logits, (2000, 1, 1)), cache

    keys = sentence_keys(np.arange(2000))
    return search_from(Sampling(EOS, top_p=0.5), step, (), jnp.full((2000,), 1), 1, keys)


@settings(max_examples=20)
@given(
    weights=st.lists(st.integers(1, 5), min_size=12, max_size=12).filter(lambda w: sum(w) % 2 == 1)
)
def test_top_p_keeps_the_fewest_tokens_that_hold_the_share(weights):
    kept, held = set(), 0
    for token in sorted(range(12), key=lambda token: -weights[token]):
        if held < sum(weights) / 2:  # the sum is odd: never a matter of rounding
            kept.add(token)
            held += weights[token]
    drawn = half_of_the_probability(jnp.log(jnp.array(weights, jnp.float32)))
    assert set(np.asarray(drawn.tokens).ravel().tolist()) == kept


def test_draws_at_two_positions_are_independent():
    first, second = two_draws(1.0, 0, 1.0).tokens[:, 0].T
    counts = np.bincount(first * 6 + second, minlength=36)
    wanted = np.outer(np.exp(LOGITS), np.exp(LOGITS)).ravel() * len(first)
    # 0.999 quantile of chi-square with 35 degrees of freedom.
    assert ((counts - wanted) ** 2 / wanted).sum() < 66.6


@pytest.mark.parametrize("how", [(1.0, 0, 1.0), (0.5, 0, 1.0), (1.0, 3, 0.7)])
def test_samples_report_the_log_probability_under_the_model_itself(how):
    result = two_draws(*how)
    np.testing.assert_allclose(
        result.log_probs[:, 0], LOGITS[result.tokens[:, 0]].sum(axis=1), rtol=1e-5
    )
