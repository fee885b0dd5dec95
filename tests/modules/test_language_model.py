"""A decoder alone, against NumPy and brute force; `test_decoder_network` has its cached steps."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2t_jax.batch import Batch, Sequence, one_a_row
from t2t_jax.config import Config, DataConfig
from t2t_jax.data.batching import Batches
from t2t_jax.data.rows import Examples
from t2t_jax.data.tokenized import after_first_tokens
from t2t_jax.errors import UserError
from t2t_jax.modules.attention import WEIGHTS
from t2t_jax.modules.language_model import joined_pairs, prefix_mask
from t2t_jax.modules.models import make_model as build_model
from tests.modules.numpy_transformer import decoder_only_logits
from tests.tiny import first_parameters, tiny_sizes

_VARIANTS = {
    "the paper's layers": {},
    "prefix": {"prefix_attention": True},
    "learned positions, pre-norm, untied": {
        "position": "learned",
        "norm_order": "pre",
        "share_embeddings": False,
        "output_bias": True,
        "attention_bias": True,
        "max_positions": 20,
    },
    "relative bias, prefix, window": {
        "position": "relative_bias",
        "prefix_attention": True,
        "attention_window": 4,
        "num_kv_heads": 1,
    },
    "rotary, DeepNorm": {"position": "rotary", "norm_order": "deep", "embedding_norm": True},
}
_PAIRS = [([3, 4, 5, 2], [6, 7, 2]), ([8, 2], [9, 10, 3, 2])]


@pytest.mark.parametrize("name", _VARIANTS)
def test_logits_are_those_of_the_formulas(name, make_model, make_batch):
    model = make_model(architecture="decoder_only", **_VARIANTS[name])
    sources, targets = zip(*_PAIRS, strict=True)
    packed = make_batch([list(sources)], [list(targets)])
    logits = model.logits(packed)[0]
    at = 0
    for source, target in _PAIRS:
        expected = decoder_only_logits(model.variables["params"], model.config, source, target)
        np.testing.assert_allclose(logits[at : at + len(target)], expected, rtol=1e-4, atol=1e-4)
        at += len(target)


def test_text_without_a_source_follows_the_start_token(make_model, make_batch):
    model = make_model(architecture="decoder_only")
    texts = [[3, 4, 5, 2], [6, 7, 2]]
    logits = model.logits(make_batch([[]], [texts], source_length=0))[0]
    params = model.variables["params"]
    expected = [decoder_only_logits(params, model.config, [1], text) for text in texts]
    np.testing.assert_allclose(logits, np.concatenate(expected), rtol=1e-4, atol=1e-4)


def test_losses_are_those_of_the_logits_and_reach_every_parameter(make_model, make_batch):
    model = make_model(architecture="decoder_only", share_embeddings=False)
    batch = make_batch([[[3, 4, 2], [5, 2]]], [[[6, 2], [7, 8, 2]]])

    @jax.jit
    @jax.value_and_grad
    def nll(variables, batch):
        _, nll = model.module.apply(variables, batch, label_smoothing=0.1, method="losses")
        return nll[0, :5].sum()

    log_probs = jax.nn.log_softmax(model.logits(batch)[0, :5])
    expected = -log_probs[np.arange(5), [6, 2, 7, 8, 2]].sum()
    found, gradient = nll(model.variables, batch)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert all(np.any(leaf) for leaf in jax.tree.leaves(gradient))


_LENGTHS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), max_size=3)


def _side(rows, which, length):
    """One side of rows of pairs given by their lengths: every token has an id of its own."""
    tokens, segments, positions = np.zeros((3, len(rows), length), np.int32)
    for r, pairs in enumerate(rows):
        at = 0
        for number, lengths in enumerate(pairs, start=1):
            here = (r, slice(at, at + lengths[which]))
            positions[here] = range(lengths[which])
            tokens[here] = 100 * number + 50 * which + positions[here]
            segments[here] = number
            at += lengths[which]
    return Sequence(tokens, segments, positions)


_joined_pairs = jax.jit(joined_pairs)
_prefix_mask = jax.jit(prefix_mask, static_argnames="window")


@settings(max_examples=40, deadline=None)
@given(st.lists(_LENGTHS, min_size=2, max_size=2))
def test_targets_follow_their_sources_without_a_gap(rows):
    found = _joined_pairs(Batch(_side(rows, 0, 12), _side(rows, 1, 13)))
    for r, pairs in enumerate(rows):
        tokens, segments, positions, of_source, places = [], [], [], [], []
        for number, (source, target) in enumerate(pairs, start=1):
            places += range(len(tokens) + source, len(tokens) + source + target)
            tokens += [100 * number + i for i in range(source)]
            tokens += [100 * number + 50 + i for i in range(target)]
            segments += [number] * (source + target)
            positions += range(source + target)
            of_source += [True] * source + [False] * target
        expected = (tokens, segments, positions, of_source)
        for array, values in zip(found, expected, strict=False):
            np.testing.assert_array_equal(array[r], values + [0] * (25 - len(values)))
        np.testing.assert_array_equal(found.target_indices[r][: len(places)], places)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=6, max_size=6),
    st.none() | st.integers(1, 6),
)
def test_prefix_mask_is_that_of_its_definition(places, window):
    segments, of_source = (np.array([column]) for column in zip(*places, strict=True))
    mask = np.asarray(_prefix_mask(segments, of_source, window=window))
    for q, (mine, in_source) in enumerate(places):
        for k, (its, in_its_source) in enumerate(places):
            near = window is None or abs(q - k) < window
            expected = mine == its != 0 and near and (k <= q or (in_source and in_its_source))
            assert mask[0, 0, q, k] == expected


@pytest.mark.parametrize("prefix", [False, True])
def test_attention_of_source_and_target_is_cut_out_of_that_of_one_sequence(
    prefix, make_model, make_batch
):
    model = make_model(architecture="decoder_only", prefix_attention=prefix)
    batch = make_batch([[[8, 2]], [[3, 4, 5, 2]]], [[[6, 7, 2]], [[9, 2]]])
    params = model.variables["params"]
    maps = jax.device_get(jax.jit(model.decoding.attention_weights)(params, batch))
    source, target = np.array([2, 4]), np.array([3, 2])
    sow = jax.jit(partial(model.module.apply, deterministic=True, mutable=[WEIGHTS]))
    for row, (n, m) in enumerate(zip(source, target, strict=True)):
        alone = jax.tree.map(lambda x, row=row: np.asarray(x)[row : row + 1], batch)
        cut = Batch(
            *(Sequence(*(x[:, :k] for x in side)) for side, k in zip(alone, (n, m), strict=True))
        )
        _, sown = sow(model.variables, cut)
        layers = sown[WEIGHTS]["decoder"]["layers"]
        whole = np.asarray(layers["self_attention"]["weights"][0])[:, 0]
        closely = {"rtol": 1e-4, "atol": 1e-6}
        encoder, cross = whole[:, :, :n, :n], whole[:, :, n - 1 : n + m - 1, :n]
        np.testing.assert_allclose(maps["encoder"][:, row, :, :n, :n], encoder, **closely)
        np.testing.assert_allclose(maps["cross"][:, row, :, :m, :n], cross, **closely)
        decoder = whole[:, :, n - 1 : n + m - 1, n : n + m - 1]
        np.testing.assert_allclose(maps["decoder"][:, row, :, :m, 1:m], decoder, **closely)
        both = maps["cross"][:, row, :, :m].sum(-1) + maps["decoder"][:, row, :, :m].sum(-1)
        np.testing.assert_allclose(both, 1, rtol=1e-5)
        assert not maps["decoder"][:, row, :, :m, 0].any()


@pytest.mark.thorough
def test_sources_are_learned_as_if_they_were_text():
    """Losses of `training.source_loss` are those of a text after its first token."""
    decoder = {"model.architecture": "decoder_only", "training.source_loss": True}
    config = Config().replace(tiny_sizes(16, (1, 2))).replace(decoder)
    model = build_model(config, 30, None)
    params = first_parameters(model)
    losses = jax.jit(partial(model.apply, label_smoothing=0.0, method="losses"))
    sources, targets = [[7, 8, 9, 1], [11, 1]], [[20, 21, 1], [22, 23, 24, 1]]
    offsets = [np.cumsum([0, *map(len, side)]) for side in (sources, targets)]
    tokens = [np.concatenate(side) for side in (sources, targets)]
    pairs = Examples(tokens[0], offsets[0], tokens[1], offsets[1], {}, 2)
    data = DataConfig(max_length=8, source_tokens_per_step=16, target_tokens_per_step=16)
    for examples, whole in ((pairs, False), (after_first_tokens(pairs), True)):
        batches = Batches(examples, data, seed=0)
        for step in range(batches.steps_per_epoch):
            batch = batches(step)
            _, nll = losses({"params": params}, batch)
            for example, row, _ in zip(*batches.placement(step), strict=True):
                own = np.asarray(nll)[row][batch.targets.segments[row] != 0]
                text = [*sources[example], *targets[example]]
                begin = 1 if whole else len(sources[example])
                alone = Batch(
                    one_a_row(jnp.array([text[:begin]])), one_a_row(jnp.array([text[begin:]]))
                )
                _, wanted = losses({"params": params}, alone)
                np.testing.assert_allclose(own, wanted[0], rtol=1e-4)
                assert len(own) == len(text) - begin


@pytest.mark.parametrize(
    "changes",
    [
        {"model.architecture": "encoder_decoder"},
        {"model.prefix_attention": True},
        {"data.task": "language_modelling"},
    ],
)
def test_only_a_causal_decoder_alone_learns_sources(changes):
    own = {"model.architecture": "decoder_only", "training.source_loss": True}
    with pytest.raises(UserError, match="source_loss"):
        Config().replace(own | changes)
