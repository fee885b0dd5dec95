"""Changes in training of networks of several widths and depths: the test of the rules of muP.

Yang et al. 2021, "Tensor Programs V", appendix D.1: networks of several widths take a few steps on
one batch. If a part's changes grow with the width, no one learning rate fits all widths.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax import Config, FeedForward, LayerStack, MultiHeadAttention, build
from t2t_jax.batch import EOS_ID, Batch, one_a_row
from t2t_jax.functional.attention import repeat_heads
from t2t_jax.modules.embedding import TokenEmbedding
from t2t_jax.modules.transformer import TokenNetwork
from t2t_jax.training.schedule import scheduled_rate
from t2t_jax.training.state import init_state
from t2t_jax.training.step import train_step

# Few tokens: what is learned of other tokens adds noise, which is larger in narrow networks.
_LENGTH, _VOCAB, _STEPS = 8, 256, 3
_KINDS = MultiHeadAttention, FeedForward, TokenEmbedding, LayerStack, TokenNetwork
_METHODS = "__call__", "_queries", "_keys_values"
_SMALL = {
    "model.d_model": 64,
    "model.num_heads": 2,
    "model.d_ff": 128,
    "model.base_width": 128,
    "training.peak_learning_rate": 0.005,
}
_DECODER = {"model.architecture": "decoder_only", "model.num_decoder_layers": 1}
_BOTH = {"model.num_encoder_layers": 1, "model.num_decoder_layers": 1}
_ENCODER = {
    "model.architecture": "encoder_only",
    "model.num_encoder_layers": 1,
    "model.share_embeddings": False,
    "data.task": "tagging",
}
_CASES = {
    "decoder_only": _DECODER,
    "encoder_decoder": _BOTH,
    "untied": {**_BOTH, "model.share_embeddings": False},
    "encoder_only": _ENCODER,
    "pre_norm": {**_DECODER, "model.norm_order": "pre"},
    "lion": {**_DECODER, "training.optimizer": "lion", "training.peak_learning_rate": 0.002},
    "muon": {**_DECODER, "training.optimizer": "muon"},
}


def _of_width(config, width):
    """The config with heads of the same size, and d_ff in proportion."""
    model = config.model
    factor = width // model.d_model
    return config.replace(
        {
            "model.d_model": width,
            "model.d_k": model.key_size,
            "model.d_v": model.value_size,
            "model.d_ff": model.d_ff * factor,
            "model.num_heads": model.num_heads * factor,
        }
    )


def _simplified(config):
    """Without dropout, in float32, at a tenth of the largest learning rate in every step."""
    training, model = config.training, config.model
    rate = 0.1 * float(scheduled_rate(training, model.scaling_width, training.warmup_steps))
    return config.replace(
        {
            "model.dropout_rate": 0.0,
            "model.compute_dtype": "float32",
            "training.schedule": "constant",
            "training.warmup_steps": 1,
            "training.peak_learning_rate": rate,
        }
    )


def _sizes(configs, seeds):
    """The root mean squares of what parts compute at the start, and of its changes in training.

    Both are by part, as arrays of shape [configs, seeds].
    """
    found = [_measured(_simplified(config), seeds) for config in configs]
    return jax.tree.map(lambda *sizes: np.stack(sizes), *found)


def _measured(config, seeds):
    model = build(config, _VOCAB)
    rng = np.random.default_rng(config.training.seed)
    texts = [one_a_row(jnp.asarray(rng.integers(EOS_ID, _VOCAB, (1, _LENGTH)))) for _ in range(2)]
    batch = Batch(*texts)
    # Without the compiler's optimisations, which would take longer than the few steps.
    options = {"xla_backend_optimization_level": 0}
    measure = jax.jit(partial(_of_one_seed, config, model), compiler_options=options)
    runs = [measure(jax.random.key(seed), batch) for seed in range(seeds)]
    return jax.tree.map(lambda *sizes: np.stack(sizes), *jax.device_get(runs))


def _of_one_seed(config, model, key, batch):
    one_pass = jax.tree.map(lambda x: x[None], batch)

    def take_step(state, _):
        return train_step(config, model, state, one_pass)[0], None

    first = init_state(config, model, key)
    last, _ = jax.lax.scan(take_step, first, length=_STEPS)
    # One program computes both, as two could round differently.
    both = jax.tree.map(lambda *x: jnp.stack(x), first.params, last.params)
    parts = jax.lax.map(lambda params: _parts(model, params, batch), both)
    size = lambda x: jnp.sqrt(jnp.square(x).mean())  # noqa: E731
    start = {name: size(part[0]) for name, part in parts.items()}
    return start, {name: size(part[1] - part[0]) for name, part in parts.items()}


def _parts(model, params, batch):
    """What each part of a network computes, that of all layers of a stack together."""
    logits, found = model.apply(
        {"params": params},
        batch,
        mutable=["intermediates"],
        capture_intermediates=lambda module, method: (
            isinstance(module, _KINDS) and method in _METHODS
        ),
    )
    seen = found["intermediates"]
    embedded = dict.fromkeys(model.config.embeddings.values())
    inputs = [seen[name]["__call__"] for name in embedded if "__call__" in seen.get(name, {})]
    parts = {"embedding": jnp.concatenate([x.ravel() for x in jax.tree.leaves(inputs)])}
    for name in {"encoder", "decoder"} & seen.keys():
        layers = seen[name]["layers"]
        for sublayer in {"self_attention", "cross_attention"} & layers.keys():
            (query,), ((key, _),) = (layers[sublayer][name] for name in _METHODS[1:])
            key = jax.vmap(partial(repeat_heads, num_heads=query.shape[-2]))(key)
            scores = jnp.einsum("nbqhd,nbkhd->nbhqk", query, key) / query.shape[-1] ** 0.5
            parts[f"{name} {sublayer} scores"] = scores
            parts[f"{name} {sublayer}"] = layers[sublayer]["__call__"][0]
        parts[f"{name} feed-forward"] = layers["feed_forward"]["__call__"][0]
        parts[f"{name} output"] = seen[name]["__call__"][0]
    return parts | {"logits": logits}


def _exponent(values, sizes):
    """The power of the width or depth with which a size grows, by least squares of logarithms."""
    x = np.repeat(np.log(np.array(values, float)), sizes.shape[1])
    return float(np.polyfit(x, np.log(np.float64(sizes)).ravel(), 1)[0])


def _exponents(fields, parametrisation, widths, seeds=4):
    config = Config().replace({**_SMALL, **fields, "model.parametrisation": parametrisation})
    start, change = _sizes([_of_width(config, width) for width in widths], seeds)
    changes = {part: _exponent(widths, sizes) for part, sizes in change.items()}
    return changes, _exponent(widths, start["logits"])


@pytest.mark.thorough
@pytest.mark.parametrize("case", _CASES)
def test_changes_do_not_depend_on_the_width_under_mup_and_do_in_the_standard(case):
    widths = (64, 128, 256, 512)
    changes, logits = _exponents(_CASES[case], "mup", widths)
    assert -0.6 < logits < -0.3  # by the root, but for the logits of a token that is read
    assert changes.pop("logits") < 0.1
    # Muon's singular values are only near 1, and gradients of few tokens have a low rank.
    within = 0.15 if case == "muon" else 0.1
    assert changes == pytest.approx(dict.fromkeys(changes, 0.0), abs=within)
    changes, _ = _exponents(_CASES[case], "standard", widths, seeds=1)
    assert max(changes.values()) > 0.4


@pytest.mark.thorough
def test_changes_do_not_depend_on_the_depth_when_residual_connections_are_scaled():
    base = {**_SMALL, **_DECODER, "model.norm_order": "pre", "model.base_depth": 2}
    depths = (2, 4, 8, 16)
    exponents = {}
    for parametrisation in ("mup", "complete"):
        config = Config().replace({**base, "model.parametrisation": parametrisation})
        deep = [config.replace({"model.num_decoder_layers": depth}) for depth in depths]
        _, change = _sizes(deep, seeds=2)
        exponents[parametrisation] = _exponent(depths, change["logits"])
    assert abs(exponents["complete"]) < 0.15
    assert exponents["mup"] > 0.3
