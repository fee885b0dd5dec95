"""Estimate the memory of a training run, and check that it fits the devices."""

import math
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from t2t_jax.config import Config
from t2t_jax.config.cost import num_parameters
from t2t_jax.errors import UserError
from t2t_jax.modules.models import make_model
from t2t_jax.modules.network import declared_parameters
from t2t_jax.parallel.devices import LESS_MEMORY, gib, memory_of_a_device
from t2t_jax.parallel.mesh import batch_layout, row_parts
from t2t_jax.training.recipe import make_optimizer


class TrainingMemory(NamedTuple):
    """A lower bound on the bytes that training uses on each device.

    Attributes:
      state: bytes of the parameters, the optimizer state and a moving average, float32.
      gradients: bytes of the gradients, float32.
      activations: bytes that the forward pass keeps for the backward pass.
      logits: bytes of the logits, float32, which their gradient overwrites.
      passes: number of passes of a step. From two passes on, the gradients of earlier passes and
        the activations are in memory at the same time.
    """

    state: int
    gradients: int = 0
    activations: int = 0
    logits: int = 0
    passes: int = 1

    @property
    def total(self) -> int:
        """Return a lower bound on the peak memory in bytes."""
        pass_memory = self.activations + self.logits
        concurrent = self.gradients + pass_memory
        return self.state + (concurrent if self.passes > 1 else max(self.gradients, pass_memory))


def training_memory(
    config: Config, vocab_size: int, shape: tuple[int, int, int] = (0, 0, 0), passes: int = 1
) -> TrainingMemory:
    """Estimate a lower bound on the memory of training; XLA uses up to about twice as much.

    The bound excludes everything that depends on the compiler, the kernels or the device: mainly
    attention weights, layout copies and communication buffers.

    Args:
      shape: rows per device and pass, source length, target length.
      passes: number of passes of a step.
    """
    model, parallel = config.model, config.parallel
    rows, source_length, target_length = shape
    num_devices = parallel.fsdp * parallel.tensor
    gradients = 4 * num_parameters(model, vocab_size) // num_devices
    state = 4 * _state_size(config, vocab_size) // num_devices
    size = 4 if model.dtype == "float32" else 2
    source_bytes, target_bytes = size * rows * source_length, size * rows * target_length
    # Each layer stores the queries, keys, values and heads of each attention, the hidden layer of
    # the feed-forward network, and the sum after each sub-layer.
    hidden, width = model.d_ff * (1 + model.is_gated) // parallel.tensor, model.d_model
    activations = inputs = matmuls = largest_layer = 0
    for stack in model.stacks:
        unit_bytes = source_bytes * stack.reads_source + target_bytes * stack.reads_target
        attention = stack.self_attention.activations // parallel.tensor
        layer_bytes = unit_bytes * (attention + hidden + 2 * width)
        if (cross_attention := stack.cross_attention) is not None:
            attention = cross_attention.activations // parallel.tensor
            cached = cross_attention.cache_width // parallel.tensor
            layer_bytes += unit_bytes * (attention - cached + width) + source_bytes * cached
        head_width = sum(a.head_outputs for a in stack.attentions) // parallel.tensor
        activations += stack.num_layers * layer_bytes
        inputs += stack.num_layers * width * unit_bytes
        matmuls += stack.num_layers * (layer_bytes - unit_bytes * head_width)
        largest_layer = max(largest_layer, layer_bytes)
    # "layer" recomputes one layer at a time; "dots" recomputes everything except matmuls.
    stored = {"none": activations, "dots": inputs + matmuls, "layer": inputs + largest_layer}
    activations = min(activations, stored[parallel.remat])
    logits = 4 * rows * target_length * vocab_size // (parallel.tensor * parallel.loss_chunks)
    return TrainingMemory(state, gradients, activations, logits, passes)


@cache
def _state_size(config: Config, vocab_size: int) -> int:
    """Count the values of the parameters, the optimizer state and the moving average."""
    declared = declared_parameters(make_model(config, vocab_size, None))
    state = jax.eval_shape(make_optimizer(config, declared).init, declared)
    num_trees = 1 if config.training.ema_decay is None else 2
    sizes = (math.prod(x.shape) for x in jax.tree.leaves(state) if x.shape)
    return num_parameters(config.model, vocab_size) * num_trees + sum(sizes)


def check_memory(
    config: Config, vocab_size: int, mesh: Mesh, shapes: Iterable[tuple[int, int, int]] = ()
) -> TrainingMemory:
    """Refuse a run that cannot fit its devices, before JAX allocates or compiles anything.

    The estimate is a lower bound, so a run that passes this check may still run out of memory.

    Args:
      shapes: the batch shapes: rows, source length, target length. Without shapes, the check counts
        only the training state.
    """
    memories = [training_memory(config, vocab_size)]
    for rows, source, target in shapes:
        layout = batch_layout(mesh, rows, max(source, target), config.parallel.pass_tokens)
        shape = layout.rows_per_pass // row_parts(mesh), source, target
        memories.append(training_memory(config, vocab_size, shape, layout.passes))
    largest = max(memories, key=lambda memory: memory.total)
    available = memory_of_a_device(mesh)
    if available is not None and largest.total > available:
        platform = mesh.devices.flat[0].platform
        raise UserError(
            f"training needs at least {gib(largest.total)} on each {platform} device (parameters "
            f"and optimizer {gib(largest.state)}, gradients {gib(largest.gradients)}, activations "
            f"{gib(largest.activations)}, logits {gib(largest.logits)}), but there are "
            f"{gib(available)}; {LESS_MEMORY}"
        )
    return largest
