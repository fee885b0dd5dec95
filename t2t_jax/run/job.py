"""The account of a job, which is one start of a training: `W/jobs/NUMBER.json`, from 1 on.

A run that is stopped, killed or lost goes on in another job. Unlike `log.jsonl`, from which a job
removes the records of the steps that it takes again, the account of a job stays as it was left. It
is written whole, by process 0: at every checkpoint, at the end, and otherwise after some seconds,
so that a kill leaves no more than these out.
"""

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import NoneType
from typing import Any

import jax
import numpy as np

from t2t_jax.config import Config
from t2t_jax.config.cost import model_flops_per_step
from t2t_jax.data.batching import Batches
from t2t_jax.errors import UserError
from t2t_jax.parallel.hardware import peaks
from t2t_jax.parallel.processes import is_main
from t2t_jax.run.progress import DATA, PHASES, STEPS, TrainingProgress
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.system.bucket import BucketPath
from t2t_jax.system.records import NUMBER, Each, Record, Schema, as_line, read_object

_JOBS = "jobs"
_WAY_OUT = "without it, this job is not accounted for"
_MARK = Schema({"step": int, "steps": NUMBER, "data": NUMBER})
_SCHEMA = Schema(
    {
        **dict.fromkeys(("begun", "written"), NUMBER),
        **dict.fromkeys(("first_step", "step", "devices"), int),
        "seconds": Schema(dict.fromkeys(PHASES, NUMBER)),
        "at": Each(list, _MARK),
    },
    {
        **dict.fromkeys(("flops", "peak", "exit_code"), NUMBER),
        "host": str,
        "kind": str,
        "processes": int,
        "ended": (str, NoneType),
    },
)


def read_jobs(workdir: Path) -> list[Record]:
    """Return the accounts of the jobs of a run, the oldest first; none where it has none.

    Raises:
      UserError: an account cannot be read.
    """
    return [read_object(path, _SCHEMA, _WAY_OUT) for path in _accounts(workdir)]


def _accounts(workdir: Path) -> Iterator[Path]:
    directory = workdir / _JOBS
    found = directory.iterdir() if directory.is_dir() else ()
    names = sorted(int(path.stem) for path in found if path.stem.isdecimal())
    return (directory / f"{name}.json" for name in names)


class JobAccount:
    """The account of the job of this process; those of several processes are one job."""

    def __init__(
        self,
        workdir: Path,
        progress: TrainingProgress,
        config: Config,
        batches: Batches,
        first_step: int,
    ) -> None:
        """Begin the account of a job that goes on after a step."""
        self._progress, self._directory = progress, workdir / _JOBS
        self._patience = 60.0 if isinstance(workdir, BucketPath) else 10.0
        self._at: list[Record] = []
        hardware = peaks(jax.devices())
        self._account: dict[str, Any] = {
            "begun": progress.begun,
            "host": socket.gethostname(),
            "processes": jax.process_count(),
            "devices": jax.device_count(),
            "kind": jax.devices()[0].device_kind,
            "flops": _flops_per_step(config, batches),
            "peak": hardware and hardware.flops_per_s,
            "first_step": first_step,
            "step": first_step,
            "at": self._at,
            "ended": None,
            "exit_code": None,
        }
        numbers = (int(path.stem) for path in _accounts(workdir))
        self._path = self._directory / f"{max(numbers, default=0) + 1}.json"
        self._write()

    def step(self, step: int) -> None:
        """Take note that a step is done."""
        self._account["step"] = step
        if time.monotonic() >= self._due:
            self._write()

    def checkpoint(self, step: int) -> None:
        """Take note of a step, the last one so far, after which a later job may go on."""
        seconds = self._progress.seconds()
        self._at.append({"step": step, "steps": seconds[STEPS], "data": seconds[DATA]})
        self._account["step"] = step
        self._write()

    def end(self, reason: str, exit_code: int) -> None:
        """Take note of the end of the job."""
        self._account |= {"ended": reason, "exit_code": exit_code}
        self._write()

    def _write(self) -> None:
        self._due = time.monotonic() + self._patience
        if not is_main():
            return
        self._account |= {"seconds": self._progress.seconds(), "written": time.time()}
        with suppress(UserError, OSError):  # the next one holds all that this one would
            self._directory.mkdir(exist_ok=True)
            write_whole(self._path, as_line(self._account).encode())


def _flops_per_step(config: Config, batches: Batches) -> float:
    """Count the operations of the matrix products in a step, on average over an epoch."""
    split, steps = batches.examples, batches.steps_per_epoch
    source, target = (np.asarray(x, float) for x in (split.source_lengths, split.target_lengths))
    return model_flops_per_step(
        config.model,
        config.data.vocab_size,
        source.sum() / steps,
        target.sum() / steps,
        source_length=(source**2).sum() / max(1.0, source.sum()),
        target_length=(target**2).sum() / max(1.0, target.sum()),
    )
