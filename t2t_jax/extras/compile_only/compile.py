"""Compile a training step, and a decoding step, for devices that may be absent."""

import math
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.mesh import use_abstract_mesh  # public only after JAX 0.6
from jax.sharding import NamedSharding
from jaxtyping import PyTree

from t2t_jax.config import Config, cost
from t2t_jax.data.rows import BatchShape
from t2t_jax.decoding.programs import Arrivals, Search, SearchInputs, Sizes, begin_work, proceed
from t2t_jax.decoding.scheduler import strategy_of
from t2t_jax.errors import UserError
from t2t_jax.extras.compile_only import report
from t2t_jax.extras.compile_only.collectives import collectives
from t2t_jax.extras.compile_only.hlo import parse_program
from t2t_jax.extras.compile_only.kernels import kernels, loop_kernels
from t2t_jax.modules import models, named_functions
from t2t_jax.parallel.axes import partition_spec
from t2t_jax.parallel.hardware import peaks, usable_memory
from t2t_jax.parallel.jax_settings import described_options
from t2t_jax.parallel.mesh import batch_layout, described_slices, make_mesh, row_parts
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.tasks import task_of
from t2t_jax.training.settling import settled
from t2t_jax.training.state import abstract_state
from t2t_jax.training.step import abstract_batch, compile_train_step

_SENTENCES = 64  # decoded at once
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = r"([\d.]+)([KMGT]?)"
_OUT_OF_MEMORY = re.compile(rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)")


def compile_ahead(
    config: Config, devices: Sequence[jax.Device], write_program: Path | None = None
) -> report.StepReport:
    """Compile the training step of a config for the given devices, without reading a corpus.

    Args:
      config: its `data.vocab_size` sets the size of the vocabulary.
      devices: devices that need not be attached.
      write_program: file for the text of the compiled program; None writes no file.
    """
    if config.parallel.backend != "jit":
        raise UserError(
            "--compile-only supports only parallel.backend='jit', but the config has "
            f"{config.parallel.backend!r}; add --parallel.backend jit"
        )
    for problem in named_functions.function_problems(config, executes=False):
        raise UserError(problem)
    mesh = make_mesh(config.parallel, devices)
    config = settled(config, mesh)
    model = models.make_model(config, config.data.vocab_size, mesh)
    shape = task_of(config.data.corpus, config.data.task).largest_shape(config)
    layout = batch_layout(mesh, shape.rows, max(shape[1:]), config.parallel.pass_tokens)
    state = abstract_state(config, model, mesh)
    batch = abstract_batch(layout, model.example(), shape.source_length, shape.target_length)
    train_step: Any = compile_train_step(config, model, mesh)
    start_time = time.monotonic()
    with use_abstract_mesh(mesh.abstract_mesh):  # kernels read the kind of device from it
        lowered = train_step.lower(state, batch)
    arguments = state.params, (state.optimizer, state.ema), batch
    memory = report.StepMemory(*map(_bytes_of_a_device, arguments))
    available = usable_memory(devices)
    program, hlo_text = None, ""
    try:
        program = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        shortage = _OUT_OF_MEMORY.search(str(error))
        if not shortage:
            raise
        required, available = _num_bytes(*shortage.group(1, 2)), _num_bytes(*shortage.group(3, 4))
        memory = replace(memory, temporaries=required - memory.total)
    compile_seconds = time.monotonic() - start_time
    if program is not None:
        stats = program.memory_analysis()
        memory = replace(
            memory,
            temporaries=_temporary_bytes(stats, "TPU" in devices[0].device_kind),
            program=stats.generated_code_size_in_bytes,
        )
        hlo_text = program.as_text() or ""
        if write_program is not None:
            write_whole(write_program, hlo_text.encode())
    hlo = parse_program(hlo_text)
    return report.StepReport(
        devices=f"{mesh.size} x {devices[0].device_kind}",
        mesh_shape=dict(mesh.shape),
        num_parameters=cost.num_parameters(config.model, config.data.vocab_size),
        shape=shape,
        passes=layout.passes,
        compile_seconds=compile_seconds,
        flops=_flops(config, layout.passes * layout.rows_per_pass, shape) / mesh.size,
        hardware=peaks(devices),
        memory=memory,
        available_bytes=available,
        num_train_steps=config.training.num_train_steps,
        slices=described_slices(mesh),
        compiler_options=described_options(mesh),
        exceeds_memory=program is None,
        collectives=collectives(hlo),
        kernels=kernels(hlo),
    )


def compile_search(config: Config, devices: Sequence[jax.Device]) -> report.SearchReport:
    """Compile a step of greedy or beam search (`decoding.beam_size`) for the given devices."""
    mesh = make_mesh(config.parallel, devices)
    config = settled(config, mesh)
    vocab_size = config.data.vocab_size
    state = abstract_state(config, models.make_model(config, vocab_size, mesh), mesh)
    model = models.make_decoding_model(config.model, vocab_size, mesh)
    search = Search(model, strategy_of(config.decoding), mesh, 1)
    num_rows = -(-_SENTENCES // row_parts(mesh)) * row_parts(mesh)
    sizes = Sizes(num_rows, num_rows, report.SOURCE_LENGTH, report.ROOM, report.ROOM)

    def abstract(x: np.ndarray) -> Any:
        sharding = NamedSharding(mesh, partition_spec(["batch"]))
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    row_ids = abstract(np.zeros(num_rows, np.int32))
    inputs = jax.tree.map(abstract, model.sources.padded([], num_rows, report.SOURCE_LENGTH))
    arrivals = Arrivals(row_ids, inputs, row_ids, row_ids)
    seed, max_live = (jax.ShapeDtypeStruct((), dtype) for dtype in (jnp.uint32, jnp.int32))
    start_time = time.monotonic()
    with use_abstract_mesh(mesh.abstract_mesh):  # Pallas reads the kind of device from it
        prepare = partial(model.prepare, quantize=config.decoding.quantize)
        params = results_of(jax.jit(prepare).lower(state.params))
        search_inputs = SearchInputs(params, seed)
        work = results_of(begin_work.lower(search, sizes, search_inputs))
        program = proceed.lower(search, search_inputs, work, arrivals, max_live).compile()
    decoder_params = {name: tree for name, tree in params.items() if name != "encoder"}
    return report.SearchReport(
        mesh_shape=dict(mesh.shape),
        sentences=num_rows,
        beam_size=search.strategy.beam_size,
        compile_seconds=time.monotonic() - start_time,
        kernels=loop_kernels(parse_program(program.as_text() or "")),
        weight_bytes=_bytes_of_a_device(decoder_params),
        cache_bytes=_bytes_of_a_device((work.state.cache, work.memory)),
        hardware=peaks(devices),
    )


def results_of(lowered: jax.stages.Lowered) -> PyTree[jax.ShapeDtypeStruct]:
    """Compile a lowered program, and return the shapes and shardings of its results."""
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        lowered.out_info,
        lowered.compile().output_shardings,
    )


def _num_bytes(number: str, unit: str) -> int:
    return int(float(number) * _UNITS[unit])


def _temporary_bytes(stats: Any, is_tpu: bool) -> int:
    """Return the bytes of device memory that a compiled step needs besides its arguments."""
    if is_tpu:  # the compiler compares this peak with the available memory
        return stats.peak_memory_in_bytes - stats.argument_size_in_bytes
    return stats.temp_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes


def _flops(config: Config, num_rows: int, shape: BatchShape) -> float:
    # XLA's own count is too low, because it counts the body of a loop over layers once.
    return cost.model_flops_per_step(
        config.model,
        config.data.vocab_size,
        num_rows * shape.source_length,
        num_rows * shape.target_length,
        source_length=shape.source_length,
        target_length=shape.target_length,
    )


def _bytes_of_a_device(tree: object) -> int:
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
    )
