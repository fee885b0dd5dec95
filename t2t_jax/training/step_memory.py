"""Estimates of the memory of a training, and checks that it fits before it is allocated."""

import math
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from t2t_jax.config import Config, ModelConfig, TrainingConfig
from t2t_jax.config.cost import matrices_of_layers, num_parameters
from t2t_jax.config.registry import load_named
from t2t_jax.config.tables import OPTIMIZERS
from t2t_jax.errors import UserError
from t2t_jax.modules.parameters import MatrixBox, Parameters
from t2t_jax.parallel.devices import LESS_MEMORY, gib, memory_of_a_device
from t2t_jax.parallel.mesh import batch_layout, row_parts

_VECTOR = 1 << 30


class TrainingMemory(NamedTuple):
    """The least number of bytes that training takes on each device.

    Attributes:
      state: bytes of the parameters, the optimiser's state and a moving average, float32.
      gradients: bytes of the gradients, float32.
      activations: bytes that the forward pass keeps for the backward pass.
      logits: bytes of the logits, float32, which their gradient overwrites.
      passes: number of passes of a step. With several, the gradients of earlier passes are kept
        beside everything else.
    """

    state: int
    gradients: int = 0
    activations: int = 0
    logits: int = 0
    passes: int = 1

    @property
    def total(self) -> int:
        """Return a lower bound on the peak number of bytes."""
        computed = self.activations + self.logits
        both = self.gradients + computed
        return self.state + (both if self.passes > 1 else max(self.gradients, computed))


def training_memory(
    config: Config, vocab_size: int, shape: tuple[int, int, int] = (0, 0, 0), passes: int = 1
) -> TrainingMemory:
    """Estimate a lower bound on the memory of training; XLA takes up to about twice as much.

    The bound leaves out all that depends on the compiler, the kernels or the kind of device: mainly
    the attention weights, copies for other layouts, and buffers for exchanges between devices.

    Args:
      shape: the rows that a device computes in one pass, and their source and target lengths.
      passes: number of passes in which a device computes its rows of a step.
    """
    model, parallel = config.model, config.parallel
    rows, source_length, target_length = shape
    devices = parallel.fsdp * parallel.tensor
    weights = 4 * num_parameters(model, vocab_size) // devices
    state = 4 * _state_size(config.training, model, vocab_size) // devices
    size = 4 if model.dtype == "float32" else 2
    sources, targets = size * rows * source_length, size * rows * target_length
    # Queries, keys, values and heads of each attention, the hidden layer, and each sub-layer's sum.
    hidden, width = model.d_ff * (1 + model.is_gated) // parallel.tensor, model.d_model
    activations = inputs = products = largest_layer = 0
    for stack in model.stacks:
        positions = sources * stack.reads_source + targets * stack.reads_target
        attention = stack.self_attention.activations // parallel.tensor
        layer = positions * (attention + hidden + 2 * width)
        if (other := stack.cross_attention) is not None:
            attention = other.activations // parallel.tensor
            remembered = other.cache_width // parallel.tensor
            layer += positions * (attention - remembered + width) + sources * remembered
        heads = sum(each.num_heads * each.d_v for each in stack.attentions) // parallel.tensor
        activations += stack.num_layers * layer
        inputs += stack.num_layers * width * positions
        products += stack.num_layers * (layer - positions * heads)
        largest_layer = max(largest_layer, layer)
    # "layer" recomputes all layers, one at a time; "dots" all but products with matrices.
    kept = {"none": activations, "dots": inputs + products, "layer": inputs + largest_layer}
    activations = min(activations, kept[parallel.remat])
    logits = 4 * rows * target_length * vocab_size // (parallel.tensor * parallel.loss_chunks)
    return TrainingMemory(state, weights, activations, logits, passes)


@cache
def _state_size(training: TrainingConfig, model: ModelConfig, vocab_size: int) -> int:
    everything = num_parameters(model, vocab_size)
    declared = _declared(model, vocab_size)
    make = load_named(OPTIMIZERS[training.optimizer].make)
    kept = jax.eval_shape(lambda params: make(training, params).init(params), declared)
    in_arrays = sum(math.prod(x.shape) for x in jax.tree.leaves(kept) if x.shape)
    return everything * (1 if training.ema_decay is None else 2) + in_arrays


def _declared(model: ModelConfig, vocab_size: int) -> Parameters:
    """Make boxed shapes of as many parameters of each kind as the network has, in few arrays."""
    of_layers = [*matrices_of_layers(model)]
    tables = [(entries, model.d_model) for entries in model.entries(vocab_size).values()]
    others = num_parameters(model, vocab_size)
    others -= sum(math.prod(shape) for shape in (*of_layers, *tables))
    many, few = divmod(others, _VECTOR)  # as no axis of an array can have them all
    return {
        **_boxed(MatrixBox, ("layers", "embed", "heads"), *of_layers),
        **_boxed(MatrixBox, ("vocab", "embed"), *tables),
        **_boxed(nn.LogicallyPartitioned, ("vector", "vector"), (many, _VECTOR), (1, few)),
    }


def _boxed(
    kind: type[nn.LogicallyPartitioned], names: tuple[str, ...], *shapes: tuple[int, ...]
) -> Parameters:
    return {
        f"{names[0]}_{number}": kind(jax.ShapeDtypeStruct(shape, jnp.float32), names)
        for number, shape in enumerate(shapes)
    }


def check_memory(
    config: Config, vocab_size: int, mesh: Mesh, shapes: Iterable[tuple[int, int, int]] = ()
) -> TrainingMemory:
    """Refuse a run that cannot fit its devices, before anything is allocated or compiled.

    The estimate is a lower bound (`training_memory`): a run that passes may still need up to about
    twice the memory, and then ends with the error of `parallel.devices.within_memory`.

    Args:
      shapes: the shapes of its batches: rows, source length, target length. Without shapes, only
        the state of the training is counted.

    Returns:
      The least memory of the training on a device.
    """
    memories = [training_memory(config, vocab_size)]
    for rows, source, target in shapes:
        layout = batch_layout(mesh, rows, max(source, target), config.parallel.pass_tokens)
        shape = layout.rows_per_pass // row_parts(mesh), source, target
        memories.append(training_memory(config, vocab_size, shape, layout.passes))
    needed = max(memories, key=lambda memory: memory.total)
    available = memory_of_a_device(mesh)
    if available is not None and needed.total > available:
        platform = mesh.devices.flat[0].platform
        raise UserError(
            f"training needs at least {gib(needed.total)} on each {platform} device (parameters "
            f"and optimizer {gib(needed.state)}, gradients {gib(needed.gradients)}, activations "
            f"{gib(needed.activations)}, logits {gib(needed.logits)}), but there are "
            f"{gib(available)}; {LESS_MEMORY}"
        )
    return needed
