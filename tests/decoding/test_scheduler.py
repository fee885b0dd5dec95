"""Which sentences are decoded together, in arrays of which sizes."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_jax.batch import EOS_ID
from t2t_jax.config import Config, DecodingConfig
from t2t_jax.config.families import FAMILIES
from t2t_jax.decoding import row_group
from t2t_jax.decoding.programs import Search, SearchInputs
from t2t_jax.decoding.row_group import Sentence
from t2t_jax.decoding.scheduler import decode, plan, strategy_of
from t2t_jax.kernels.cpu import CPU
from t2t_jax.kernels.gpu import CUDNN_GPU_FEW_QUERIES
from t2t_jax.modules.models import make_model
from t2t_jax.parallel.mesh import make_mesh
from t2t_jax.plugins import load_named
from t2t_jax.training.state import create_state
from tests.tiny import tiny_sizes

_VOCAB = 40
_CONFIG = Config().replace(
    {**tiny_sizes(16, (1, 2)), "decoding.beam_size": 2, "decoding.max_extra_length": 20}
)


@pytest.fixture(scope="module")
def mesh():
    return make_mesh(_CONFIG.parallel, jax.devices()[:1])


def _decode_with(mesh, network=None, **changes):
    config = _CONFIG.replace({f"model.{name}": value for name, value in changes.items()})
    model = make_model(config, _VOCAB, None)
    params = create_state(config, model, mesh).params
    embedding = params["embedding"]["embedding"]
    params = params | {"embedding": {"embedding": (embedding * 4).at[EOS_ID].multiply(1.5)}}
    model = load_named(FAMILIES[config.model.architecture].scoring)(network or model)
    params = model.prepare(params, "none")

    def decode_with(decoding, sentences, seed=0):
        search = Search(model, strategy_of(decoding), mesh, 1)
        return decode(search, SearchInputs(params, np.uint32(seed)), decoding, sentences)

    return decode_with


@pytest.fixture(scope="module")
def decode_with(mesh):
    """`decode` by a model that ends a sentence after a few tokens, or never."""
    return _decode_with(mesh)


def _sentences(lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [
        Sentence([*rng.integers(4, _VOCAB, n - 1).tolist(), EOS_ID], n + 20, i)
        for i, n in enumerate(lengths)
    ]


@given(st.lists(st.integers(1, 300), max_size=300), st.integers(1, 9000), st.integers(1, 60))
def test_every_sentence_fits_in_and_no_group_exceeds_its_share(lengths, tokens, extra):
    lengths = sorted(lengths, reverse=True)
    decoding = DecodingConfig(tokens_per_batch=tokens, max_extra_length=extra)
    planned = plan(lengths, decoding, make_mesh(_CONFIG.parallel, jax.devices()[:1]))
    assert len(planned) == len(lengths)
    for length, sizes in zip(lengths, planned, strict=True):
        assert length <= sizes.source_length < max(2 * lengths[0], 64)
        assert length + extra <= sizes.max_capacity
        assert sizes.capacity <= sizes.max_capacity
        assert 1 <= sizes.max_arrivals <= sizes.rows
        capacity = max(1, tokens // sizes.max_capacity)
        at_once = len(lengths) <= max(1, tokens // planned[0].max_capacity)
        groups = 1 if at_once or capacity == 1 else 2
        assert sizes.rows * groups <= capacity


def test_one_sentence_costs_one_row(mesh):
    [sizes] = plan([3], _CONFIG.decoding, mesh)
    assert (sizes.rows, sizes.max_arrivals, sizes.source_length) == (1, 1, 16)


def test_programs_for_shorter_sentences_are_for_many_of_them(mesh):
    decoding = DecodingConfig(tokens_per_batch=800, max_extra_length=10)
    few = plan([60] * 20 + [20] * 30, decoding, mesh)
    assert {sizes.source_length for sizes in few} == {64}
    many = plan([60] * 20 + [20] * 300, decoding, mesh)
    assert [sizes.source_length for sizes in many] == [64] * 20 + [32] * 300


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("overrides", "changes"),
    [
        ({}, {}),
        ({"beam_size": 1, "temperature": 0.7}, {}),
        ({}, {"attention_window": 4, "position": "rotary", "num_kv_heads": 1}),
    ],
)
def test_sentences_get_what_they_get_alone_whoever_is_beside_them(mesh, overrides, changes):
    # Of all lengths, so that arrays are cut, and grow where outputs go on to their limits.
    decode_with = _decode_with(mesh, **changes)
    decoding = _CONFIG.replace({f"decoding.{k}": v for k, v in overrides.items()}).decoding
    sentences = _sentences([*range(60, 30, -4), *([30, 12, 3, 7, 25] * 30)], seed=1)
    few_rows = dataclasses.replace(decoding, tokens_per_batch=320)
    found = dict(decode_with(few_rows, sentences=sentences, seed=5))
    assert sorted(found) == list(range(len(sentences)))
    lengths = {int(result.lengths[0]) for result in found.values()}
    assert min(lengths) < 20 < max(lengths)  # some end, some do not
    for index in [0, 20, 157]:
        [(_, alone)] = decode_with(decoding, sentences=[sentences[index]], seed=5)
        length = int(alone.lengths[0])
        assert found[index].lengths[0] == length
        np.testing.assert_array_equal(found[index].tokens[0, :length], alone.tokens[0, :length])
        np.testing.assert_allclose(found[index].log_probs, alone.log_probs, rtol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("beam_size", [1, 2])
def test_caches_in_the_orders_for_gpus_give_the_same(mesh, monkeypatch, beam_size):
    """Sentences of other lengths come and go, in arrays that grow, with cuDNN's formula by XLA."""
    real, implementations = jax.nn.dot_product_attention, set()

    def by_xla(*arrays, mask, scale, implementation):
        implementations.add(implementation)
        return real(*arrays, mask=mask, scale=scale, implementation="xla")

    monkeypatch.setattr(jax.nn, "dot_product_attention", by_xla)
    # In float32, which cuDNN does not take, rounding cannot change a token.
    for module in ("kernels", "modules"):
        monkeypatch.setattr(f"t2t_jax.{module}.attention.has_fused_widths", lambda *_: True)
    decoding = DecodingConfig(beam_size=beam_size, max_extra_length=20, tokens_per_batch=52 * 8)
    sentences = _sentences([5, 30, 3, 12, 9, 7, 31, 4] * 3)
    found = []
    for kernels in (CPU, CUDNN_GPU_FEW_QUERIES):
        network = make_model(_CONFIG, _VOCAB, None).clone(kernels=kernels)
        decode_with = _decode_with(mesh, network)
        found.append(dict(decode_with(decoding, sentences=sentences)))
    assert implementations == {"cudnn"}
    expected, ours = found
    for index, result in expected.items():
        np.testing.assert_array_equal(ours[index].tokens, result.tokens)
        np.testing.assert_allclose(ours[index].log_probs, result.log_probs, rtol=1e-4)


@pytest.mark.thorough
def test_rows_are_taken_again_before_the_last_sentence_has_ended(decode_with, monkeypatch):
    calls = []
    real = row_group.programs.proceed

    def counted(*arguments, **options):
        work, progress = real(*arguments, **options)
        calls.append(int(np.sum(progress.searching)))
        return work, progress

    monkeypatch.setattr(row_group.programs, "proceed", counted)
    decoding = DecodingConfig(beam_size=1, max_extra_length=20, tokens_per_batch=52 * 16)
    list(decode_with(decoding, sentences=_sentences([5] * 100)))
    assert any(0 < searching < 8 for searching in calls[:-2])
    assert len(calls) > 100 / 8


def test_nothing_to_decode_is_nothing_decoded(decode_with):
    assert list(decode_with(_CONFIG.decoding, sentences=[])) == []


def test_a_limit_for_which_there_is_no_room_is_refused(decode_with):
    sentence = Sentence([5, EOS_ID], limit=23, number=0)
    with pytest.raises(ValueError, match="20 tokens more"):
        list(decode_with(_CONFIG.decoding, sentences=[sentence]))
