"""The watchdog of a training run: it reports a hang and ends the program.

A hung process keeps its connections open, so the other processes would wait forever. All watchdog
threads notice the hang at about the same time. Each thread writes the Python stacks of its process
to `W/hangs` and sends the progress of the process to the others. Together they name the process
that is behind, and end all programs. Time while the program is suspended does not count.

`SlowHosts` detects a process that delays the others. Step times are equal in all processes because
of the collectives, so each process reports the time that its own host worked.
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
from t2t_jax.run.progress import STEPS, PhaseTimer
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.system.exit_codes import EXCLUDED_HOSTS, HUNG
from t2t_jax.system.program import begun

_LONGER, _SLOWER = 12, 5
_SECONDS_TO_ANSWER = 15.0
_NAME = "watchdog"
_PHASES, _REPORTS = "phase", "hang"


class Report(NamedTuple):
    """The progress of a process at a hang."""

    phase: str
    """The phase of the main thread, of `run.progress.PHASES`."""
    launched: int
    """The number of steps that the process has launched."""
    waits: bool
    """Whether the main thread waits for devices or other processes."""


class Watchdog:
    """A context that watches a training run.

    The watchdog never ends a notebook, except in a run of several processes.

    Attributes:
      on_end: called with the reason and the exit code before the program ends.
    """

    def __init__(self, workdir: Path, progress: PhaseTimer, minutes: float | None) -> None:
        """Prepare the watchdog; all processes call this together.

        Args:
          minutes: the time without a finished step after which the watchdog ends the program. The
            limit is 12 times as long before the first finished step and in phases other than
            steps. None never ends the program.
        """
        self._workdir, self._progress = workdir, progress
        self.on_end: Callable[[str, int], None] = lambda reason, code: None
        self._seconds = 60 * (minutes or 0)
        self._watches = self._seconds > 0 and (jax.process_count() > 1 or begun() is not None)
        self._hosts = processes.hosts()
        self._longest = 0.0  # seconds of the slowest step
        self._over, self._ends = threading.Event(), False

    def __enter__(self) -> "Watchdog":
        """Start the thread that watches the training run for a hang."""
        if monitor := liveness():
            monitor.on_end = self._end_without
        if self._watches:
            threading.Thread(target=self._watch, daemon=True, name=_NAME).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching; if the watchdog is ending the program, wait for that end."""
        self._over.set()
        if monitor := liveness():
            monitor.on_end = lambda *_: None
        if self._ends:
            threading.Event().wait()

    def _end_without(self, reason: str, code: int, silent: Sequence[int]) -> None:
        """Exclude the hosts of the processes `silent` at the next start, and call `on_end`.

        `on_end` gets the reason and exit code. The caller then ends the program.
        """
        self._exclude(silent)
        self.on_end(reason, code)

    def _watch(self) -> None:
        last_state, phase, idle = ("", 0, 0), "", 0.0
        for interval in ticks(self._over, min(1.0, self._seconds / 20)):
            progress = self._progress
            if phase != progress.phase:
                phase = progress.phase
                leave(f"{_PHASES}/{jax.process_index()}", phase)
            state = phase, progress.launched, progress.done
            if state != last_state and last_state[0] == phase == STEPS:
                self._longest = max(self._longest, idle)
            idle = idle + interval if state == last_state else 0.0
            last_state = state
            if idle >= self._bound([phase]):
                other_phases = texts_under(_PHASES).values()
                if idle >= self._bound([phase, *other_phases]):
                    self._end(idle)

    def _bound(self, phases: Iterable[str]) -> float:
        """Return the time limit without progress while the processes are in these phases."""
        if not self._progress.done or {*phases} != {STEPS}:
            return self._seconds * _LONGER
        return max(self._seconds, _SLOWER * self._longest)

    def _end(self, idle: float) -> None:
        """Exchange the progress of all processes, report the hang and end the program."""
        self._ends, progress = True, self._progress
        report = Report(progress.phase, progress.launched, progress.waits > 0)
        within(SECONDS_TO_WRITE, lambda: self._write_stacks(report))
        reports = self._reports(report)
        behind = those_behind(reports, jax.process_count())
        reason = f"no step has ended for {idle / 60:.3g} min: {described(reports, self._hosts)}"
        end_program(
            HUNG,
            f"{reason}; {self._workdir / 'hangs'} has the Python stacks; run the same command "
            "to resume from the last checkpoint, with another parallel.hang_minutes if needed",
            lambda: self._exclude(behind),
            lambda: self.on_end(reason, HUNG),
        )

    def _reports(self, report: Report) -> dict[int, Report]:
        """Send a report, and return the reports of processes that answer in time, by index."""
        leave(f"{_REPORTS}/{jax.process_index()}", json.dumps(report))
        reports = {jax.process_index(): report}
        deadline = time.monotonic() + _SECONDS_TO_ANSWER
        while len(reports) < jax.process_count() and time.monotonic() < deadline:
            time.sleep(0.2)
            texts = texts_under(_REPORTS)
            reports |= {index: Report(*json.loads(text)) for index, text in texts.items()}
        return reports

    def _write_stacks(self, report: Report) -> None:
        index, frames = jax.process_index(), sys._current_frames()
        activity = "waits for devices or other processes" if report.waits else "works"
        head = (
            f"Process {index} on {self._hosts[index]} {activity}, in the phase {report.phase!r}.\n"
            f"Since its start, it has launched {report.launched} steps, of which "
            f"{self._progress.done} have ended.\n"
        )
        stacks = [
            f"thread {thread.name}:\n{''.join(traceback.format_stack(frames[thread.ident]))}"
            for thread in threading.enumerate()  # the main thread is the first
            if thread.ident in frames and thread.name != _NAME
        ]
        (self._workdir / "hangs").mkdir(exist_ok=True)
        path = self._workdir / "hangs" / f"process_{index}.txt"
        write_whole(path, "\n".join([head, *stacks]).encode())

    def _exclude(self, behind: Sequence[int]) -> None:
        """Append the hosts of the hung processes `behind` to the file of excluded hosts.

        The next start avoids these hosts. Only the lowest-numbered process not in `behind` writes.
        """
        if not behind or jax.process_index() != min({*range(jax.process_count())} - {*behind}):
            return
        names = dict.fromkeys(self._hosts[process] for process in behind)
        (self._workdir / EXCLUDED_HOSTS).parent.mkdir(exist_ok=True)
        with (self._workdir / EXCLUDED_HOSTS).open("a", encoding="utf-8") as file:
            file.writelines(f"{name}\n" for name in names)


def those_behind(reports: Mapping[int, Report], num_processes: int) -> list[int]:
    """Return the indices of the processes that the others wait for; [] if no process is behind.

    Processes without a report come first, then those that launched the fewest steps. Among equal
    step counts, a process that waits is not behind.
    """
    missing = [index for index in range(num_processes) if index not in reports]
    if missing:
        return missing
    least_progress = min((report.launched, report.waits) for report in reports.values())
    behind = [n for n, r in sorted(reports.items()) if (r.launched, r.waits) == least_progress]
    return behind if len(behind) < num_processes else []


def described(reports: Mapping[int, Report], hosts: Sequence[str]) -> str:
    """Describe which processes are behind in a hung training run, and their phases.

    Args:
      reports: the reports of the processes that answered, by process index.
      hosts: the name of each process's host.
    """
    if len(hosts) == 1:
        return f"the program is stuck in the phase {reports[0].phase!r}"
    behind = those_behind(reports, len(hosts))
    if not behind:
        return "no process is behind the others, so the devices or the network are stuck"
    process, num_more = behind[0], len(behind) - 1
    label = f"process {process} on {hosts[process]}" + (f" and {num_more} more" if num_more else "")
    if process not in reports:
        return f"{label} did not answer"
    phase, launched, waits = reports[process]
    most_steps = max(report.launched for report in reports.values())
    return (
        f"{label} came last: {'waiting' if waits else 'working'} in the phase {phase!r}, it has "
        f"launched {launched} steps since its start, and others {most_steps}"
    )


_WINDOW = 10
_UNUSUAL = 2  # ignored outliers per window, such as a step that writes the log
_LEAST_SECONDS, _LEAST_SHARE = 0.01, 0.1


class SlowHosts:
    """Detect slow processes by their working time in the last steps."""

    def __init__(self) -> None:
        """Start without any working times."""
        self._times: deque[Float[np.ndarray, " processes"]] = deque(maxlen=_WINDOW)
        self._named: set[int] = set()

    def slowest(
        self, seconds: Float[np.ndarray, " processes"] | None, seconds_per_step: float
    ) -> tuple[int, float] | None:
        """Return a process that is clearly slower than all others, once for each process.

        Args:
          seconds: the working time of each process in a step; None for a single process.
          seconds_per_step: the time of a step, including waits.

        Returns:
          The index of the process, and the seconds per step by which it is slower.
        """
        if seconds is None:
            return None
        self._times.append(seconds)
        if len(self._times) < _WINDOW:
            return None
        # The second shortest of the last 10 times of a slow process exceeds the second longest time
        # of every other process by a tenth of a step, and by at least 10 ms.
        times = np.sort(np.stack(self._times), axis=0)  # [steps, processes]
        short_times, long_times = times[_UNUSUAL - 1], times[-_UNUSUAL]
        slow = int(np.argmax(short_times))
        delay = float(short_times[slow] - np.delete(long_times, slow).max())
        if slow in self._named or delay < max(_LEAST_SECONDS, _LEAST_SHARE * seconds_per_step):
            return None
        self._named.add(slow)
        return slow, delay
