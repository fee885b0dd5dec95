"""The compilation of a search for devices that need not exist, and the cost of one of its steps."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.mesh import use_abstract_mesh  # public only after JAX 0.6
from jax.sharding import NamedSharding

from t2t_jax.config import Config
from t2t_jax.decoding.programs import Arrivals, Search, Sizes, begin_work, proceed
from t2t_jax.decoding.scheduler import strategy_of
from t2t_jax.extras.compile_only.hlo import parse_program
from t2t_jax.extras.compile_only.kernels import Kernel, kernels_of_a_round
from t2t_jax.extras.compile_only.report import binary, collective_lines, kernel_lines
from t2t_jax.extras.compile_only.roofline import roofline
from t2t_jax.modules.models import make_decoding_model, make_model
from t2t_jax.parallel.axes import RULES
from t2t_jax.parallel.devices import bytes_of_a_device
from t2t_jax.parallel.hardware import Hardware, peaks
from t2t_jax.parallel.mesh import make_mesh, row_parts
from t2t_jax.training.settling import settled
from t2t_jax.training.state import abstract_state

_SENTENCES = 64
_SOURCE_LENGTH = 64
_ROOM = 128


@dataclass(frozen=True)
class SearchReport:
    """The figures of one step of a search, in which every sentence gets a token."""

    mesh_shape: Mapping[str, int]
    """Devices along each axis of the mesh."""
    sentences: int
    """The number of sentences that are decoded at once, over all devices."""
    beam_size: int
    """The number of hypotheses of a sentence."""
    compile_seconds: float
    """The seconds that the compiler took."""
    kernels: Sequence[Kernel]
    """All kernels of a step."""
    weight_bytes: int
    """The bytes of the parameters that a step reads on a device, without an encoder."""
    cache_bytes: int
    """The bytes of the keys and values of sources and outputs on a device."""
    hardware: Hardware | None
    """The device's published peaks; None where they are not known."""


def compile_search(config: Config, devices: Sequence[jax.Device]) -> SearchReport:
    """Compile the search of a config for some devices, with `decoding.beam_size` hypotheses."""
    mesh = make_mesh(config.parallel, devices)
    config = settled(config, mesh)
    vocab_size = config.data.vocab_size
    state = abstract_state(config, make_model(config, vocab_size, mesh), mesh)
    model = make_decoding_model(config.model, vocab_size, mesh)
    search = Search(model, strategy_of(config.decoding), mesh, 1)
    rows = -(-_SENTENCES // row_parts(mesh)) * row_parts(mesh)
    sizes = Sizes(rows, rows, _SOURCE_LENGTH, _ROOM, _ROOM)

    def placed(x: Any) -> Any:
        place = NamedSharding(mesh, RULES.spec(["batch"]))
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)

    numbers = placed(np.zeros(rows, np.int32))
    inputs = jax.tree.map(placed, model.sources.padded([], rows, _SOURCE_LENGTH))
    arrivals = Arrivals(numbers, inputs, numbers, numbers)
    seed, leave = (jax.ShapeDtypeStruct((), dtype) for dtype in (jnp.uint32, jnp.int32))
    start = time.monotonic()
    with use_abstract_mesh(mesh.abstract_mesh):  # Pallas asks it for the device
        prepare = partial(model.prepare, quantize=config.decoding.quantize)
        params = results_of(jax.jit(prepare).lower(state.params))
        work = results_of(begin_work.lower(search, sizes, params))
        program = proceed.lower(search, params, work, arrivals, seed, leave).compile()
    read = {name: part for name, part in params.items() if name != "encoder"}
    return SearchReport(
        mesh_shape=dict(mesh.shape),
        sentences=rows,
        beam_size=search.strategy.beam_size,
        compile_seconds=time.monotonic() - start,
        kernels=kernels_of_a_round(parse_program(program.as_text() or "")),
        weight_bytes=bytes_of_a_device(read),
        cache_bytes=bytes_of_a_device((work.state.cache, work.memory)),
        hardware=peaks(devices),
    )


def results_of(lowered: Any) -> Any:
    """Return the shapes of the results of a program, each with its sharding over the mesh.

    The program is compiled to find the shardings.
    """
    return jax.tree.map(
        lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
        lowered.out_info,
        lowered.compile().output_shardings,
    )


def format_search(report: SearchReport) -> Iterator[str]:
    """Yield the lines of a report, as `t2t-jax train --compile-only` prints them."""
    how = f"a beam of {report.beam_size}" if report.beam_size > 1 else "greedy search"
    yield (
        f"a step of {how} for {report.sentences} sentences, {_SOURCE_LENGTH} source positions and "
        f"room for {_ROOM} of output; compiled in {report.compile_seconds:.1f} s"
    )
    own = report.weight_bytes + report.cache_bytes
    moved = sum(kernel.count * kernel.num_bytes for kernel in report.kernels)
    yield (
        f"it moves {binary(moved)}, {moved / own:.2f} times the weights "
        f"({binary(report.weight_bytes)}) and keys and values ({binary(report.cache_bytes)})"
    )
    yield "sent between devices in a step of the search"
    sent = [kernel.sent for kernel in report.kernels if kernel.sent]
    yield from collective_lines(sent, report.mesh_shape)
    if report.hardware is not None:
        bound = roofline(report.kernels, report.hardware)
        yield (
            f"it takes at least {bound.seconds * 1e3:.3f} ms, kernel by kernel: at most "
            f"{report.sentences / bound.seconds:,.0f} tokens/s"
        )
        yield from kernel_lines(bound)
