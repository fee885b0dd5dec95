"""The checks of a preflight, one after the other on all processes, each within its time."""

import hashlib
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from t2t_jax.config import Config, walk
from t2t_jax.run.preflight.board import Board, LostError
from t2t_jax.run.preflight.findings import Findings, Work, begin_check
from t2t_jax.run.preflight.host import check_devices, check_host
from t2t_jax.run.preflight.report import PreflightReport
from t2t_jax.run.preflight.speed import compile_plan, measure_product, measure_sums
from t2t_jax.run.preflight.store import Probe, check_local_disk
from t2t_jax.run.preflight.verdicts import CONFIG, FILES, SETTLED, differing
from t2t_jax.run.preparing import Plan, planned, shared_config, shared_files
from t2t_jax.system.host import host_name
from t2t_jax.training.settling import settled
from t2t_jax.training.step import training_mesh

_HOSTS, _DATA, _STORE, _SPEED = "hosts", "data", "run directory", "speed"
_LOCAL = "local disk"
_SOON, _LATER, _LATE = 60.0, 300.0, 3600.0
"""Seconds in which a check has to end: one that only asks, that waits for others, that works."""
_STUCK = {
    "the host": "see whether the filesystem of the package and the port of process 0 answer",
    "the devices": "see whether another program holds them, and whether all processes see theirs",
    "the data": "see whether the filesystem of the corpus and of data.cache_dir answers",
    "writing": "see whether the filesystem or the store of --workdir answers",
    "reading": "see whether the filesystem or the store of --workdir answers",
    "room": "see whether the filesystem of --workdir answers",
    "the local disk": "see whether the filesystem of checkpoint.local_dir answers",
    "a matrix product": "look at the devices of this host",
    "sums": "open all ports between the hosts, and name their network (NCCL_SOCKET_IFNAME)",
    "the step": "compile it by itself, by --compile-only of t2t-jax train",
}
"""The ways out where a check does not end, by its name."""
_BATCHES = 3
_REMOVAL_SECONDS = 20.0


@dataclass(frozen=True)
class Rehearsed:
    """How a preflight has ended."""

    exit_code: int
    """0 if all checks have passed, and 1 otherwise, the same on all processes."""
    report: PreflightReport
    """What was found; on process 0 alone it has the findings of all."""
    leaves_threads: bool
    """Whether some process is gone, or holds a thread that is stuck."""


def rehearse(config: Config, workdir: Path, show: Callable[[PreflightReport], None]) -> Rehearsed:
    """Check on all processes what a run needs, and write nothing that stays.

    Args:
      config: the config of the run.
      workdir: its directory, which need not be there.
      show: a function that process 0 calls with the report, before any process ends, and other
        processes if process 0 is gone.
    """
    board, report = Board(), PreflightReport()
    report.lost = _lost_in(_Rehearsal(config, workdir, board, report).run)
    code = int(bool(report.failures))
    leaves = bool(report.lost) or any(one.is_stuck for one in report.found.values())
    if board.process == 0 or report.lost == [0]:
        show(report)

    def hear() -> None:
        nonlocal code, leaves
        code, leaves = json.loads(board.tell("end", json.dumps([code, leaves])))

    if not report.lost and _lost_in(hear):
        code, leaves = 1, True
    if leaves:
        board.farewell(report.lost)
    board.close()
    return Rehearsed(code, report, leaves)


def _lost_in(work: Callable[[], None]) -> list[int]:
    """Do work with the other processes, and return the numbers of those that were lost in it."""
    try:
        work()
    except LostError as error:
        return error.processes
    except jax.errors.JaxRuntimeError:  # the board is gone, and so is process 0, which keeps it
        return [0]
    return []


class _Rehearsal:
    """The checks on one process, with what the earlier ones leave to the later ones."""

    def __init__(
        self, config: Config, workdir: Path, board: Board, report: PreflightReport
    ) -> None:
        self._config, self._workdir, self._board, self._report = config, workdir, board, report
        self._failed: set[str] = set()  # as process 0 knows it
        self._mesh: Mesh | None = None
        self._plan: Plan | None = None

    def run(self) -> None:
        """Do all checks, and add to the report what each process has found.

        Raises:
          LostError: a process is gone.
        """
        self._report.hosts.update(self._board.collect("name", host_name()))
        self._check(_HOSTS, "the host", self._look_at_host, _LATER)
        self._check(_HOSTS, "the devices", self._find_devices, _LATER)
        self._check(_DATA, "the data", self._read_data, _LATE)
        mark = self._board.tell("mark", secrets.token_hex(4))
        probe = Probe(self._workdir, mark, self._board.process, self._board.processes)
        try:
            self._check(_STORE, "writing", probe.write, _SOON)
            self._check(_STORE, "reading", probe.read, _SOON, self._obstacle("writing"))
        finally:
            begin_check(probe.remove, Findings()).join(_REMOVAL_SECONDS)
        self._check(_STORE, "room", partial(probe.room, self._plan), _SOON)
        local_dir = self._config.checkpoint.local_dir
        self._check(_LOCAL, "the local disk", partial(check_local_disk, local_dir), _SOON)
        self._check(_SPEED, "a matrix product", self._multiply, _LATER)
        self._check(_SPEED, "sums", self._add, _LATER, self._obstacle("the devices"))
        self._check(_SPEED, "the step", self._compile, _LATE, self._obstacle("the data", "sums"))

    def _check(
        self, title: str, name: str, work: Work, seconds: float, obstacle: str | None = None
    ) -> None:
        """Do a check on all processes, unless process 0 knows of an obstacle.

        Raises:
          LostError: a process is gone.
        """
        board = self._board
        if obstacle := board.tell(f"obstacle/{name}", obstacle or ""):
            self._failed.add(name)
            self._report.skipped.append(f"{name}, as {obstacle}")
            return
        findings, latest = Findings(), time.monotonic() + seconds
        thread = begin_check(work, findings)
        board.until(lambda: not thread.is_alive() or time.monotonic() > latest or None)
        if thread.is_alive():
            findings.is_stuck = True
            findings.problems.append(f"{name} did not end within {seconds:.0f} s; {_STUCK[name]}")
        texts = board.collect(name, findings.to_json())
        found = {process: Findings.from_json(text) for process, text in texts.items()}
        self._report.add(title, found)
        if any(one.problems for one in found.values()):
            self._failed.add(name)

    def _obstacle(self, *earlier: str) -> str | None:
        """Return why all processes cannot do work together that other checks come before."""
        if failed := [name for name in earlier if name in self._failed]:
            return f"the check of {failed[0]} failed"
        if "the data" in earlier and any(differing(self._report.found, {})):
            return "the processes differ"
        return None

    def _look_at_host(self, findings: Findings) -> None:
        values = walk(shared_config(self._config))
        findings.facts[CONFIG] = {path: str(value) for path, _, value in values}
        check_host(self._board, findings)

    def _find_devices(self, findings: Findings) -> None:
        check_devices(findings)
        self._mesh = training_mesh(self._config.parallel)

    def _read_data(self, findings: Findings) -> None:
        begun = time.perf_counter()
        plan = self._plan = planned(self._config, self._workdir)
        findings.times["opened in"] = [time.perf_counter() - begun]
        before = {path: value for path, _, value in walk(self._config)}
        findings.facts[SETTLED] = {
            path: str(value) for path, _, value in walk(plan.config) if value != before[path]
        }
        findings.facts[FILES] = {name: _short(one) for name, one in shared_files(plan).items()}
        findings.times["a batch in"] = []
        for step in range(_BATCHES):
            begun = time.perf_counter()
            plan.batches(step, plan.local_rows(plan.batches.shape(step)))
            findings.times["a batch in"].append(time.perf_counter() - begun)
        found = hashlib.sha256()
        for array in jax.tree.leaves(plan.batches(0)):
            found.update(np.asarray(array).tobytes())
        findings.facts[FILES]["the first batch"] = _short(found.hexdigest())

    def _multiply(self, findings: Findings) -> None:
        if self._mesh is not None:
            config = settled(self._config, self._mesh) if self._plan is None else self._plan.config
            measure_product(config, self._mesh, findings)

    def _add(self, findings: Findings) -> None:
        assert self._mesh is not None
        measure_sums(self._mesh, findings)

    def _compile(self, findings: Findings) -> None:
        assert self._plan is not None
        compile_plan(self._plan, findings)


def _short(text: str) -> str:
    """Return the beginning of a hash, or of the hash of another text."""
    return (text if text.isalnum() else hashlib.sha256(text.encode()).hexdigest())[:12]
