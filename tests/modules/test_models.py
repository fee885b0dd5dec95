"""A network from a config in one call, as a Flax module like any other."""

import inspect
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import t2t_jax
from t2t_jax import Batch, UserError
from t2t_jax.config import Config, DecoderOnlyConfig, EncoderDecoderConfig, EncoderOnlyConfig
from t2t_jax.modules.models import make_model
from t2t_jax.modules.network import init_parameters
from tests.modules import numpy_transformer

_SIZES = {"d_model": 16, "num_heads": 2, "d_ff": 32, "dropout_rate": 0.5}
_build = inspect.unwrap(t2t_jax.build)  # as users have it: no types are checked ahead of it
_PAPER = EncoderDecoderConfig(num_encoder_layers=2, num_decoder_layers=1, **_SIZES)


@pytest.fixture(scope="module")
def built():
    model = t2t_jax.build(_PAPER, 30)
    batch = Batch.of([[5, 6, 7, 1], [8, 1]], [[9, 1], [4, 3, 1]])
    return model, batch, jax.jit(model.init)(jax.random.key(0), batch)


def test_init_gives_plain_arrays_that_are_those_of_a_run(built):
    model, _, variables = built
    assert type(variables) is dict
    leaves = jax.tree.leaves(variables, is_leaf=lambda x: not isinstance(x, dict))
    assert all(isinstance(leaf, jax.Array) for leaf in leaves)
    of_run = jax.jit(lambda key: init_parameters(make_model(Config(model=_PAPER), 30, None), key))
    expected = nn.unbox(of_run(jax.random.key(0)))
    jax.tree.map(np.testing.assert_array_equal, variables["params"], expected)
    assert _build(Config(model=_PAPER), np.int64(30)) == model


def test_apply_gives_the_logits_of_each_sentence(built):
    model, batch, variables = built
    logits = jax.jit(model.apply)(variables, batch)
    params = jax.tree.map(np.asarray, variables["params"])
    for row, (source, target) in enumerate([([5, 6, 7, 1], [9, 1]), ([8, 1], [4, 3, 1])]):
        expected = numpy_transformer.logits(params, _PAPER, source, target, bos_id=2)
        np.testing.assert_allclose(logits[row, : len(target)], expected, rtol=1e-3, atol=1e-4)


def test_arrays_that_are_no_batch_are_refused(built):
    model, batch, variables = built
    for wrong in (Batch(*(side.tokens for side in batch)), batch._replace(inputs=jnp.ones((2, 4)))):
        with pytest.raises(UserError, match=r"make one with t2t_jax\.Batch\.of"):
            model.apply(variables, wrong)


_CALLS = {
    "logits": lambda apply, batch: apply(batch),
    "losses": lambda apply, batch: apply(batch, label_smoothing=0.1, method="losses"),
    "encode": lambda apply, batch: apply(batch.inputs, method="encode"),
}


@pytest.mark.parametrize("call", _CALLS)
@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (([[5, 30, 1]], [[7, 1]]), r"inputs\.tokens\[0, 1\] is 30, .* the ids 0 to 29"),
        (([[5, 1], [-1, 1]], [[7, 1]] * 2), r"inputs\.tokens\[1, 0\] is -1, .* the ids 0 to 29"),
        (([[5, 1]], [[7, 99]]), r"targets\.tokens\[0, 1\] is 99, .* the ids 0 to 29"),
    ],
    ids=["beyond", "negative", "target"],
)
def test_ids_that_are_not_in_the_vocabulary_are_refused(built, call, ids, message):
    model, _, variables = built
    if call == "encode" and "targets" in message:  # it reads no targets
        assert np.isfinite(_CALLS[call](partial(model.apply, variables), Batch.of(*ids))).all()
        return
    with pytest.raises(UserError, match=message):
        _CALLS[call](partial(model.apply, variables), Batch.of(*ids))


def test_sources_have_the_ids_of_their_own_vocabulary():
    sizes = {"share_embeddings": False, "source_vocab_size": 40, **_SIZES}
    model = t2t_jax.build(EncoderDecoderConfig(**sizes), 30)

    def initialise(source):
        batch = Batch.of([[source, 1]], [[29, 1]])
        jax.eval_shape(lambda key: model.init(key, batch), jax.random.key(0))

    initialise(39)
    with pytest.raises(UserError, match="is 40, but the vocabulary has the ids 0 to 39"):
        initialise(40)


@pytest.mark.parametrize(
    "config",
    [
        DecoderOnlyConfig(num_decoder_layers=1, **_SIZES),
        EncoderOnlyConfig(num_encoder_layers=1, share_embeddings=False, **_SIZES),
    ],
    ids=lambda config: config.architecture,
)
def test_other_families_are_built_alike(config):
    model = t2t_jax.build(config, 30)
    batch = Batch.of([[5, 6, 1]], [[7, 1]])
    logits, _ = jax.eval_shape(model.init_with_output, jax.random.key(0), batch)
    assert logits.shape == (1, 2, 30)


@pytest.mark.parametrize(
    ("config", "vocab_size", "says"),
    [
        ("base.py", 30, "config='base.py' is a str; give a t2t_jax.Config"),
        (_PAPER, 0, "vocab_size=0 is not a positive whole number"),
        (_PAPER, 2.5, r"vocab_size=2\.5 is not"),
        (_PAPER, "30", "vocab_size='30' is not"),
    ],
)
def test_what_is_no_config_or_size_is_refused(config, vocab_size, says):
    with pytest.raises(UserError, match=says):
        _build(config, vocab_size)
