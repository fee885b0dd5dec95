"""Training and decoding are lowered for CPU, GPU and TPU on any machine: none needs an accelerator.

What is lowered becomes bytes, which another process could load and run; here the CPU does.
"""

import jax
import numpy as np
import pytest
from jax import export

from t2t_jax.batch import Batch, Sequence
from t2t_jax.config import Config
from t2t_jax.decoding.programs import Arrivals, Search, SearchInputs, Sizes, begin_work, proceed
from t2t_jax.decoding.scheduler import strategy_of
from t2t_jax.modules.models import make_decoding_model, make_model
from t2t_jax.parallel.mesh import batch_layout, make_mesh
from t2t_jax.training.state import abstract_state, create_state
from t2t_jax.training.step import abstract_batch, compile_train_step
from tests.tiny import tiny_sizes

pytestmark = pytest.mark.thorough

_PLATFORMS = ("cpu", "cuda", "tpu")
_VOCAB = 30
_CONFIG = Config().replace({**tiny_sizes(16, (2, 2)), "decoding.beam_size": 2})


@pytest.fixture(scope="module")
def mesh():
    return make_mesh(_CONFIG.parallel, jax.devices()[:1])


@pytest.fixture(scope="module")
def model():
    return make_model(_CONFIG, _VOCAB, None)


def _batch(layout):
    """Two passes of two rows; the last position of each row is padding."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(4, _VOCAB, (4, 8), dtype=np.int32)
    segments = np.ones_like(tokens)
    segments[:, -1] = 0
    positions = np.broadcast_to(np.arange(8, dtype=np.int32), (4, 8))
    return layout.put(Batch(*[Sequence(tokens, segments, positions)] * 2))


def _exported(function, *arguments):
    """A program for every platform, written and read back, that takes and gives lists of arrays."""
    leaves, tree = jax.tree.flatten(arguments)

    def flat(*leaves):
        return jax.tree.leaves(function(*jax.tree.unflatten(tree, leaves)))

    program = export.export(jax.jit(flat), platforms=_PLATFORMS)(*leaves)
    return export.deserialize(program.serialize())


def _assert_equal(found, expected):
    for one, other in zip(found, jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def _shapes(tree):
    return [(x.shape, np.dtype(x.dtype)) for x in jax.tree.leaves(tree)]


def test_the_training_step_is_lowered_for_every_platform(mesh, model):
    step = compile_train_step(_CONFIG, model, mesh)
    layout = batch_layout(mesh, rows=4, length=8, tokens_per_device=16)
    state = abstract_state(_CONFIG, model, mesh)
    batch = abstract_batch(layout, model.example(), 8, 8)
    program = _exported(step, state, batch)
    assert program.platforms == _PLATFORMS
    assert _shapes(program.in_avals) == _shapes((state, batch))
    metrics = 3 + 4  # sums of losses; norm, rate, and two counts
    assert _shapes(program.out_avals)[:-metrics] == _shapes(state)
    first = create_state(_CONFIG, model, mesh)
    found = program.call(*jax.tree.leaves((first, _batch(layout))))
    _assert_equal(found, step(first, _batch(layout)))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param({"decoding.temperature": 0.7}, marks=pytest.mark.slow),
        pytest.param({"decoding.beam_size": 1}, marks=pytest.mark.slow),
        pytest.param({"decoding.quantize": "int8"}, marks=pytest.mark.slow),
    ],
)
def test_decoding_is_lowered_for_every_platform(mesh, model, changes):
    decoding = _CONFIG.replace(changes).decoding
    strategy = strategy_of(decoding, decoding.beam_size)
    beams = strategy.beam_size
    decoding_model = make_decoding_model(_CONFIG.model, _VOCAB, None)
    search = Search(decoding_model, strategy, mesh, beams)
    sizes = Sizes(rows=3, max_arrivals=3, source_length=8, capacity=12, max_capacity=12)

    def translate(search_inputs, arrivals):
        work = begin_work(search, sizes, search_inputs)
        return proceed(search, search_inputs, work, arrivals, 0)[1].best

    params = create_state(_CONFIG, model, mesh).params
    params = decoding_model.prepare(params, decoding.quantize)
    inputs = np.random.default_rng(1).integers(4, _VOCAB, (3, 8), dtype=np.int32)
    lengths, numbers = np.full(3, 10, np.int32), np.arange(1, 4, dtype=np.int32)
    arrivals = Arrivals(np.arange(3, dtype=np.int32), inputs, lengths, numbers)
    arguments = SearchInputs(params, np.uint32(5)), arrivals
    program = _exported(translate, *arguments)
    assert program.platforms == _PLATFORMS
    assert _shapes(program.in_avals) == _shapes(arguments)
    assert ((3, beams, 12), np.dtype(np.int32)) in _shapes(program.out_avals)
    _assert_equal(program.call(*jax.tree.leaves(arguments)), translate(*arguments))
