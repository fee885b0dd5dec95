"""Compare training steps by the programs that XLA compiles, for a device that need not be there.

    python benchmarks/compilers.py --topology h200:1 --flax-wmt ~/flax

Our step and that of Flax's WMT example (a checkout of github.com/google/flax) are compiled in
bfloat16 for one device, with a batch of the same size and the sizes of the same network. Figures
are the bytes that their kernels move, the number of kernels started, and the least time by the same
bound (`t2t_jax/ahead_of_time/roofline.py`). It is a bound from a compiler, not a timing. GPUs need
the extra `cuda13`, TPUs the extra `tpu`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from systems import flax_wmt

from t2t_jax.ahead_of_time.compile import compile_ahead
from t2t_jax.ahead_of_time.hlo import parse_program
from t2t_jax.ahead_of_time.kernels import Kernel, kernels
from t2t_jax.ahead_of_time.roofline import roofline
from t2t_jax.ahead_of_time.topologies import devices_of
from t2t_jax.config.file import load_config
from t2t_jax.errors import UserError
from t2t_jax.parallel.hardware import peaks
from t2t_jax.system.program import run


@dataclass(frozen=True)
class Compilers:
    """Compare training steps by the programs that XLA compiles."""

    flax_wmt: Path
    """A checkout of github.com/google/flax."""
    topology: str = "h200:1"
    """One device, as `t2t-jax train --compile-only` takes it."""
    config: str = "configs/base.py"
    """The config with the sizes of the network and of the batch."""


def main(arguments: Sequence[str]) -> int:
    """Compile the steps, print a table, and return the exit code."""
    asked = tyro.cli(Compilers, args=arguments, prog="compilers.py")
    devices = devices_of(asked.topology)
    hardware = peaks(devices)
    if len(devices) != 1 or hardware is None:
        raise UserError(f"--topology {asked.topology} is not one device whose peaks are known")
    config = load_config(asked.config)
    ours = compile_ahead(config, devices)
    example = asked.flax_wmt / "examples" / "wmt"
    rows, length, _ = ours.shape
    theirs = flax_wmt.lowered_step(config, example, rows, length, devices[0]).compile().as_text()
    table: dict[str, Sequence[Kernel]] = {
        "t2t_jax": ours.kernels,
        "Flax, examples/wmt": kernels(parse_program(theirs)),
    }
    print(f"{ours.devices}, {rows} x {length} + {rows} x {length} positions, bfloat16\n")
    print(
        "| system | bytes | kernels | operations of products | least time |\n|---|---|---|---|---|"
    )
    for name, found in table.items():
        bound = roofline(found, hardware)
        flops = sum(group.flops for group in bound.groups)
        print(
            f"| {name} | {bound.num_bytes / 2**30:.1f} GiB | {bound.launches:,} | {flops:.3g} | "
            f"{bound.seconds * 1e3:.1f} ms |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    run(main)
