"""Decoding position by position with a cache, against the full forward pass."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.batch import Sequence
from t2t_jax.kernels.cpu import CPU, CPU_BFLOAT16
from t2t_jax.kernels.gpu import CUDNN_GPU, GPU
from t2t_jax.kernels.tpu import TPU
from t2t_jax.modules.decoding_model import LastTokens
from t2t_jax.modules.ensemble import Ensemble, join_parameters
from tests.selection import thorough_after

_BOS, _LENGTH, _BEAMS = 1, 5, 3

# Two sentences with three hypotheses each, over five positions. `_TOKENS[b, t, j]` is the token
# that hypothesis j of sentence b feeds at position t; `_PARENTS[b, t, j]` the slot of position
# t - 1 that it continues. Slots die, split in two and in three, and cross over.
_TOKENS = np.array(
    [
        [[1, 1, 1], [3, 4, 5], [6, 7, 8], [9, 10, 3], [4, 5, 6]],
        [[1, 1, 1], [5, 5, 9], [2, 4, 4], [8, 3, 3], [7, 9, 10]],
    ]
)
_PARENTS = np.array(
    [
        [[0, 1, 2], [0, 0, 0], [2, 0, 2], [1, 1, 1], [2, 0, 1]],
        [[0, 1, 2], [0, 0, 0], [0, 1, 2], [1, 2, 0], [0, 0, 2]],
    ]
)
_SOURCES = [[[3, 4, 5, 6, 2]], [[7, 2]]]


def _ancestry(b, t, j):
    """The slot at each position up to `t` that belongs to hypothesis `j`, by following parents."""
    slots = [j]
    for position in range(t, 0, -1):
        slots.append(int(_PARENTS[b, position, slots[-1]]))
    return slots[::-1]


def _mask(t):
    mask = np.zeros((2, _BEAMS, _LENGTH, _BEAMS), bool)
    for b, j in np.ndindex(2, _BEAMS):
        for position, slot in enumerate(_ancestry(b, t, j)):
            mask[b, j, position, slot] = True
    return jnp.array(mask)


@partial(jax.jit, static_argnums=0)
def _step(decoding, variables, last, cache, memory):
    return decoding.step(decoding.prepare(variables["params"]), last, cache, memory)


@partial(jax.jit, static_argnums=0)
def _memory(decoding, variables, inputs):
    return decoding.memory(decoding.prepare(variables["params"]), inputs)


def _first_step(model, inputs, cache=None):
    """The logits of the first position of both sentences, and the cache after it."""
    memory = _memory(model.decoding, model.variables, inputs)
    if cache is None:
        cache = model.decoding.empty_cache(2, _BEAMS, _LENGTH)
    return _step(model.decoding, model.variables, _last(0), cache, memory)


def _last(t):
    """The tokens at position `t` of both sentences, at the place of the cache with that number."""
    return LastTokens(jnp.array(_TOKENS[:, t]), jnp.full(2, t), jnp.array(t), _mask(t))


_DECODER_ONLY = {
    "architecture": "decoder_only",
    "prefix_attention": True,
    "position": "alibi",
    "attention_window": 4,
}


@pytest.mark.parametrize("members", thorough_after(1, [2, 1]))
def test_axes_are_those_that_become_longer(model, make_batch, members):
    alone = model.decoding
    decoding = Ensemble((alone,) * members) if members > 1 else alone
    params = model.variables["params"]
    params = join_parameters([params] * members) if members > 1 else params
    prepared = jax.eval_shape(partial(decoding.prepare, quantize="none"), params)

    def shapes(room, source_length):
        inputs, _ = make_batch(_SOURCES, [[], []], source_length)
        memory = jax.eval_shape(decoding.memory, prepared, inputs)
        return jax.eval_shape(partial(decoding.empty_cache, 2, _BEAMS, room)), memory

    def check(axis, short, long, factor):
        expected = np.add(short.shape, np.eye(short.ndim, dtype=int)[axis] * factor)
        np.testing.assert_array_equal(long.shape, expected)

    short, long = shapes(1, 8), shapes(2, 10)  # windows bound a cache of more places
    jax.tree.map(partial(check, factor=_BEAMS), decoding.axes(_BEAMS).slots, short[0], long[0])
    jax.tree.map(partial(check, factor=2), decoding.axes().sources, short[1], long[1])


def test_cached_steps_of_branching_hypotheses_equal_full_passes(model, make_batch):
    inputs, _ = make_batch(_SOURCES, [[], []])
    memory = _memory(model.decoding, model.variables, inputs)
    cache = model.decoding.empty_cache(2, _BEAMS, _LENGTH)
    for t in range(_LENGTH):
        logits, cache = _step(model.decoding, model.variables, _last(t), cache, memory)
        # The hypotheses as six independent rows. A path starts with <s>, which the model puts there
        # itself; the last target of a row is not seen by its own logits.
        paths = []
        for b, j in np.ndindex(2, _BEAMS):
            path = [int(_TOKENS[b, p, slot]) for p, slot in enumerate(_ancestry(b, t, j))]
            assert path[0] == _BOS
            paths.append([[*path[1:], 0]])
        sources = [_SOURCES[b] for b, _ in np.ndindex(2, _BEAMS)]
        full = model.logits(make_batch(sources, paths, target_length=_LENGTH))
        expected = full[:, t].reshape(2, _BEAMS, -1)
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernels", thorough_after(1, [CPU, CUDNN_GPU]), ids=["cpu", "gpu"])
@pytest.mark.parametrize(
    "changes",
    [{}, _DECODER_ONLY, {"position": "alibi", "attention_window": 2, "num_kv_heads": 1}],
    ids=["paper", "decoder_only", "others"],
)
def test_cached_steps_of_one_hypothesis_of_one_sentence_equal_the_full_pass(
    make_model, make_batch, changes, kernels
):
    model = make_model(**changes, kernels=kernels)
    path = [3, 7, 4, 9]
    batch = make_batch(_SOURCES[:1], [[path]], target_length=len(path))
    memory = _memory(model.decoding, model.variables, batch.inputs)
    cache = model.decoding.empty_cache(1, 1, len(path))
    steps = []
    for t, token in enumerate([_BOS, *path[:-1]]):
        mask = (jnp.arange(len(path)) <= t)[None, None, :, None]
        last = LastTokens(jnp.array([[token]]), jnp.full(1, t), jnp.array(t), mask)
        logits, cache = _step(model.decoding, model.variables, last, cache, memory)
        steps.append(logits)
    np.testing.assert_allclose(jnp.concatenate(steps, 1), model.logits(batch), rtol=1e-4, atol=1e-5)


def test_unused_slots_of_the_cache_are_never_read(make_model, make_batch):
    model = make_model()
    inputs, _ = make_batch(_SOURCES, [[], []])
    empty = model.decoding.empty_cache(2, _BEAMS, _LENGTH)
    garbage = jax.tree.map(lambda x: jnp.full_like(x, 1e6), empty)
    clean, _ = _first_step(model, inputs, empty)
    dirty, _ = _first_step(model, inputs, garbage)
    np.testing.assert_array_equal(clean, dirty)


@pytest.mark.parametrize("length", [8, 2048])  # of which the second is attended to in blocks
def test_a_memory_of_no_sources_has_no_rows(model, length):
    params = model.variables["params"]
    prepared = jax.eval_shape(partial(model.decoding.prepare, quantize="none"), params)
    tokens = jax.ShapeDtypeStruct((0, length), jnp.int32)
    memory = jax.eval_shape(model.decoding.memory, prepared, Sequence(tokens, tokens, tokens))
    assert {leaf.shape[0] for leaf in jax.tree.leaves(memory)} == {0}


def test_padding_of_the_source_changes_no_step(make_model, make_batch):
    model = make_model()
    logits = []
    for length in (5, 8):
        inputs, _ = make_batch(_SOURCES, [[], []], source_length=length)
        padded = jnp.where(inputs.segments == 0, 9, inputs.tokens)
        logits.append(_first_step(model, inputs._replace(tokens=padded))[0])
    np.testing.assert_allclose(*logits, rtol=1e-4, atol=1e-5)


def test_biases_of_products_are_rounded_with_their_matrices_for_accelerators_alone(make_model):
    for kernels, dtype in ((CPU, jnp.float32), (GPU, jnp.bfloat16), (TPU, jnp.bfloat16)):
        model = make_model(compute_dtype="bfloat16", attention_bias=True, kernels=kernels)
        layer = model.decoding.prepare(model.variables["params"])["decoder"]["layers_0"]
        biases = layer["feed_forward"]["bias_1"], layer["self_attention"]["output"]["bias"]
        assert {x.dtype for x in biases} == {jnp.dtype(dtype)}
        assert layer["feed_forward_residual"]["norm"]["bias"].dtype == jnp.float32


@pytest.fixture(params=[CPU, CPU_BFLOAT16], ids=["cpu", "cpu with bfloat16"])
def narrow(request, make_model):
    """A model in bfloat16."""
    return make_model(d_k=6, d_v=10, compute_dtype="bfloat16", kernels=request.param)


def test_cache_of_bfloat16_holds_keys_and_values_of_their_own_widths(narrow):
    dtype = jnp.bfloat16 if narrow.module.kernels is CPU else jnp.float32
    cache = narrow.decoding.empty_cache(2, _BEAMS, _LENGTH)
    assert [[(x.shape, x.dtype) for x in layer] for layer in cache] == 2 * [
        [((2, 2, 6, 15), dtype), ((2, 2, 15, 10), dtype)]
    ]


def test_prepare_leaves_the_parameters_of_its_caller_as_they_are(narrow):
    params = dict(narrow.variables["params"])
    before = jax.tree.leaves_with_path(params)
    prepared = narrow.decoding.prepare(params)
    assert jnp.dtype(jnp.bfloat16) in {x.dtype for x in jax.tree.leaves(prepared)}
    after = jax.tree.leaves_with_path(params)
    assert [(name, id(x)) for name, x in after] == [(name, id(x)) for name, x in before]


def test_bfloat16_steps_give_float32_logits_near_the_full_pass(narrow, make_batch):
    inputs, _ = make_batch(_SOURCES, [[], []])
    cache = narrow.decoding.empty_cache(2, _BEAMS, _LENGTH)
    logits, new_cache = _first_step(narrow, inputs, cache)
    assert logits.dtype == jnp.float32
    assert jax.tree.map(lambda x: x.dtype, new_cache) == jax.tree.map(lambda x: x.dtype, cache)
    full = narrow.logits(make_batch(_SOURCES, [[[0]], [[0]]]))[:, :1]
    np.testing.assert_allclose(logits, np.repeat(full, _BEAMS, 1), atol=0.05 * np.abs(full).max())
