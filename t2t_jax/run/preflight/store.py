"""What a preflight finds where the run directory is to be: whether all can write, read and list."""

import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import cached_property
from pathlib import Path

import jax

from t2t_jax.errors import UserError, way_out_of
from t2t_jax.parallel.device_memory import gib
from t2t_jax.parallel.directory_lock import is_trained_in
from t2t_jax.run.preflight.findings import Findings
from t2t_jax.run.preflight.verdicts import CONFIG, numbered
from t2t_jax.run.preparing import Plan
from t2t_jax.system.atomic_file import removed_at_end
from t2t_jax.system.bucket import BucketPath
from t2t_jax.training.state import abstract_state
from t2t_jax.training.storage import steps_of_run
from t2t_jax.workdir import CHECKPOINTS

_PART_BYTES, _PARTS = 4 << 20, 4
_SECONDS_TO_BE_SEEN = 10.0


class Probe:
    """An object that each process writes for a moment where the run directory is to be."""

    def __init__(self, workdir: Path, mark: str, process: int = 0, processes: int = 1) -> None:
        """Choose the name, which is alike on all processes but for their numbers.

        Args:
          mark: a part of the name, which all processes share.
          process: the number of this process.
          processes: the number of all processes that write to the place.
        """
        self._workdir, self._mark = workdir.absolute(), mark
        self._process, self._processes = process, processes
        self._content = secrets.token_bytes(_PART_BYTES)
        self._removal = ExitStack()

    @cached_property
    def place(self) -> Path:
        """Return the directory, or the nearest above it that exists; a bucket has no directories.

        To find it may take for ever, where a filesystem does not answer.
        """
        if isinstance(self._workdir, BucketPath):
            return self._workdir
        return next(path for path in (self._workdir, *self._workdir.parents) if path.is_dir())

    def _path(self, process: int | None = None) -> Path:
        """Return the path of a process's object, by default of this one's."""
        number = self._process if process is None else process
        return self.place / f".preflight-{self._mark}-{number}"

    def remove(self, findings: Findings) -> None:
        """Remove the object; process 0 removes those of all, as others may have been killed."""
        self._removal.close()

    def write(self, findings: Findings) -> None:
        """Write the object in some parts, and measure each.

        It is removed by `remove`, and if a signal ends the program.

        Raises:
          UserError: it cannot be written.
        """
        # Hosts may know the same place by other names, but not what is to be made in it.
        new = str(self._workdir).removeprefix(str(self.place))
        findings.facts[CONFIG] = {"the part of --workdir that is not there yet": repr(new)}
        everyone = range(self._processes)
        for process in everyone if self._process == 0 else [self._process]:
            self._removal.enter_context(removed_at_end(self._path(process)))
        try:
            findings.rates["write MB/s"] = [
                _rate(_PART_BYTES, seconds) for seconds in self._written()
            ]
        except OSError as error:
            raise UserError(
                f"cannot write in {self.place}: {error.strerror or error}; {way_out_of(error)}"
            ) from error
        if self._process == 0 and is_trained_in(self._workdir):
            findings.notes.append(f"another process trains in {self._workdir}")

    def _written(self) -> Iterator[float]:
        path = self._path()
        if isinstance(path, BucketPath):  # whole, each time
            for _ in range(_PARTS):
                begun = time.perf_counter()
                path.write_bytes(self._content)
                yield time.perf_counter() - begun
            return
        with path.open("wb", buffering=0) as file:
            for _ in range(_PARTS):
                begun = time.perf_counter()
                file.write(self._content)
                os.fsync(file.fileno())
                yield time.perf_counter() - begun

    def read(self, findings: Findings) -> None:
        """List the objects of all processes, and read that of this process back.

        Raises:
          UserError: another process writes to another place, or the content is not what was
            written.
        """
        latest = time.monotonic() + _SECONDS_TO_BE_SEEN
        wanted = {self._path(process).name for process in range(self._processes)}
        while True:
            begun = time.perf_counter()
            missing = wanted - {path.name for path in self.place.iterdir()}
            findings.times["list"] = [time.perf_counter() - begun]
            if not missing or time.monotonic() > latest:
                break
            time.sleep(0.2)
        self._read_back(findings)
        if missing:
            others = [int(name.rpartition("-")[2]) for name in missing]
            raise UserError(
                f"{self.place} lacks what {numbered(others)} wrote there a moment ago; put "
                f"--workdir {self._workdir} on a filesystem that all hosts share, or in a bucket"
            )

    def _read_back(self, findings: Findings) -> None:
        path = self._path()
        if isinstance(path, BucketPath):
            begun = time.perf_counter()
            parts = [path.read_bytes()]
            seconds = [time.perf_counter() - begun]
        else:
            parts, seconds = [], []
            with path.open("rb", buffering=0) as file:
                with suppress(OSError, AttributeError):  # so that it is not read from memory
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                for _ in range(_PARTS):
                    begun = time.perf_counter()
                    parts.append(file.read(_PART_BYTES))
                    seconds.append(time.perf_counter() - begun)
        if any(part != self._content for part in parts):
            raise UserError(f"{self.place} gives back other bytes than were written; replace it")
        findings.rates["read MB/s"] = [_rate(_PART_BYTES, one) for one in seconds]

    def room(self, plan: Plan | None, findings: Findings) -> None:
        """Compare the free room with what the checkpoints need that a run keeps at a time."""
        if isinstance(self.place, BucketPath):
            findings.texts["free room"] = "unlimited"
            return
        free = shutil.disk_usage(self.place).free
        findings.texts["free room"] = gib(free)
        if plan is None:  # which the check of the data has reported
            return
        needed = bytes_of_checkpoints(plan)
        findings.texts["checkpoints need"] = gib(needed)
        if free < needed:
            findings.problems.append(
                f"{self.place} has {gib(free)} free, but the checkpoints of the run need "
                f"{gib(needed)}; make room there, lower checkpoint.keep, or choose another "
                "--workdir"
            )


def check_local_disk(local_dir: str | None, findings: Findings) -> None:
    """Write, read back and measure where checkpoints on this host's own disk are to be, if any.

    Raises:
      UserError: nothing can be written there, or other bytes come back.
    """
    if local_dir is None:
        return
    found = Findings()
    probe = Probe(Path(local_dir).expanduser(), secrets.token_hex(4))
    try:
        probe.write(found)
        probe.read(found)
        probe.room(None, found)
    except UserError as error:
        raise UserError(f"checkpoint.local_dir: {error}") from error
    finally:
        probe.remove(found)
    # Under titles of their own, as those of the run directory stand beside them.
    findings.rates |= {f"local {title}": rate for title, rate in found.rates.items()}
    findings.texts |= {f"local {title}": text for title, text in found.texts.items()}


def bytes_of_checkpoints(plan: Plan) -> int:
    """Return the bytes that the checkpoints of a run still take: those kept, and one more.

    Each is written before the oldest is removed; one between two steps that are due may be there
    for safety, and the best parameters are kept twice for a moment.
    """
    state, settings = abstract_state(plan.config, plan.model, plan.mesh), plan.config.checkpoint
    whole, best = _bytes(state), 2 * _bytes(state.evaluated)
    there = len(steps_of_run(plan.workdir, CHECKPOINTS))
    due = -(-plan.last // settings.every_steps) if settings.every_steps else settings.keep
    left = max(1, min(settings.keep, due) + 2 - there)
    return whole * left + best * (settings.keep_best and plan.has_dev)


def _bytes(tree: object) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _rate(size: int, seconds: float) -> float:
    """Return megabytes a second."""
    return size / max(seconds, 1e-9) / 1e6
