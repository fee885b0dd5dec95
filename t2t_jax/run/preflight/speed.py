"""What a preflight finds of the devices at work: products, sums over the mesh, the compiler."""

import time
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from t2t_jax.ahead_of_time.compile import compile_step
from t2t_jax.config import Config
from t2t_jax.errors import UserError
from t2t_jax.parallel.device_memory import LESS_MEMORY, gib, within_memory
from t2t_jax.parallel.hardware import peaks
from t2t_jax.parallel.slices import between_slices
from t2t_jax.run.preflight.findings import Findings
from t2t_jax.run.preflight.verdicts import slowest
from t2t_jax.run.preparing import Plan

_SAMPLES = 5


def measure_product(config: Config, mesh: Mesh, findings: Findings) -> None:
    """Measure matrix products in the run's dtype on each device of this process, one by one.

    What is found is the rate of the slowest device.
    """
    first, dtype = mesh.local_devices[0], jnp.dtype(config.model.compute_dtype)
    size = 1024 if first.platform == "cpu" else 8192
    product = jax.jit(lambda x: jnp.matmul(x, x))
    found: dict[int, list[float]] = {}
    for device in mesh.local_devices:
        with jax.default_device(device), within_memory():
            x = jax.random.normal(jax.random.key(0), (size, size), dtype)
            seconds = _timed(partial(product, x))
        found[device.id] = [2 * size**3 / each / 1e12 for each in seconds]
    if slow := slowest(found, is_rate=True):
        findings.notes.append(f"device {slow[0]} is {slow[1]:.1f} times slower than the others")
    title = f"{dtype.name} product TFLOP/s"
    findings.rates[title] = min(found.values(), key=max)
    known = peaks([first])
    is_stated = dtype == jnp.bfloat16 or first.platform == "tpu"
    findings.peaks[title] = known.flops_per_s / 1e12 if known and is_stated else None


def measure_sums(mesh: Mesh, findings: Findings) -> None:
    """Measure sums over each axis of the mesh with more than one device; all processes call it.

    The rate is that at which a device sends: of n devices, each sends 2 (n - 1) / n of its array.

    Raises:
      UserError: a sum is wrong.
    """
    for axis, devices in mesh.shape.items():
        if devices > 1:
            _measure_sum(mesh, axis, findings)


def _measure_sum(mesh: Mesh, axis: str, findings: Findings) -> None:
    first, devices = mesh.local_devices[0], mesh.shape[axis]
    each = (1 << 20) if first.platform == "cpu" else (16 << 20)  # numbers of a device
    others = PartitionSpec(tuple(name for name in mesh.axis_names if name != axis))
    everywhere = PartitionSpec(mesh.axis_names)
    with within_memory():
        x = jax.jit(
            lambda: jnp.ones(each * mesh.size, jnp.float32),
            out_shardings=NamedSharding(mesh, everywhere),
        )()
        add = jax.jit(
            jax.shard_map(
                lambda part: jax.lax.psum(part, axis),
                mesh=mesh,
                in_specs=everywhere,
                out_specs=others,
            )
        )
        totals = [float(shard.data.mean()) for shard in add(x).addressable_shards]
        seconds = _timed(partial(add, x))
    if any(total != devices for total in totals):
        raise UserError(
            f"sums of ones over the {devices} devices of the axis {axis} are {totals}; a device or "
            "a link of this host is broken: leave this host out"
        )
    sent = 2 * (devices - 1) / devices * 4 * each
    title = f"sum over {axis} GB/s"
    findings.rates[title] = [sent / one / 1e9 for one in seconds]
    known = peaks([first]) if between_slices(mesh)[axis] == 1 else None
    findings.peaks[title] = known.sent_bytes_per_s / 1e9 if known else None


def _timed(compute: Callable[[], jax.Array]) -> list[float]:
    """Return the seconds of some calls, after one that compiles."""
    jax.block_until_ready(compute())
    seconds = []
    for _ in range(_SAMPLES):
        begun = time.perf_counter()
        jax.block_until_ready(compute())
        seconds.append(time.perf_counter() - begun)
    return seconds


def compile_plan(plan: Plan, findings: Findings) -> None:
    """Compile the training step of a run for its largest batch, as the run will.

    Raises:
      UserError: the step does not fit the memory of a device.
    """
    if plan.config.parallel.backend != "jit":
        findings.texts["compiled in"] = "not tried with parallel.backend='pmap'"
        return
    shape = max(plan.batches.shapes, key=lambda shape: shape.rows * max(shape[1:]))
    report = compile_step(plan.config, plan.model, plan.layout(shape), shape)
    # Not ranked: what one process finds in the cache of compiled programs, another may not.
    findings.texts["compiled in"] = f"{report.compile_seconds:,.1f} s"
    needed = report.memory.total
    findings.texts["step needs, a device"] = gib(needed)
    if report.fits is False:
        raise UserError(
            f"the training step needs {gib(needed)} on each device, but there are "
            f"{gib(report.available_bytes)}; {LESS_MEMORY}"
        )
