"""What a preflight finds on a host before it asks for devices: names, versions, link and clock."""

import hashlib
import os
import platform
import socket
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import jax

from t2t_jax.errors import UserError
from t2t_jax.parallel.device_memory import gib
from t2t_jax.parallel.devices import all_devices, local_devices
from t2t_jax.run.preflight.board import Board
from t2t_jax.run.preflight.findings import Findings
from t2t_jax.run.preflight.verdicts import VERSIONS
from t2t_jax.system.host import usable_host_memory

_PACKAGES = (
    *("t2t-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy"),
    *("libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin"),
)
_ROUNDS = 5
_ANSWER_SECONDS = 120.0
_CLOCK_SECONDS = 60.0
"""The difference of two clocks from which on credentials are refused and times in logs mislead."""


def check_host(board: Board, findings: Findings) -> None:
    """Find the host's memory, versions, way to process 0, and clock.

    Raises:
      UserError: process 0 cannot be reached.
    """
    if board.coordinator is not None:
        address, findings.times["to process 0"] = _way_to(board.coordinator)
        findings.texts["address"] = address
        _compare_clocks(board, findings)
    free, total = usable_host_memory(), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    findings.texts["host memory, free / total"] = f"{gib(free)} / {gib(total)}"
    findings.facts[VERSIONS] = _versions()


def check_devices(findings: Findings) -> None:
    """Find the devices of this process and their memory.

    Raises:
      UserError: there is no device, or too few threads may be started.
    """
    all_devices()
    own = local_devices()
    findings.texts["devices"] = f"{len(own)} x {own[0].device_kind}"
    with suppress(jax.errors.JaxRuntimeError):
        stats = [device.memory_stats() for device in own]
        if all(one and "bytes_limit" in one for one in stats):
            free, total = min(
                (one["bytes_limit"] - one.get("bytes_in_use", 0), one["bytes_limit"])
                for one in stats
            )
            findings.texts["device memory, free / total"] = f"{gib(free)} / {gib(total)}"


def _versions() -> dict[str, str]:
    """Return the versions of what a run is computed by; a package that is missing is "none"."""
    found = {"python": platform.python_version(), "the code of t2t-jax": _code()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return found


def _code() -> str:
    """Return a hash of this package's own code, which clones of one version may not share."""
    root = Path(__file__).parents[2]
    found = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return found.hexdigest()[:12]


def _way_to(coordinator: str) -> tuple[str, list[float]]:
    """Return this host's address on the way to process 0, and the seconds of some round trips."""
    host, _, port = coordinator.rpartition(":")
    seconds = []
    address = ""
    for _ in range(_ROUNDS):
        begun = time.perf_counter()
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=5) as link:
                seconds.append(time.perf_counter() - begun)
                address = str(link.getsockname()[0])
        except OSError as error:
            raise UserError(
                f"process 0 cannot be reached at {coordinator} ({error.strerror or error}); open "
                "that port between the hosts, or name another address by --coordinator"
            ) from error
    return address, seconds


def _compare_clocks(board: Board, findings: Findings) -> None:
    """Compare the clock with that of process 0, which answers one process after the other.

    The clock of process 0 was read between a question and its answer, so half of the time between
    these two bounds the error.
    """
    findings.texts["clock"] = "-"
    with suppress(jax.errors.JaxRuntimeError):  # no answer
        if board.process == 0:
            _answer(board)
            return
        uncertain, ahead = min(_ask(board, n) for n in range(_ROUNDS))
        findings.texts["clock"] = f"{1e3 * ahead:+,.1f} ± {1e3 * uncertain:,.1f} ms"
        if abs(ahead) - uncertain > _CLOCK_SECONDS:
            findings.problems.append(
                f"the clock is {abs(ahead):,.0f} s {'ahead of' if ahead > 0 else 'behind'} that of "
                "process 0; set it by NTP (timedatectl set-ntp true)"
            )


def _answer(board: Board) -> None:
    """Tell each process the time whenever it asks."""
    for other in range(1, board.processes):
        for n in range(_ROUNDS):
            board.wait_for(f"clock/{other}/{n}/asked", _ANSWER_SECONDS)
            board.put(f"clock/{other}/{n}/told", repr(time.time()))


def _ask(board: Board, n: int) -> tuple[float, float]:
    """Return how uncertain it is by how many seconds this clock is ahead, and these seconds."""
    asked = time.time()
    board.put(f"clock/{board.process}/{n}/asked", "")
    theirs = float(board.wait_for(f"clock/{board.process}/{n}/told", _ANSWER_SECONDS))
    half = (time.time() - asked) / 2
    return half, asked + half - theirs
