"""A search over sources that are no tokens: frames of numbers, as of speech."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, Int

from t2t_jax.batch import BOS_ID, EOS_ID, Batch, one_a_row
from t2t_jax.config import Config
from t2t_jax.decoding.programs import Search, SearchInputs
from t2t_jax.decoding.row_group import Sentence
from t2t_jax.decoding.scheduler import decode, strategy_of
from t2t_jax.modules.cached_decoding import TransformerDecoding
from t2t_jax.modules.network import declared_parameters
from t2t_jax.modules.transformer import Transformer
from t2t_jax.parallel.mesh import make_mesh
from tests.tiny import tiny_sizes

_VALUES, _VOCAB, _EXTRA = 3, 12, 6
_CONFIG = Config().replace(
    {**tiny_sizes(16, (1, 1)), "decoding.max_extra_length": _EXTRA, "decoding.tokens_per_batch": 64}
)


class Frames(NamedTuple):
    """Vectors of numbers in the place of tokens."""

    values: Float[Array, "b s values"]
    segments: Int[Array, "b s"]
    positions: Int[Array, "b s"]


class FrameSources:
    """The form of sources that are arrays `[frames, values]`."""

    def blank(self, length):
        return np.zeros((length, _VALUES), np.float32)

    def padded(self, sources, rows, length):
        values = np.zeros((rows, length, _VALUES), np.float32)
        lengths = np.zeros(rows, np.int32)
        for row, source in enumerate(sources):
            values[row, : len(source)] = source
            lengths[row] = len(source)
        return values, lengths

    def inputs(self, arrays):
        values, lengths = map(jnp.asarray, arrays)
        places = jnp.broadcast_to(jnp.arange(values.shape[1]), values.shape[:2])
        return Frames(values, (places < lengths[:, None]).astype(jnp.int32), places)


_FORM = FrameSources()


class Listener(Transformer):
    """The paper's network with frames for sources."""

    def setup(self):
        super().setup()
        self.projection = nn.Dense(self.config.d_model)

    @property
    def sources(self):
        return _FORM

    def example(self):
        one = one_a_row(jnp.ones((1, 4), jnp.int32))
        return Batch(_FORM.inputs(_FORM.padded([_FORM.blank(4)], 1, 4)), one)

    def embed_inputs(self, inputs):
        return self.projection(inputs.values)


@pytest.fixture(scope="module")
def listener():
    network = Listener(_CONFIG.model, _VOCAB, BOS_ID)
    shapes = nn.unbox(declared_parameters(network))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 0.5, x.shape), x.dtype), shapes)
    return network, params


def _greedy(network, params, source):
    """The output by full passes, one more for each token, as long as the search may go on."""
    logits = jax.jit(lambda batch: network.apply({"params": params}, batch, deterministic=True))
    inputs = _FORM.inputs(_FORM.padded([source], 1, 8))
    limit, found = len(source) + _EXTRA, []
    for place in range(limit):
        tokens = np.full((1, 8 + _EXTRA), EOS_ID, np.int32)
        tokens[0, : len(found)] = found
        found.append(int(logits(Batch(inputs, one_a_row(jnp.asarray(tokens))))[0, place].argmax()))
        if found[-1] == EOS_ID:
            break
    return found


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_search_needs_only_the_lengths_of_sources(listener, beam_size):
    network, params = listener
    rng = np.random.default_rng(1)
    sources = [rng.normal(0, 2, (n, _VALUES)).astype(np.float32) for n in (8, 3, 5, 1, 7)]
    sentences = [Sentence(source, len(source) + _EXTRA, n) for n, source in enumerate(sources)]
    model, mesh = TransformerDecoding(network), make_mesh(_CONFIG.parallel, jax.devices()[:1])
    decoding = _CONFIG.replace({"decoding.beam_size": beam_size}).decoding
    search = Search(model, strategy_of(decoding), mesh, 1)
    inputs = SearchInputs(model.prepare(params, "none"), np.uint32(0))
    found = dict(decode(search, inputs, decoding, sentences))
    assert sorted(found) == [0, 1, 2, 3, 4]
    outputs = [found[n].tokens[0, : found[n].lengths[0]].tolist() for n in range(5)]
    assert len({tuple(output) for output in outputs}) > 1
    if beam_size == 1:
        assert outputs == [_greedy(network, params, source) for source in sources]
