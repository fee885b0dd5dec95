"""Resolve the config fields that a run sets at its start, mostly from its devices."""

from typing import Any

from jax.sharding import Mesh

from t2t_jax.config import Config, walk
from t2t_jax.kernels.choice import fast_compute_dtype
from t2t_jax.parallel.hardware import usable_memory
from t2t_jax.parallel.mesh import row_parts
from t2t_jax.training.step_memory import training_memory

_TOKENS_ON_CPUS = 4096
"""Token positions per pass on CPUs, where larger matmuls are no faster, or if memory is unknown."""
_SAFETY = 2.2
"""Ratio of the memory a step may need to its estimate: XLA uses up to twice the estimate."""


def settled(config: Config, mesh: Mesh, stored: Config | None = None) -> Config:
    """Return the config of a run with explicit values for "auto" and None fields.

    The fields are `model.compute_dtype`, `parallel.tokens_per_device` and
    `training.schedule_steps`.

    Args:
      stored: the config of the run to resume, whose values stay; None for a new run.
    """
    if stored is not None:
        config = _as_stored(config, stored)
    # Storing the end keeps the schedule, even if a user later extends the run.
    end_step = config.training.schedule_end
    if config.training.schedule_steps != end_step:
        config = config.replace({"training.schedule_steps": end_step})
    if config.model.compute_dtype == "auto":
        config = config.replace({"model.compute_dtype": fast_compute_dtype(mesh)})
    if config.parallel.tokens_per_device == "auto":
        config = config.replace({"parallel.tokens_per_device": _tokens_per_device(config, mesh)})
    return config


def _as_stored(config: Config, stored: Config) -> Config:
    chosen = {
        path: stored.value(path)
        for path, leaf, value in walk(config)
        if "left_open" in leaf.metadata and value == leaf.metadata["left_open"]
    }
    # None means one pass, which may not fit the new devices, so "auto" chooses again.
    passes = stored.parallel.tokens_per_device
    if config.parallel.tokens_per_device == "auto" and passes is not None:
        chosen["parallel.tokens_per_device"] = passes
    return config.replace(chosen)


def _tokens_per_device(config: Config, mesh: Mesh) -> int:
    # Few passes are faster: every pass launches all kernels and adds to all gradients. On CPUs both
    # cost little.
    devices: Any = mesh.devices.ravel().tolist()
    available = usable_memory(devices)
    if devices[0].platform == "cpu" or available is None:
        return _TOKENS_ON_CPUS
    data, length = config.data, config.data.max_length
    max_tokens = max(data.source_tokens_per_step, data.target_tokens_per_step) // row_parts(mesh)
    tokens = 1 << max(0, max_tokens - 1).bit_length()
    passes = 1
    while tokens > length:
        rows = min(tokens, max_tokens) // length + 1
        required = training_memory(config, data.vocab_size, (rows, length, length), passes).total
        if _SAFETY * required <= available:
            break
        tokens, passes = tokens // 2, 2 * passes
    return tokens
