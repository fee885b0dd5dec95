"""Find which models fit 1 to 256 TPU chips, and what bounds a step, and write docs/scaling.md.

    python benchmarks/scaling.py
    python benchmarks/scaling.py --configs big --topologies v5e:1x1 v5e:2x2 --out big.md

It compiles real training steps for TPU v5e, with none attached (`pip install -e '.[train,tpu]'`).
On two cores that were busy it took about half an hour.
"""

import datetime
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from t2t_jax.commands.flags import parse_flags
from t2t_jax.config import Config
from t2t_jax.config.file import load_config
from t2t_jax.errors import needs_extra
from t2t_jax.extras.compile_only.compile import compile_ahead
from t2t_jax.extras.compile_only.report import StepReport
from t2t_jax.extras.compile_only.topologies import devices_of
from t2t_jax.parallel.hardware import peaks
from t2t_jax.system.host import processor_name
from t2t_jax.system.program import run

_TOKENS_PER_CHIP = 4096
_MOST_SHARES = 16  # devices that share one copy of the parameters: one row of chips


@dataclass(frozen=True)
class Scaling:
    """Find which models fit TPU chips, and what bounds a step."""

    configs: tuple[str, ...] = ("configs/big.py", "configs/billion.py")
    """Config files."""
    topologies: tuple[str, ...] = ("v5e:1x1", "v5e:2x2", "v5e:4x4", "v5e:8x8", "v5e:16x16")
    """Chips, of one kind."""
    out: Path = Path("docs/scaling.md")
    """File for the page."""


def _billion(chips: int) -> list[dict[str, object]]:
    """Return layouts that shard the parameters over up to 16 chips, without and with remat."""
    shared = {"parallel.fsdp": min(chips, _MOST_SHARES), "parallel.data": -1}
    return [shared, shared | {"parallel.remat": "layer"}]


def _scaled(config: Config, chips: int) -> Config:
    """Return a config for weak scaling, whose tokens of a step grow with the number of chips."""
    tokens = _TOKENS_PER_CHIP * chips
    return config.replace(
        {
            "data.source_tokens_per_step": tokens,
            "data.target_tokens_per_step": tokens,
            "parallel.tokens_per_device": _TOKENS_PER_CHIP,
        }
    )


def _first_that_fits(name: str, topology: str) -> tuple[Config, StepReport]:
    """Compile the layouts in turn; return the first that fits, or else the last."""
    devices = devices_of(topology)
    config = _scaled(load_config(name), len(devices))
    layouts = _billion(len(devices)) if "billion" in name else [{"parallel.data": -1}]
    for layout in layouts:
        chosen = config.replace(layout)
        report = compile_ahead(chosen, devices)
        print(
            f"{name} on {topology} {layout}: {report.memory.total / 2**30:.1f} GiB, "
            f"fits: {report.fits}, compiled in {report.compile_seconds:.0f} s",
            file=sys.stderr,
        )
        if report.fits:
            break
    return chosen, report


def _row(topology: str, config: Config, report: StepReport) -> str:
    mesh = " x ".join(str(size) for size in report.mesh_shape.values())
    cells = [
        str(len(devices_of(topology))),
        topology,
        mesh + ("" if config.parallel.remat == "none" else f", remat {config.parallel.remat}"),
        f"{report.memory.total / 2**30:.1f} GiB",
        "yes" if report.fits else "**no**",
    ]
    bounds = report.bounds
    cells += [f"{1e3 * seconds:.1f}" for seconds in bounds.values()] or ["-", "-", "-"]
    return f"| {' | '.join([*cells, f'{report.compile_seconds:.0f} s'])} |"


def _document(asked: Scaling) -> Iterator[str]:
    hardware = peaks(devices_of(asked.topologies[0]))
    assert hardware is not None
    yield "# Scaling: from one TPU chip to 256"
    yield ""
    yield "This page says how many TPU chips a model needs, and what limits a training step."
    yield ""
    yield (
        "**The tables list a compiler's lower bounds, not measurements.** `python benchmarks/"
        f"scaling.py` wrote the tables on {datetime.date.today()} with JAX {version('jax')} and "
        f"libtpu {version('libtpu')}, on {os.cpu_count()} CPU cores of {processor_name()}, no TPU."
    )
    yield ""
    yield (
        "- FLOPs, memory traffic and messages of the compiled step would each take the listed "
        f"times at the chip's peaks. These peaks are {hardware.flops_per_s / 1e12:.0f} TFLOP/s "
        f"in bfloat16, {hardware.memory_bytes_per_s / 1e9:.0f} GB/s of memory, and "
        f"{hardware.sent_bytes_per_s / 1e9:.0f} GB/s over all links together. A step takes at "
        "least the longest of these three times."
    )
    yield (
        f"- Each chip gets {_TOKENS_PER_CHIP:,} source and {_TOKENS_PER_CHIP:,} target positions, "
        "in sentences of 256. With ideal scaling, more chips do not change the time."
    )
    yield (
        "- The mesh column lists the sizes of the axes data x fsdp x tensor. `remat layer` "
        "computes each layer a second time, which the FLOPs do not count."
    )
    for name in asked.configs:
        yield ""
        yield f"## {name}"
        first = True
        for topology in asked.topologies:
            config, report = _first_that_fits(name, topology)
            if first:
                yield ""
                yield f"{report.num_parameters:,} parameters, {config.model.compute_dtype}."
                yield ""
                yield (
                    "| chips | topology | mesh | memory a chip | fits | "
                    "compute, ms | memory, ms | communication, ms | compiled in |"
                )
                yield f"|{'---|' * 9}"
                first = False
            yield _row(topology, config, report)


def main(arguments: Sequence[str]) -> int:
    """Compile everything, and write the page."""
    asked: Scaling = parse_flags(Scaling, arguments, "scaling.py")
    with needs_extra("tpu", "the compiler for TPUs"):
        version("libtpu")
    asked.out.write_text("\n".join([*_document(asked), ""]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    run(main)
