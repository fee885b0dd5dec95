"""The coordinate check: do the sizes of activations, and of their changes, depend on the width?

Yang et al. 2021, "Tensor Programs V", appendix D.1: networks of several widths take a few steps on
one batch. Where the size of what a part computes, or of what these steps change in it, grows or
shrinks with the width, the best learning rate of a small network is not that of a large one.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from t2t_jax.batch import EOS_ID, Batch, one_a_row
from t2t_jax.config import Config
from t2t_jax.config.model import PARTS
from t2t_jax.errors import UserError
from t2t_jax.functional.attention import repeat_heads
from t2t_jax.modules.attention import MultiHeadAttention
from t2t_jax.modules.embedding import TokenEmbedding
from t2t_jax.modules.encoder_model import Linear
from t2t_jax.modules.feed_forward import FeedForward
from t2t_jax.modules.matrices import Parameters
from t2t_jax.modules.models import build
from t2t_jax.modules.stack import LayerStack
from t2t_jax.modules.token_network import TokenNetwork
from t2t_jax.training.schedule import scheduled_rate
from t2t_jax.training.state import init_state
from t2t_jax.training.step import train_step

FLAT = 0.1
"""Largest exponent with which a size counts as independent of the width."""

_SHARE = 0.1  # of the largest learning rate, which the first steps after a warmup do not reach
# Few tokens: what is learned of other tokens adds noise, which is the larger in narrow networks.
_ROWS, _LENGTH, _VOCAB = 1, 8, 256
_KINDS = MultiHeadAttention, FeedForward, TokenEmbedding, Linear, LayerStack, TokenNetwork
_METHODS = "__call__", "attend_to_encoded", "queries", "keys_values"
_IN_PROPORTION = "d_ff", "num_heads", "num_kv_heads", *(f"{part}_heads" for part in PARTS)

Sizes = dict[str, Float[np.ndarray, "networks seeds"]]
"""The root mean square of the outputs of each part, of networks in an order and their seeds."""


class Growth(NamedTuple):
    """The power of the width, or of the depth, with which a size goes."""

    exponent: float
    """The slope of the logarithm of the size over that of the width, by least squares."""
    error: float
    """The standard error of the slope; not a number where two sizes tell nothing of it."""

    @property
    def verdict(self) -> str:
        """Return "flat", "grows" or "shrinks"; "unknown" where a size is 0 or not finite."""
        if not np.isfinite(self.exponent):
            return "unknown"
        return "flat" if abs(self.exponent) <= FLAT else "grows" if self.exponent > 0 else "shrinks"


class Coordinates(NamedTuple):
    """The sizes of what the parts of networks compute that differ in their width or depth."""

    name: str
    """What differs: "width" or "depth"."""
    values: tuple[int, ...]
    """The widths or depths."""
    start: Sizes
    """The sizes before training."""
    change: Sizes
    """The sizes of the differences from the start after all steps."""


def of_width(config: Config, width: int) -> Config:
    """Return a config with another width: more or fewer heads of the same size, d_ff in proportion.

    Raises:
      UserError: a size would be no positive whole number.
    """
    model = config.model
    changes = {"model.d_model": width, "model.d_k": model.key_size, "model.d_v": model.value_size}
    for name in _IN_PROPORTION:
        if (size := getattr(model, name, None)) is None:
            continue
        scaled, rest = divmod(size * width, model.d_model)
        if rest or not scaled:
            raise UserError(
                f"a width of {width} is no choice for model.{name}={size} at model.d_model="
                f"{model.d_model}, which goes in proportion; choose a multiple of "
                f"{model.d_model // np.gcd(size, model.d_model)}"
            )
        changes[f"model.{name}"] = scaled
    return config.replace(changes)


def of_depth(config: Config, depth: int) -> Config:
    """Return a config whose stacks have another number of layers each."""
    names = "num_encoder_layers", "num_decoder_layers"
    return config.replace({f"model.{n}": depth for n in names if hasattr(config.model, n)})


def coordinates(
    config: Config, name: str, values: Sequence[int], *, steps: int, seeds: int
) -> Coordinates:
    """Train networks of some widths or depths for a few steps, and measure their parts.

    They learn a few random tokens, without dropout, in float32, at a tenth of the largest
    learning rate of the config.

    Args:
      name: what differs, "width" or "depth".
      values: two or more widths or depths.
      steps: number of steps.
      seeds: number of networks of each size, with different first values.

    Raises:
      UserError: there are too few values, steps or seeds, or a value is no choice for the config.
    """
    if len(set(values)) < 2 or min(values) < 1:
        given = " ".join(map(str, values))
        raise UserError(f"a growth with the {name} needs two positive numbers, not {given!r}")
    if min(steps, seeds) < 1:
        raise UserError(f"{steps} steps of {seeds} seeds measure nothing; use 1 or more of each")
    vary = {"width": of_width, "depth": of_depth}[name]
    configs = [_simplified(vary(config, value)) for value in values]
    found = [_measured(one, steps, seeds) for one in configs]
    start, change = (
        {part: np.stack([one[at][part] for one in found]) for part in found[0][at]}
        for at in range(2)
    )
    return Coordinates(name, tuple(values), start, change)


def growth(values: Sequence[int], sizes: Float[np.ndarray, "networks seeds"]) -> Growth:
    """Return the power of the width with which a size goes.

    Args:
      values: the widths.
      sizes: the size by width and seed.
    """
    if not (np.isfinite(sizes) & (sizes > 0)).all():
        return Growth(np.nan, np.nan)
    x = np.repeat(np.log(np.array(values, float)), sizes.shape[1])
    y = np.log(np.float64(sizes)).ravel()
    x -= x.mean()
    exponent = float(x @ y / (x @ x))
    rest = y - y.mean() - exponent * x
    degrees = len(y) - 2
    error = float(np.sqrt(rest @ rest / degrees / (x @ x))) if degrees else np.nan
    return Growth(exponent, error)


def _simplified(config: Config) -> Config:
    """Return the config of networks that learn at one rate, without dropout."""
    training, model = config.training, config.model
    rate = _SHARE * float(scheduled_rate(training, model.scaling_width, training.warmup_steps))
    source = {"model.source_vocab_size": None} if hasattr(model, "source_vocab_size") else {}
    return config.replace(
        {
            **{f"model.{name}dropout_rate": 0.0 for name in ("", "attention_", "activation_")},
            **source,
            "model.compute_dtype": "float32",
            "training.schedule": "constant",
            "training.schedule_steps": None,
            "training.warmup_steps": 1,
            "training.learning_rate_factor": 1.0,
            "training.peak_learning_rate": rate,
        }
    )


def _measured(config: Config, steps: int, seeds: int) -> tuple[Any, Any]:
    """Return the sizes at the start, and of the changes, of each part by seed."""
    model = build(config, _VOCAB)
    batch = _batch(config, model)
    # Without the compiler's optimisations, which would take longer than the few steps.
    quickly = {"xla_backend_optimization_level": 0}
    one_seed = jax.jit(partial(_sizes, config, model, steps), compiler_options=quickly)
    runs = [one_seed(jax.random.key(config.training.seed + n), batch) for n in range(seeds)]
    return jax.tree.map(lambda *sizes: np.stack(sizes), *jax.device_get(runs))


def _batch(config: Config, model: TokenNetwork) -> Batch:
    """Return a batch of random tokens, or of random images with random labels."""
    rng = np.random.default_rng(config.training.seed)
    length = int(min(_LENGTH, config.model.longest_sentence))

    def tokens(length: int) -> Any:
        return one_a_row(jnp.asarray(rng.integers(EOS_ID, _VOCAB, (_ROWS, length)), jnp.int32))

    if "source" in config.model.embeddings:
        return Batch(tokens(length), tokens(length))
    example = jax.tree.map(lambda x: jnp.repeat(x, _ROWS, axis=0), model.example())
    values = jnp.asarray(rng.integers(0, 256, example.inputs.values.shape), jnp.uint8)
    labels = example.targets._replace(tokens=tokens(1).tokens)
    return Batch(example.inputs._replace(values=values), labels)


def _sizes(
    config: Config, model: TokenNetwork, steps: int, key: Key[Array, ""], batch: Batch
) -> tuple[dict[str, Float[Array, ""]], dict[str, Float[Array, ""]]]:
    """Train a network, and return the sizes of its parts at the start and of their changes."""
    one_pass = jax.tree.map(lambda x: x[None], batch)

    def take_step(state: Any, _: None) -> tuple[Any, None]:
        return train_step(config, model, state, one_pass)[0], None

    first = init_state(config, model, key)
    last, _ = jax.lax.scan(take_step, first, length=steps)
    # One program computes both, as two could round differently.
    both = jax.tree.map(lambda *x: jnp.stack(x), first.params, last.params)
    found = jax.lax.map(lambda params: _parts(model, params, batch), both)
    start = {name: _size(part[0]) for name, part in found.items()}
    return start, {name: _size(part[1] - part[0]) for name, part in found.items()}


def _size(x: Float[Array, "..."]) -> Float[Array, ""]:
    return jnp.sqrt(jnp.square(x).mean())


def _parts(model: TokenNetwork, params: Parameters, batch: Batch) -> dict[str, Array]:
    """Return what each part of a network computes, those of all layers of a stack together."""

    def is_part(module: nn.Module, method: str) -> bool:
        return isinstance(module, _KINDS) and method in _METHODS

    looking: Any = {"mutable": ["intermediates"], "capture_intermediates": is_part}
    logits, found = model.apply({"params": params}, batch, **looking)
    seen = found["intermediates"]
    embedded = [*dict.fromkeys(model.config.embeddings.values()), "patch_projection"]
    inputs = [seen[name]["__call__"] for name in embedded if "__call__" in seen.get(name, {})]
    parts = {"embedding": jnp.concatenate([x.ravel() for x in jax.tree.leaves(inputs)])}
    for name in ("encoder", "decoder"):
        if name not in seen:
            continue
        layers = seen[name]["layers"]
        for sublayer in ("self_attention", "cross_attention"):
            if sublayer in layers:
                label = f"{name} {sublayer.replace('_', '-')}"
                parts |= _attention(label, layers[sublayer])
        parts[f"{name} feed-forward"] = layers["feed_forward"]["__call__"][0]
        parts[f"{name} output"] = seen[name]["__call__"][0]
    return parts | {"logits": logits}


def _attention(label: str, seen: Parameters) -> dict[str, Array]:
    """Return the scores of an attention, ahead of positions and masks, and its output."""
    (query,), ((key, _),) = seen["queries"], seen["keys_values"]
    [output] = seen.get("attend_to_encoded") or seen["__call__"]
    key = jax.vmap(partial(repeat_heads, num_heads=query.shape[-2]))(key)
    scores = jnp.einsum("nbqhd,nbkhd->nbhqk", query, key) / query.shape[-1] ** 0.5
    return {f"{label} scores": scores, label: output}
