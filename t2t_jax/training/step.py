"""One training step: a pure function of the state and a batch."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, Sharding
from jaxtyping import Array, Float32, Int32, Key

from t2t_jax.config import Config
from t2t_jax.data.batching import Batch
from t2t_jax.functional.loss import label_smoothed_cross_entropy
from t2t_jax.modules.ensemble import Model
from t2t_jax.modules.transformer import Parameters, Transformer
from t2t_jax.parallel.mesh import by_rows, replicated
from t2t_jax.training.optimizer import learning_rate, make_optimizer


class TrainState(NamedTuple):
    """All that a step changes.

    Attributes:
      step: steps taken, which is also the place in the data.
      params: the model's parameters, float32.
      optimizer: Adam's moments.
      nonfinite_in_a_row: steps skipped since the last one that was not.
      nonfinite_total: steps skipped in the whole run.
    """

    step: Int32[Array, ""]
    params: Parameters
    optimizer: optax.OptState
    nonfinite_in_a_row: Int32[Array, ""]
    nonfinite_total: Int32[Array, ""]


class LossSums(NamedTuple):
    """Sums over target tokens, so that parts of a batch add up before the one division.

    Attributes:
      smoothed: label-smoothed cross-entropy, in nats.
      nll: negative log-likelihood, in nats.
      tokens: number of target tokens, padding left out.
    """

    smoothed: Float32[Array, ""]
    nll: Float32[Array, ""]
    tokens: Float32[Array, ""]


class Metrics(NamedTuple):
    """What a step reports; it stays on the device until the log asks for it."""

    losses: LossSums
    gradient_norm: Float32[Array, ""]
    learning_rate: Float32[Array, ""]
    nonfinite_in_a_row: Int32[Array, ""]
    nonfinite_total: Int32[Array, ""]


def loss_sums(
    model: Model,
    label_smoothing: float,
    params: Parameters,
    batch: Batch,
    dropout_key: Key[Array, ""] | None = None,
) -> LossSums:
    """The losses of a batch (section 5.4); with a key, under dropout."""
    logits = model.apply(
        {"params": params},
        *batch,
        deterministic=dropout_key is None,
        rngs=None if dropout_key is None else {"dropout": dropout_key},
    )
    smoothed, nll = label_smoothed_cross_entropy(logits, batch.targets, label_smoothing)
    real = (batch.targets_segments != 0).astype(jnp.float32)
    return LossSums((smoothed * real).sum(), (nll * real).sum(), real.sum())


_Sums = TypeVar("_Sums")


def _sum_over_passes(compute: Callable[[Batch, Int32[Array, ""]], _Sums], batch: Batch) -> _Sums:
    """The sum of `compute(one_pass, its_number)` over the passes of a `[passes, rows, t]` batch."""
    numbered = (batch, jnp.arange(len(batch.inputs)))
    first = jax.tree.map(lambda x: x[0], numbered)
    if len(batch.inputs) == 1:
        return compute(*first)

    def add(total: _Sums, one_pass: tuple[Batch, Int32[Array, ""]]) -> tuple[_Sums, None]:
        return jax.tree.map(jnp.add, total, compute(*one_pass)), None

    shapes = jax.eval_shape(compute, *first)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.scan(add, zeros, numbered)[0]


@partial(jax.jit, static_argnums=(0, 1))
def eval_step(model: Model, label_smoothing: float, params: Parameters, batch: Batch) -> LossSums:
    """The losses of a batch (arrays `[passes, rows, t]`), without dropout."""
    return _sum_over_passes(lambda rows, _: loss_sums(model, label_smoothing, params, rows), batch)


def init_state(config: Config, model: Transformer) -> TrainState:
    """The state before the first step: a pure function of the config and its seed."""
    tokens = jnp.ones((1, 8), jnp.int32)
    key = jax.random.key(config.training.seed)
    params = model.init(key, *Batch(*[tokens] * 6), deterministic=True)["params"]
    optimizer = make_optimizer(config.training).init(params)
    zero = jnp.zeros((), jnp.int32)
    return TrainState(zero, params, optimizer, zero, zero)


def abstract_state(config: Config, model: Transformer, sharding: Sharding) -> TrainState:
    """A `jax.ShapeDtypeStruct` with `sharding` for every array of the state."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        jax.eval_shape(partial(init_state, config, model)),
    )


def train_step(
    config: Config, model: Transformer, state: TrainState, batch: Batch
) -> tuple[TrainState, Metrics]:
    """One update of the parameters (sections 5.3 and 5.4).

    The loss is the sum over target tokens divided by their number, over the global batch. Where
    the loss or the gradient is not finite, parameters and moments stay as they were, and the step
    counts as skipped.

    Args:
      config: the run's config.
      model: the model of `state.params`.
      state: before the step.
      batch: the global batch of step `state.step`, arrays `[passes, rows, t]`.
    """
    training = config.training
    step_key = jax.random.fold_in(jax.random.key(training.seed), state.step)

    def gradient_sums(rows: Batch, number: Int32[Array, ""]) -> tuple[Parameters, LossSums]:
        def smoothed_sum(params: Parameters) -> tuple[Float32[Array, ""], LossSums]:
            key = jax.random.fold_in(step_key, number)
            sums = loss_sums(model, training.label_smoothing, params, rows, key)
            return sums.smoothed, sums

        return jax.grad(smoothed_sum, has_aux=True)(state.params)

    gradients, sums = _sum_over_passes(gradient_sums, batch)
    gradients = optax.tree.scale(1 / jnp.maximum(sums.tokens, 1), gradients)
    norm = optax.tree.norm(gradients)
    finite = jnp.isfinite(sums.smoothed) & jnp.isfinite(norm)

    step = state.step + 1
    rate = learning_rate(
        step, config.model.d_model, training.warmup_steps, training.learning_rate_factor
    )
    directions, optimizer = make_optimizer(training).update(gradients, state.optimizer)
    params = jax.tree.map(lambda p, d: p - rate * d, state.params, directions)

    params, optimizer = jax.tree.map(
        lambda new, old: jnp.where(finite, new, old),
        (params, optimizer),
        (state.params, state.optimizer),
    )
    in_a_row = jnp.where(finite, 0, state.nonfinite_in_a_row + 1)
    total = state.nonfinite_total + jnp.where(finite, 0, 1)
    new_state = TrainState(step, params, optimizer, in_a_row, total)
    return new_state, Metrics(sums, norm, rate, in_a_row, total)


def compile_train_step(
    config: Config, model: Transformer, mesh: Mesh
) -> Callable[[TrainState, Batch], tuple[TrainState, Metrics]]:
    """`train_step` over a mesh: batches by rows, the state on every device and donated."""
    whole = replicated(mesh)
    return jax.jit(
        partial(train_step, config, model),
        in_shardings=(whole, by_rows(mesh)),
        out_shardings=whole,
        donate_argnums=0,
    )
