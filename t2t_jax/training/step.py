"""One training step: a pure function of the state and a batch."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar, cast

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float32, Int32, PyTree, Shaped

from t2t_jax.batch import Batch
from t2t_jax.config import Config, ParallelConfig
from t2t_jax.errors import UserError
from t2t_jax.kernels.choice import kernels_of
from t2t_jax.kernels.reference import REFERENCE, Losses
from t2t_jax.modules.decoding_model import ScoringModel
from t2t_jax.modules.interceptors import InterceptedJit
from t2t_jax.modules.network import Network, declared_parameters
from t2t_jax.modules.parameters import Parameters
from t2t_jax.parallel.jax_settings import compiler_options, fixed_random_bits, random_key
from t2t_jax.parallel.mesh import BatchLayout, by_rows, make_mesh, replicated
from t2t_jax.training.optimizer import Optimizer, joined_parameters, parted
from t2t_jax.training.recipe import are_frozen, clipped, make_optimizer, moving_average
from t2t_jax.training.schedule import scheduled_rate
from t2t_jax.training.state import TrainState, state_shardings


class LossSums(NamedTuple):
    """Sums of losses over target tokens. Parts of a batch add them up before the one division.

    Attributes:
      smoothed: label-smoothed cross-entropy, in nats.
      nll: negative log-likelihood, in nats.
      tokens: number of target tokens, without padding.
    """

    smoothed: Float32[Array, ""]
    nll: Float32[Array, ""]
    tokens: Float32[Array, ""]


class StepMetrics(NamedTuple):
    """The metrics of a step, which stay on the device until the log reads them.

    Attributes:
      losses: sums over the target tokens of the global batch.
      gradient_norm: Euclidean norm of the gradient of the mean loss, before it is clipped.
      learning_rate: the rate of this step.
      nonfinite_in_a_row: number of skipped steps in a row, as in `TrainState`.
      nonfinite_total: number of skipped steps in the whole run, as in `TrainState`.
    """

    losses: LossSums
    gradient_norm: Float32[Array, ""]
    learning_rate: Float32[Array, ""]
    nonfinite_in_a_row: Int32[Array, ""]
    nonfinite_total: Int32[Array, ""]


def loss_sums(losses: Losses, batch: Batch) -> LossSums:
    """Sum the losses over the target tokens of a batch (section 5.4).

    Args:
      losses: the label-smoothed loss and the negative log-likelihood of every target position.
      batch: arrays `[b, t]`.
    """
    smoothed, nll = losses
    real = (batch.targets.segments != 0).astype(jnp.float32)
    return LossSums((smoothed * real).sum(), (nll * real).sum(), real.sum())


_Sums = TypeVar("_Sums")
_Gradients: TypeAlias = Callable[..., tuple[Parameters, LossSums]]


def _sum_over_passes(compute: Callable[[Batch, Int32[Array, ""]], _Sums], batch: Batch) -> _Sums:
    """Sum `compute(one_pass, its_number)` over the passes of a `[passes, rows, t]` batch."""
    passes = len(batch.targets.tokens)
    numbered = (batch, jnp.arange(passes))
    first = jax.tree.map(lambda x: x[0], numbered)
    if passes == 1:
        return compute(*first)

    def add(total: _Sums, one_pass: tuple[Batch, Int32[Array, ""]]) -> tuple[_Sums, None]:
        return jax.tree.map(jnp.add, total, compute(*one_pass)), None

    shapes = jax.eval_shape(compute, *first)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.scan(add, zeros, numbered)[0]


@partial(InterceptedJit, static_argnums=(0, 1))
def eval_step(
    model: ScoringModel, label_smoothing: float, params: Parameters, batch: Batch
) -> tuple[LossSums, Float32[Array, "passes rows t"]]:
    """Compute the losses of a batch, without dropout.

    Args:
      label_smoothing: the probability mass epsilon_ls (section 5.4).
      batch: arrays `[passes, rows, t]`.

    Returns:
      The sums over the batch, and the negative log-likelihood of each target position, in nats.
      Values at padding are meaningless.
    """

    def add(total: LossSums, rows: Batch) -> tuple[LossSums, Float32[Array, "rows t"]]:
        losses = model.losses(params, rows, label_smoothing)
        return jax.tree.map(jnp.add, total, loss_sums(losses, rows)), losses[1]

    zeros = LossSums(*jnp.zeros(3))
    if len(batch.targets.tokens) > 1:
        return jax.lax.scan(add, zeros, batch)
    sums, nll = add(zeros, jax.tree.map(lambda x: x[0], batch))
    return sums, nll[None]


def abstract_batch(
    layout: BatchLayout, example: Batch, source_length: int, target_length: int
) -> Batch:
    """Return a `jax.ShapeDtypeStruct` with a sharding for every array of a batch.

    Args:
      layout: passes and rows of the batch, and its mesh.
      example: a batch of the network's form, from `Network.example`.
    """

    def array(length: int, like: Shaped[Array, "_ _ ..."]) -> jax.ShapeDtypeStruct:
        shape = layout.passes, layout.rows_per_pass, length, *like.shape[2:]
        return jax.ShapeDtypeStruct(shape, like.dtype, sharding=by_rows(layout.mesh))

    sides = zip(example, (source_length, target_length), strict=True)
    return Batch(*(jax.tree.map(partial(array, length), side) for side, length in sides))


@fixed_random_bits()
def train_step(
    config: Config,
    model: Network,
    state: TrainState,
    batch: Batch,
    *,
    axis_name: str | None = None,
    mesh: Mesh | None = None,
    finish: Callable[[PyTree], PyTree] = REFERENCE.finish,
) -> tuple[TrainState, StepMetrics]:
    """Update the parameters by one step (sections 5.3 and 5.4).

    The loss is the sum over target tokens divided by their number, over the global batch. If the
    loss or the gradient is not finite, the parameters, the optimiser's state and a moving average
    stay unchanged, and the step counts as skipped.

    Args:
      batch: the global batch of step `state.step`, arrays `[passes, rows, t]`.
      axis_name: name of a mapped axis (`jax.pmap`). Each member has a contiguous part of the rows
        of every pass, in order. None means that `batch` has all rows.
      mesh: the devices of the state and the batch, which add up the gradients of several passes
        once; None leaves the adding to the compiler.
      finish: the function of new parameters and optimiser state, from `kernels_of`.

    Returns:
      The state after the step, and its metrics.
    """
    compute: _Gradients = partial(_gradient_sums, config, model, axis_name=axis_name)
    passes = len(batch.targets.tokens)
    if mesh is not None and passes > 1 and mesh.shape["data"] > 1:
        compute = _adding_up_once(compute, mesh)
    gradients, sums = compute(state.params, state.step, batch)
    gradients = optax.tree.scale(1 / jnp.maximum(sums.tokens, 1), gradients)
    optimizer = make_optimizer(config, declared_parameters(model))
    return update(config, optimizer, state, gradients, sums, finish)


def _gradient_sums(
    config: Config,
    model: Network,
    params: Parameters,
    step: Int32[Array, ""],
    batch: Batch,
    *,
    axis_name: str | None,
) -> tuple[Parameters, LossSums]:
    """Compute the gradient of the summed loss over all passes, and the sums of the losses.

    The arguments are as in `train_step`; the sums are over all members of the mapped axis.
    """
    training = config.training
    step_key = jax.random.fold_in(random_key(training.effective_seed("dropout_seed")), step)
    rows = batch.targets.tokens.shape[1]
    parts, part = 1, jnp.zeros((), jnp.int32)
    if axis_name is not None:
        parts, part = jax.lax.axis_size(axis_name), jax.lax.axis_index(axis_name)
    trained, fixed = params, cast(Parameters, {})
    if training.freeze:
        fixed, trained = parted(params, are_frozen(training.freeze, declared_parameters(model)))

    def of_pass(one: Batch, number: Int32[Array, ""]) -> tuple[Parameters, LossSums]:
        def smoothed_sum(trained: Parameters) -> tuple[Float32[Array, ""], LossSums]:
            losses: Losses = model.apply(
                {"params": joined_parameters(fixed, trained) if fixed else trained},
                one,
                label_smoothing=training.label_smoothing,
                num_chunks=config.parallel.loss_chunks,
                deterministic=False,
                first_row=(number * parts + part) * rows,
                rngs={"dropout": step_key},
                method="losses",
            )
            sums = loss_sums(losses, one)
            return sums.smoothed, sums

        return jax.grad(smoothed_sum, has_aux=True)(trained)

    sums = _sum_over_passes(of_pass, batch)
    return sums if axis_name is None else jax.lax.psum(sums, axis_name)


def _adding_up_once(compute: _Gradients, mesh: Mesh) -> _Gradients:
    """Change `_gradient_sums` so that devices add up their gradients once, after the last pass."""
    # The compiler would add up the devices' parts of a single gradient in every pass. So each index
    # of the mesh axis `data` keeps its gradient, and the rows of a pass are split into contiguous
    # parts, one for each index.
    parts = mesh.shape["data"]
    in_parts = jax.vmap(
        partial(compute, axis_name="data"),
        in_axes=(None, None, 1),
        out_axes=None,
        axis_name="data",
        spmd_axis_name="data",
    )

    def cut(params: Parameters, step: Int32[Array, ""], batch: Batch) -> tuple[PyTree, LossSums]:
        rows = jax.tree.map(lambda x: x.reshape(len(x), parts, -1, *x.shape[2:]), batch)
        return in_parts(params, step, rows)

    return cut


def update(
    config: Config,
    optimizer: Optimizer,
    state: TrainState,
    gradients: Parameters,
    sums: LossSums,
    finish: Callable[[PyTree], PyTree] = REFERENCE.finish,
) -> tuple[TrainState, StepMetrics]:
    """End a step with the optimiser's update, unless the loss or the gradient is not finite.

    Args:
      gradients: the gradients of the mean loss by the trained parameters.
      finish: the function of new parameters and optimiser state, from `kernels_of`.
    """
    training = config.training
    norm = optax.tree.norm(gradients)
    finite = jnp.isfinite(sums.smoothed) & jnp.isfinite(norm)
    step = state.step + 1
    rate = scheduled_rate(training, config.model.scaling_width, step)
    gradients = clipped(training, gradients)

    def keep(new: optax.OptState, old: optax.OptState) -> optax.OptState:
        return finish(optax.tree.where(finite, new, old))

    directions, kept = optimizer.update(gradients, state.optimizer, state.params, keep)
    params = jax.tree.map(lambda p, d: p - rate * d, state.params, directions)
    params = optax.tree.where(finite, params, state.params)

    in_a_row = jnp.where(finite, 0, state.nonfinite_in_a_row + 1)
    total = state.nonfinite_total + jnp.where(finite, 0, 1)
    ema = state.ema
    if ema is not None and training.ema_decay is not None:
        params = finish(params)
        averaged = moving_average(training.ema_decay, ema, params, step - total)
        ema = optax.tree.where(finite, averaged, ema)
    new_state = TrainState(step, params, kept, in_a_row, total, ema)
    return new_state, StepMetrics(sums, norm, rate, in_a_row, total)


def training_mesh(config: ParallelConfig) -> Mesh:
    """Make the mesh of a training run, by default of all devices of all processes."""
    if config.backend == "pmap" and jax.process_count() > 1:
        raise UserError(
            f"parallel.backend='pmap' is for one process, but {jax.process_count()} have met; use "
            "parallel.backend='jit', which gives the same losses"
        )
    return make_mesh(config)


_CompiledStep = Callable[[TrainState, Batch], tuple[TrainState, StepMetrics]]


def compile_train_step(config: Config, model: Network, mesh: Mesh) -> _CompiledStep:
    """Compile `train_step` for a mesh, which splits batches by rows and updates the state in place.

    The input state is donated: its arrays are overwritten. With `parallel.backend="jit"` the result
    is a function of `jax.jit`, compiled with `compiler_options`, which can also be lowered.
    """
    finish = kernels_of(mesh, config.model.dtype).finish
    step = partial(train_step, config, model, finish=finish)
    if config.parallel.backend == "pmap":
        return _with_pmap(step, mesh)
    shards = state_shardings(config, model, mesh)
    return jax.jit(
        partial(step, mesh=mesh),
        in_shardings=(shards, by_rows(mesh)),
        out_shardings=(shards, replicated(mesh)),
        donate_argnums=0,
        compiler_options=compiler_options(mesh) or None,
    )


def _with_pmap(step: Callable[..., tuple[TrainState, StepMetrics]], mesh: Mesh) -> _CompiledStep:
    """Map the step over devices, each with its rows; the state is one of the equal copies."""
    mapped = jax.pmap(
        partial(step, axis_name="data"),
        axis_name="data",
        in_axes=(None, 1),
        out_axes=None,
        devices=list(mesh.devices.flat),
        donate_argnums=0,
    )
    # The mesh that pmap itself makes: a state on another would compile the step a second time.
    row = Mesh(mesh.devices.ravel(), ("data",))
    whole = NamedSharding(row, PartitionSpec())
    by_device = NamedSharding(row, PartitionSpec(None, "data"))
    split = jax.jit(
        lambda x: x.reshape(len(x), mesh.size, -1, *x.shape[2:]), out_shardings=by_device
    )

    def run(state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        return mapped(jax.device_put(state, whole), jax.tree.map(split, batch))

    return run
