"""Follow a run in training for trackers, each in a separate process that cannot disturb it."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from t2t_jax.errors import UserError, warn
from t2t_jax.parallel.processes import is_main
from t2t_jax.run.trackers.child import READY, SECONDS_AT_END
from t2t_jax.run.trackers.follower import check_target, remembered
from t2t_jax.run.trackers.tracker import Target, targets_of
from t2t_jax.system.signals import StopSignal
from t2t_jax.workdir import is_run

_SECONDS_TO_START = 60.0


@contextmanager
def followed(workdir: Path, trackers: Sequence[str]) -> Iterator[None]:
    """Follow a run within a block, for the given trackers and those of an earlier start.

    Only process 0 does so. A failure of a tracker within the block is at most a warning. At the
    end, trackers have 15 seconds to send the rest; a signal ends the wait.

    Args:
      workdir: the directory of the run, which may not exist yet.
      trackers: texts such as `wandb:PROJECT`.

    Raises:
      UserError: before the block, if a given tracker cannot be used.
    """
    asked = targets_of(trackers)
    children: list[_Child] = []
    try:
        if is_main():
            for target in asked:
                check_target(workdir, target)
            known = [target for target in remembered(workdir) if target not in asked]
            for target in (*asked, *known):
                try:
                    children.append(_Child(workdir, target))
                except OSError as error:  # there is no room for another process
                    warn(f"the run is not sent to {target}: {error.strerror}")
            for child in children:
                child.wait_until_ready(is_asked=child.target in asked)
        yield
    finally:
        _end(children)


def _end(children: Sequence["_Child"]) -> None:
    """Have the processes send the rest, and wait for them: briefly, and not after a signal."""
    for child in children:
        child.ask_to_end()
    latest = time.monotonic() + SECONDS_AT_END
    with StopSignal() as stop:
        while any(child.is_alive for child in children):
            if stop.number or time.monotonic() > latest:
                break
            time.sleep(0.05)
    for child in children:
        child.close()


class _Child:
    """The process that follows a run for one tracker."""

    def __init__(self, workdir: Path, target: Target) -> None:
        self.target, self._workdir, self._is_ready = target, workdir, False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "t2t_jax.run.trackers.child", str(workdir), str(target)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},  # the devices are for the training
            start_new_session=True,  # Ctrl-C reaches it through `ask_to_end` alone
        )

    def wait_until_ready(self, *, is_asked: bool) -> None:
        """Wait until the process can work; if it cannot, refuse a target of the command line."""
        assert self._process.stdout
        said = READY
        if select.select([self._process.stdout], [], [], _SECONDS_TO_START)[0]:
            said = self._process.stdout.readline().decode(errors="replace").strip()
        self._is_ready = said == READY
        if not self._is_ready:
            said = said or "its process ended as it started"
            if is_asked:
                raise UserError(said)
            warn(f"the run is not sent to {self.target}: {said}")

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask_to_end(self) -> None:
        """Ask the process to send the rest, and to end."""
        assert self._process.stdin
        with suppress(OSError):  # it has ended by itself
            # A line, as processes that the training has forked may hold the stream open.
            self._process.stdin.write(b"end\n")
            self._process.stdin.close()

    def close(self) -> None:
        """End the process, and warn if it has not sent everything."""
        code = self._process.poll()
        self._process.kill()
        self._process.__exit__(None, None, None)
        if code != 0 and self._is_ready and is_run(self._workdir):
            rest = f"t2t-jax track {self._workdir} {self.target}"
            warn(f"{self.target} has not got all of the log yet; this sends the rest: {rest}")
