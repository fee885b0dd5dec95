"""Compile the training step for devices that need not exist: XLA for TPU runs without a TPU."""

import math
import os
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies

from t2t_jax.ahead_of_time.collectives import collectives
from t2t_jax.ahead_of_time.hardware import peaks, usable_memory
from t2t_jax.ahead_of_time.hlo import parse
from t2t_jax.ahead_of_time.report import StepMemory, StepReport
from t2t_jax.config import Config
from t2t_jax.data.batching import batch_shape, ladder_length, length_ladder
from t2t_jax.data.masking import masked_room
from t2t_jax.data.rows import BatchShape
from t2t_jax.errors import UserError
from t2t_jax.modules.cost import model_flops_per_step, num_parameters
from t2t_jax.modules.models import make_model, settled
from t2t_jax.parallel.devices import all_devices
from t2t_jax.parallel.mesh import BatchLayout, batch_layout, make_mesh
from t2t_jax.training.step import abstract_batch, abstract_state, compile_train_step

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = r"([\d.]+)([KMGT]?)"
_OUT_OF_MEMORY = re.compile(rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)")


def devices_of(topology: str) -> list[jax.Device]:
    """The devices of a TPU topology that need not be there, or of this machine.

    Args:
      topology: a generation and a shape, such as `v5e:4x4`; empty for the devices there are.

    Raises:
      UserError: there is no such topology, or no compiler for TPUs.
    """
    if not topology:
        return list(all_devices())
    if find_spec("libtpu") is None:
        raise UserError(
            f"--compile-only {topology} needs libtpu, XLA's compiler for TPUs; install it by "
            "pip install -e '.[tpu]'"
        )
    # Nothing runs here: leave accelerators, and the library's lock on them, to others. And nothing
    # is kept: JAX writes such programs to its cache, but cannot read them back.
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_compilation_cache", False)
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
    sizes = re.findall(r"\d+", topology.partition(":")[2])
    # A host has 2 x 2 chips, unless there are fewer.
    host = [min(2, int(size)) for size in [*sizes, "2", "2"][:2]] + [1]
    try:
        described = topologies.get_topology_desc(
            platform="tpu", topology_name=topology, chips_per_host_bounds=host
        )
    except jax.errors.JaxRuntimeError as error:
        raise UserError(
            f"--compile-only {topology} is no TPU topology ({str(error).splitlines()[0]}); give a "
            "generation and a shape, as in v5e:4x4 or v5p:4x4x4"
        ) from error
    return list(described.devices)


def compile_ahead(config: Config, devices: Sequence[jax.Device]) -> StepReport:
    """Compile the training step of a config for some devices, and report.

    The vocabulary is as large as the config asks for; no corpus is read.

    Raises:
      UserError: the mesh does not go with the devices, or an array not with the mesh.
    """
    if config.parallel.backend != "jit":
        raise UserError(
            "--compile-only compiles what parallel.backend='jit' runs, but it is "
            f"{config.parallel.backend!r}; add --parallel.backend jit"
        )
    mesh = make_mesh(config.parallel, devices)
    config = settled(config, mesh)
    model = make_model(config, config.data.vocab_size, mesh)
    shape = _largest_shape(config)
    longest = max(shape[1:])
    layout = batch_layout(mesh, shape.rows, longest, config.parallel.tokens_per_device)
    state = abstract_state(config, model, mesh)
    patch_values = config.model.patch_values
    batch = abstract_batch(layout, shape.source_length, shape.target_length, patch_values)
    step: Any = compile_train_step(config, model, mesh)
    start = time.monotonic()
    program = _compile(step.lower(state, batch))
    seconds = time.monotonic() - start
    kept = state.optimizer, state.ema
    arguments = [_device_bytes(each) for each in (state.params, kept, batch)]
    report = StepReport(
        devices=f"{mesh.size} x {devices[0].device_kind}",
        mesh_shape=dict(mesh.shape),
        num_parameters=num_parameters(config.model, config.data.vocab_size),
        shape=shape,
        passes=layout.passes,
        compile_seconds=seconds,
        flops=_flops(config, layout, shape),
        hardware=peaks(devices),
        memory=StepMemory(*arguments),
        available_bytes=usable_memory(devices),
    )
    if isinstance(program, _Refusal):
        rest = program.needed_bytes - report.memory.total
        return replace(
            report,
            memory=replace(report.memory, temporaries=rest),
            available_bytes=program.available_bytes,
            refused=True,
        )
    return _with_program(report, program, devices[0].platform)


def _largest_shape(config: Config) -> BatchShape:
    """The shape of a batch whose rows are as long as they may be, one example in each."""
    data = config.data
    if config.model.num_patches:
        length = config.model.num_positions
        return batch_shape(data, ladder_length(length), ladder_length(length))._replace(
            source_length=length, target_length=1
        )
    longest = length_ladder(data.max_length)[-1]
    shape = batch_shape(data, longest * (data.task != "language_modelling"), longest)
    if data.task == "masked_language_modelling":
        return shape._replace(target_length=masked_room(data.masked_share, longest))
    return shape._replace(target_length=1) if data.task == "classification" else shape


def _with_program(report: StepReport, program: jax.stages.Compiled, platform: str) -> StepReport:
    """Add to a report the figures that only the compiled program has."""
    stats: Any = program.memory_analysis()
    temporaries = _temporary_bytes(stats, platform)
    code = stats.generated_code_size_in_bytes
    # Arguments are read and results written; each pass writes what it keeps for its derivatives,
    # reads it again, and reads the parameters.
    moved = stats.argument_size_in_bytes + stats.output_size_in_bytes
    moved += 2 * report.passes * temporaries + (report.passes - 1) * report.memory.parameters
    return replace(
        report,
        memory=replace(report.memory, temporaries=temporaries, program=code),
        moved_bytes=moved,
        collectives=collectives(parse(program.as_text() or "")),
    )


class _Refusal(NamedTuple):
    """What the compiler says where it refuses a program that needs more memory than there is."""

    needed_bytes: int
    available_bytes: int


def _compile(lowered: jax.stages.Lowered) -> jax.stages.Compiled | _Refusal:
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        found = _OUT_OF_MEMORY.search(str(error))
        if not found:
            raise
        needed, needed_unit, available, unit = found.groups()
        return _Refusal(
            int(float(needed) * _UNITS[needed_unit]), int(float(available) * _UNITS[unit])
        )


def _temporary_bytes(stats: Any, platform: str) -> int:
    """The bytes that a step takes on each device besides its arguments."""
    if platform == "tpu":  # the number that the compiler holds against the memory there is
        return stats.peak_memory_in_bytes - stats.argument_size_in_bytes
    return stats.temp_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes


def _device_bytes(tree: object) -> int:
    """The bytes that the arrays of a tree take on each device."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
    )


def _flops(config: Config, layout: BatchLayout, shape: BatchShape) -> float:
    """The floating point operations of a step on one device, by the formulas of `modules.cost`.

    XLA's own count would be too low: it counts the body of a loop, such as that over layers, once.
    """
    rows = layout.passes * layout.rows_per_pass
    total = model_flops_per_step(
        config.model,
        config.data.vocab_size,
        rows * shape.source_length,
        rows * shape.target_length,
        source_length=shape.source_length,
        target_length=shape.target_length,
    )
    return total / layout.mesh.size
