"""The training step: a pure function of the state and a batch."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias, TypeVar, cast

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float32, Int32, PyTree, Shaped

from t2t_jax.batch import Batch
from t2t_jax.config import Config, ParallelConfig
from t2t_jax.config.registered import registered_parts
from t2t_jax.errors import UserError, user_code
from t2t_jax.kernels.choice import kernels_of
from t2t_jax.kernels.reference import REFERENCE
from t2t_jax.modules.decoding_model import ScoringModel
from t2t_jax.modules.interceptors import InterceptedJit
from t2t_jax.modules.network import Network, declared_parameters
from t2t_jax.modules.parameters import Parameters
from t2t_jax.parallel.jax_settings import compiler_options, fixed_random_bits, random_key
from t2t_jax.parallel.mesh import BatchLayout, by_rows, make_mesh, replicated
from t2t_jax.training.objective import (
    LOSS,
    Apply,
    LossSums,
    MetricsFunction,
    Pair,
    StepSums,
    loss_sums,
    name_of,
    step_sums,
)
from t2t_jax.training.optimizer import Optimizer, join_parameters, partition
from t2t_jax.training.recipe import are_frozen, clipped, make_optimizer, moving_average
from t2t_jax.training.schedule import scheduled_rate
from t2t_jax.training.state import TrainState, abstract_state, state_shardings


class StepMetrics(NamedTuple):
    """Metrics of a step, which stay on the device until the log reads them.

    Attributes:
      losses: sums over the target tokens of the global batch.
      gradient_norm: Euclidean norm of the gradient of the mean loss, before clipping.
      learning_rate: NaN if only the optimizer knows it.
      nonfinite_in_a_row: the same counter as in `TrainState`.
      nonfinite_total: the same counter as in `TrainState`.
      pairs: sums of a custom loss and metrics; see `StepSums`.
    """

    losses: LossSums
    gradient_norm: Float32[Array, ""]
    learning_rate: Float32[Array, ""]
    nonfinite_in_a_row: Int32[Array, ""]
    nonfinite_total: Int32[Array, ""]
    pairs: Mapping[str, Pair]


_Sums = TypeVar("_Sums")
_Gradients: TypeAlias = Callable[..., tuple[Parameters, StepSums]]


def _sum_over_passes(compute: Callable[[Batch, Int32[Array, ""]], _Sums], batch: Batch) -> _Sums:
    """Sum `compute(batch_of_pass, pass_index)` over the passes of a `[passes, rows, t]` batch."""
    num_passes = len(batch.targets.tokens)
    indexed_passes = (batch, jnp.arange(num_passes))
    first_pass = jax.tree.map(lambda x: x[0], indexed_passes)
    if num_passes == 1:  # no `scan`, so that XLA compiles the pass without a loop
        return compute(*first_pass)

    def add(total: _Sums, indexed_pass: tuple[Batch, Int32[Array, ""]]) -> tuple[_Sums, None]:
        return jax.tree.map(jnp.add, total, compute(*indexed_pass)), None

    shapes = jax.eval_shape(compute, *first_pass)
    zero_totals = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.scan(add, zero_totals, indexed_passes)[0]


@partial(InterceptedJit, static_argnums=(0, 1))
def eval_step(
    model: ScoringModel, label_smoothing: float, params: Parameters, batch: Batch
) -> tuple[LossSums, Float32[Array, "passes rows t"]]:
    """Compute the losses of a batch, without dropout.

    Args:
      label_smoothing: the probability mass epsilon_ls (section 5.4).
      batch: arrays `[passes, rows, t]`.

    Returns:
      The sums over the batch, and the negative log-likelihood of each target position, in nats;
      values at padding are meaningless.
    """

    def add(total: LossSums, rows: Batch) -> tuple[LossSums, Float32[Array, "rows t"]]:
        losses = model.losses(params, rows, label_smoothing)
        return jax.tree.map(jnp.add, total, loss_sums(losses, rows)), losses[1]

    zero_sums = LossSums(*jnp.zeros(3))
    if len(batch.targets.tokens) > 1:
        return jax.lax.scan(add, zero_sums, batch)
    sums, nll = add(zero_sums, jax.tree.map(lambda x: x[0], batch))
    return sums, nll[None]


def abstract_batch(
    layout: BatchLayout, example: Batch, source_length: int, target_length: int
) -> Batch:
    """Return a `jax.ShapeDtypeStruct` with a sharding for every array of a batch.

    Args:
      layout: gives the passes, the rows per pass and the mesh.
      example: a batch with the fields and dtypes of the network, from `Network.example`.
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
    metrics: MetricsFunction | None = None,
) -> tuple[TrainState, StepMetrics]:
    """Update the parameters by one step (sections 5.3 and 5.4).

    The loss is the mean over the target tokens of the global batch, or that of the config. The
    step skips an update whose loss or gradient is not finite: parameters, optimizer state and
    moving average stay unchanged.

    Args:
      batch: the global batch of step `state.step`, arrays `[passes, rows, t]`.
      axis_name: name of a mapped axis (`jax.pmap`), over which the rows of every pass are split
        into contiguous parts. None means that `batch` has all rows.
      mesh: the devices of the state and the batch, which then reduce the gradients of several
        passes once; None lets the compiler choose.
      finish: wraps new parameters and optimizer state before other code reads them (`kernels_of`).
      metrics: the user's metrics; see `training.objective`.
    """
    compute: _Gradients = partial(_gradient_sums, config, model, metrics, axis_name=axis_name)
    num_passes = len(batch.targets.tokens)
    if mesh is not None and num_passes > 1 and mesh.shape["data"] > 1:
        compute = _reducing_once(compute, mesh)
    gradients, sums = compute(state.params, state.step, batch)
    weight = sums.loss[1]
    # A batch of padding has the weight 0. The weight of a custom loss may be a fraction.
    is_custom = LOSS in sums.pairs
    divisor = jnp.where(weight == 0, 1, weight) if is_custom else jnp.maximum(weight, 1)
    gradients = optax.tree.scale(1 / divisor, gradients)
    optimizer = make_optimizer(config, declared_parameters(model))
    return update(config, optimizer, state, gradients, sums, finish)


def _gradient_sums(
    config: Config,
    model: Network,
    metrics: MetricsFunction | None,
    params: Parameters,
    step: Int32[Array, ""],
    batch: Batch,
    *,
    axis_name: str | None,
) -> tuple[Parameters, StepSums]:
    """Compute the gradient of the summed loss, and the sums, over all passes.

    With `axis_name`, both are also summed over the members of the mapped axis.
    """
    training = config.training
    step_key = jax.random.fold_in(random_key(training.effective_seed("dropout_seed")), step)
    num_rows = batch.targets.tokens.shape[1]
    num_parts, part_index = 1, jnp.zeros((), jnp.int32)
    if axis_name is not None:
        num_parts, part_index = jax.lax.axis_size(axis_name), jax.lax.axis_index(axis_name)
    trained, fixed = params, cast(Parameters, {})
    if training.freeze:
        fixed, trained = partition(params, are_frozen(training.freeze, declared_parameters(model)))

    def of_pass(pass_batch: Batch, pass_index: Int32[Array, ""]) -> tuple[Parameters, StepSums]:
        def total(trained: Parameters) -> tuple[Float32[Array, ""], StepSums]:
            apply = Apply(
                config,
                model,
                params=join_parameters(fixed, trained) if fixed else trained,
                first_row=(pass_index * num_parts + part_index) * num_rows,
            )
            sums = step_sums(apply, pass_batch, step_key, metrics)
            return sums.loss[0], sums

        return jax.grad(total, has_aux=True)(trained)

    sums = _sum_over_passes(of_pass, batch)
    return sums if axis_name is None else jax.lax.psum(sums, axis_name)


def _reducing_once(compute: _Gradients, mesh: Mesh) -> _Gradients:
    """Wrap `_gradient_sums` so that devices reduce their gradients once, after the last pass."""
    # The compiler would all-reduce the gradient in every pass. Instead each index of the mesh axis
    # `data` accumulates its own gradient over contiguous rows of every pass.
    num_parts = mesh.shape["data"]
    mapped = jax.vmap(
        partial(compute, axis_name="data"),
        in_axes=(None, None, 1),
        out_axes=None,
        axis_name="data",
        spmd_axis_name="data",
    )

    def run(params: Parameters, step: Int32[Array, ""], batch: Batch) -> tuple[PyTree, StepSums]:
        # [passes, rows, t] -> [passes, parts, rows per part, t]
        parted_batch = jax.tree.map(lambda x: x.reshape(len(x), num_parts, -1, *x.shape[2:]), batch)
        return mapped(params, step, parted_batch)

    return run


def update(
    config: Config,
    optimizer: Optimizer,
    state: TrainState,
    gradients: Parameters,
    sums: StepSums,
    finish: Callable[[PyTree], PyTree] = REFERENCE.finish,
) -> tuple[TrainState, StepMetrics]:
    """Apply the optimizer update of a step, unless the loss or the gradient is not finite.

    Args:
      gradients: the gradients of the mean loss with respect to the trained parameters.
      finish: wraps new parameters and optimizer state before other code reads them (`kernels_of`).
    """
    training = config.training
    norm = optax.tree.norm(gradients)
    is_finite = jnp.isfinite(sums.loss[0]) & jnp.isfinite(norm)
    if LOSS in sums.pairs:  # a custom weight, unlike a number of tokens, may be 0 or infinite
        is_finite &= jnp.isfinite(sums.loss[1]) & (sums.loss[1] > 0)
    step = state.step + 1
    rate = jnp.ones(())
    if not optimizer.has_rate:
        rate = scheduled_rate(training, config.model.scaling_width, step)
    gradients = clipped(training, gradients)

    def keep(new: optax.OptState, old: optax.OptState) -> optax.OptState:
        return finish(optax.tree.where(is_finite, new, old))

    directions, optimizer_state = optimizer.update(gradients, state.optimizer, state.params, keep)
    params = jax.tree.map(lambda p, d: p - rate * d, state.params, directions)
    params = optax.tree.where(is_finite, params, state.params)

    # Counters and the moving average read `is_finite` on the device, so the host need not wait.
    num_in_a_row = jnp.where(is_finite, 0, state.nonfinite_in_a_row + 1)
    num_skipped = state.nonfinite_total + jnp.where(is_finite, 0, 1)
    ema = state.ema
    if ema is not None and training.ema_decay is not None:
        params = finish(params)
        averaged = moving_average(training.ema_decay, ema, params, step - num_skipped)
        ema = optax.tree.where(is_finite, averaged, ema)
    if optimizer.has_rate:  # only `optax.inject_hyperparams` stores the rate
        stored = optax.tree.get_all_with_path(optimizer_state, "learning_rate")
        rates = [rate for _, rate in stored if isinstance(rate, jax.Array) and rate.ndim == 0]
        rate = jnp.asarray(rates[0] if len(rates) == 1 else jnp.nan, jnp.float32)
    new_state = TrainState(step, params, optimizer_state, num_in_a_row, num_skipped, ema)
    metrics = StepMetrics(sums.losses, norm, rate, num_in_a_row, num_skipped, sums.pairs)
    return new_state, metrics


def training_mesh(config: ParallelConfig) -> Mesh:
    """Make the mesh of a training run, by default of all devices of all processes."""
    if config.backend == "pmap" and jax.process_count() > 1:
        raise UserError(
            f"parallel.backend='pmap' is for one process, but {jax.process_count()} are connected; "
            "use parallel.backend='jit', which gives the same losses"
        )
    return make_mesh(config)


_CompiledStep = Callable[[TrainState, Batch], tuple[TrainState, StepMetrics]]


def check_functions(
    config: Config,
    model: Network,
    mesh: Mesh,
    batch: Batch,
    metrics: MetricsFunction | None = None,
) -> None:
    """Trace a step with functions of the user, without computing it.

    Args:
      batch: the shapes from `abstract_batch`.

    Raises:
      UserError: a function of the user fails, or its result has another form.
    """
    titles = [part.title for part in registered_parts(config).values()]
    titles += [] if metrics is None else [f"metrics {name_of(metrics)}"]
    if not titles:
        return
    step = partial(train_step, config, model, mesh=mesh, metrics=metrics)
    with user_code(f"a training step with {' and '.join(titles)}", "fix it"):
        jax.eval_shape(step, abstract_state(config, model, mesh), batch)


def compile_train_step(
    config: Config, model: Network, mesh: Mesh, metrics: MetricsFunction | None = None
) -> _CompiledStep:
    """Compile `train_step` for a mesh that splits batches by rows.

    The input state is donated: the step overwrites its arrays. With `parallel.backend="jit"` the
    result is a `jax.jit` function with `compiler_options`, which can also be lowered.
    """
    finish = kernels_of(mesh, config.model.dtype).finish
    step = partial(train_step, config, model, finish=finish, metrics=metrics)
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
    """Map the step over devices with `jax.pmap`; each device computes its rows of the batch."""
    mapped = jax.pmap(
        partial(step, axis_name="data"),
        axis_name="data",
        in_axes=(None, 1),
        out_axes=None,
        devices=list(mesh.devices.flat),
        donate_argnums=0,
    )
    # The same mesh as pmap makes: a state on another mesh would compile the step a second time.
    pmap_mesh = Mesh(mesh.devices.ravel(), ("data",))
    replicated_sharding = NamedSharding(pmap_mesh, PartitionSpec())
    by_device = NamedSharding(pmap_mesh, PartitionSpec(None, "data"))
    split = jax.jit(
        lambda x: x.reshape(len(x), mesh.size, -1, *x.shape[2:]), out_shardings=by_device
    )

    def run(state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        return mapped(jax.device_put(state, replicated_sharding), jax.tree.map(split, batch))

    return run
