"""The watchdog of a training: when steps stop ending, it reports why, and ends the program.

A process that hangs keeps its connections open, so the others would wait for it for ever. Each
process has a watchdog thread. All of them notice the hang at about the same time. They write the
Python stacks of their threads to `W/hangs`, exchange how far they came, name the process that is
behind, and end their programs.

Times in which the watchdog itself does not run, as while the program is suspended, do not count.

`SlowHosts` detects a process that keeps the others waiting. All processes take equally long for a
step, as they wait for each other in its collectives. So each reports how long it worked itself: on
its batch, its log, its Python.
"""

import json
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from t2t_jax.parallel import processes
from t2t_jax.parallel.liveness import SECONDS_TO_WRITE, end_program, liveness, ticks, within
from t2t_jax.parallel.message_board import leave, texts_under
from t2t_jax.run.progress import STEPS, TrainingProgress
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.system.exit_codes import EXCLUDED_HOSTS, HUNG
from t2t_jax.system.program import begun

_LONGER, _SLOWER = 12, 5
_SECONDS_TO_ANSWER = 15.0
_NAME = "watchdog"
_PHASES, _ACCOUNTS = "phase", "hang"


class Account(NamedTuple):
    """The progress of a process."""

    phase: str
    """What its main thread does, of `run.progress.PHASES`."""
    launched: int
    """The number of steps that it has launched since it was started."""
    waits: bool
    """Whether its main thread waits for devices or for other processes."""


class Watchdog:
    """A watchdog over a training, within a `with` block.

    It watches programs, and all trainings of several processes. It does not end a notebook.

    Attributes:
      on_end: called with the reason and the exit code before the program ends.
    """

    def __init__(self, workdir: Path, progress: TrainingProgress, minutes: float | None) -> None:
        """Make a watchdog that does not watch yet; all processes call this together.

        Args:
          minutes: the time without the end of a step after which it ends the program. The limit is
            12 times as long before the first step has ended, and in phases other than steps. None
            never ends it.
        """
        self._workdir, self._progress = workdir, progress
        self.on_end: Callable[[str, int], None] = lambda reason, code: None
        self._seconds = 60 * (minutes or 0)
        self._watches = self._seconds > 0 and (jax.process_count() > 1 or begun() is not None)
        self._hosts = processes.hosts()
        self._longest = 0.0  # that a step of this training took
        self._over, self._ends = threading.Event(), False

    def __enter__(self) -> "Watchdog":
        """Begin to watch."""
        if others := liveness():
            others.on_end = self._end_without
        if self._watches:
            threading.Thread(target=self._watch, daemon=True, name=_NAME).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching; if other processes end, an error here does not change the exit code.

        In that case this never returns, and the watchdog ends the program.
        """
        self._over.set()
        if others := liveness():
            others.on_end = lambda *_: None
        if self._ends:
            threading.Event().wait()

    def _end_without(self, reason: str, code: int, silent: Sequence[int]) -> None:
        """Record that another process ends the program."""
        self._exclude(silent)
        self.on_end(reason, code)

    def _watch(self) -> None:
        before, phase, still = ("", 0, 0), "", 0.0
        for interval in ticks(self._over, min(1.0, self._seconds / 20)):
            progress = self._progress
            if phase != progress.phase:
                phase = progress.phase
                leave(f"{_PHASES}/{jax.process_index()}", phase)
            state = phase, progress.launched, progress.done
            if state != before and before[0] == phase == STEPS:
                self._longest = max(self._longest, still)
            still = still + interval if state == before else 0.0
            before = state
            if still >= self._bound([phase]):
                others = texts_under(_PHASES).values()
                if still >= self._bound([phase, *others]):
                    self._end(still)

    def _bound(self, phases: Iterable[str]) -> float:
        """Return the longest time without progress while the processes are in these phases."""
        if not self._progress.done or {*phases} != {STEPS}:
            return self._seconds * _LONGER
        return max(self._seconds, _SLOWER * self._longest)

    def _end(self, still: float) -> None:
        """Record the progress of this process, collect the others', and end the program."""
        self._ends, progress = True, self._progress
        own = Account(progress.phase, progress.launched, progress.waits > 0)
        within(SECONDS_TO_WRITE, lambda: self._write_stacks(own))
        accounts = self._accounts(own)
        behind = those_behind(accounts, jax.process_count())
        reason = f"no step has ended for {still / 60:.3g} min: {described(accounts, self._hosts)}"
        end_program(
            HUNG,
            f"{reason}; {self._workdir / 'hangs'} has the Python stacks; the same command goes on "
            "from the last checkpoint, with another parallel.hang_minutes if need be",
            lambda: self._exclude(behind),
            lambda: self.on_end(reason, HUNG),
        )

    def _accounts(self, own: Account) -> dict[int, Account]:
        """Return the accounts of all processes that send one in time."""
        leave(f"{_ACCOUNTS}/{jax.process_index()}", json.dumps(own))
        accounts = {jax.process_index(): own}
        until = time.monotonic() + _SECONDS_TO_ANSWER
        while len(accounts) < jax.process_count() and time.monotonic() < until:
            time.sleep(0.2)
            texts = texts_under(_ACCOUNTS)
            accounts |= {number: Account(*json.loads(text)) for number, text in texts.items()}
        return accounts

    def _write_stacks(self, own: Account) -> None:
        number, frames = jax.process_index(), sys._current_frames()
        doing = "waits for devices or other processes" if own.waits else "works"
        head = (
            f"Process {number} on {self._hosts[number]} {doing}, in the phase {own.phase!r}.\n"
            f"Since its start, it has launched {own.launched} steps, of which "
            f"{self._progress.done} have ended.\n"
        )
        stacks = [
            f"thread {thread.name}:\n{''.join(traceback.format_stack(frames[thread.ident]))}"
            for thread in threading.enumerate()  # the main thread is the first
            if thread.ident in frames and thread.name != _NAME
        ]
        (self._workdir / "hangs").mkdir(exist_ok=True)
        path = self._workdir / "hangs" / f"process_{number}.txt"
        write_whole(path, "\n".join([head, *stacks]).encode())

    def _exclude(self, behind: Sequence[int]) -> None:
        """Exclude the hosts of these processes from the next start; one of the others writes."""
        if not behind or jax.process_index() != min({*range(jax.process_count())} - {*behind}):
            return
        names = dict.fromkeys(self._hosts[process] for process in behind)
        (self._workdir / EXCLUDED_HOSTS).parent.mkdir(exist_ok=True)
        with (self._workdir / EXCLUDED_HOSTS).open("a", encoding="utf-8") as file:
            file.writelines(f"{name}\n" for name in names)


def those_behind(accounts: Mapping[int, Account], num_processes: int) -> list[int]:
    """Return the indices of the processes that the others wait for; [] if none is behind.

    They are those without an account; else those that have launched the fewest steps; and of
    these, those that do not wait themselves.
    """
    missing = [number for number in range(num_processes) if number not in accounts]
    if missing:
        return missing
    least = min((account.launched, account.waits) for account in accounts.values())
    behind = [n for n, a in sorted(accounts.items()) if (a.launched, a.waits) == least]
    return behind if len(behind) < num_processes else []


def described(accounts: Mapping[int, Account], hosts: Sequence[str]) -> str:
    """Describe which processes are behind, and their phases.

    Args:
      hosts: the name of each process's host.
    """
    if len(hosts) == 1:
        return f"the program is stuck in the phase {accounts[0].phase!r}"
    behind = those_behind(accounts, len(hosts))
    if not behind:
        return "no process is behind the others, so their devices or the network are stuck"
    first, *others = behind
    who = f"process {first} on {hosts[first]}" + (f" and {len(others)} more" if others else "")
    if first not in accounts:
        return f"{who} did not answer"
    phase, launched, waits = accounts[first]
    most = max(account.launched for account in accounts.values())
    return (
        f"{who} came last: {'waiting' if waits else 'working'} in the phase {phase!r}, it has "
        f"launched {launched} steps since its start, and others {most}"
    )


_WINDOW = 10
_UNUSUAL = 2  # steps of a window that may be different, such as one in which the log is written
_LEAST_SECONDS, _LEAST_SHARE = 0.01, 0.1


class SlowHosts:
    """The times of the processes in the last steps."""

    def __init__(self) -> None:
        """Begin without any times."""
        self._times: deque[Float[np.ndarray, " processes"]] = deque(maxlen=_WINDOW)
        self._named: set[int] = set()

    def slowest(
        self, seconds: Float[np.ndarray, " processes"] | None, seconds_per_step: float
    ) -> tuple[int, float] | None:
        """Return a process that is slower than all others beyond noise, once for each process.

        In 9 of the last 10 steps it took longer than any other process did in 9 of them, by a tenth
        of a step, or by 10 ms if that is more.

        Args:
          seconds: each process's work for a step; None for a single process.
          seconds_per_step: the time of a step, including waits.

        Returns:
          Its index, and the seconds of a step by which it is slower.
        """
        if seconds is None:
            return None
        self._times.append(seconds)
        if len(self._times) < _WINDOW:
            return None
        times = np.sort(np.stack(self._times), axis=0)  # [steps, processes]
        least, most = times[_UNUSUAL - 1], times[-_UNUSUAL]
        slow = int(np.argmax(least))
        behind = float(least[slow] - np.delete(most, slow).max())
        if slow in self._named or behind < max(_LEAST_SECONDS, _LEAST_SHARE * seconds_per_step):
            return None
        self._named.add(slow)
        return slow, behind
