"""The process that follows a run in training for one tracker; see `trackers.following`.

It prints a line once it has checked that it can work: `READY`, or why it cannot. It ends after a
line on its standard input, or when that is closed, and ignores stop signals. The output of the
tracker's library goes to RUN/trackers/TRACKER.log.
"""

import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from t2t_jax.system.signals import ENDING

if TYPE_CHECKING:
    from t2t_jax.run.trackers.tracker import Target

READY = "ready"
"""The line that the process prints when it can work."""
SECONDS_AT_END = 15.0
"""The longest time for which the process sends what is left once it is to end. A scheduler such as
Slurm ends a job by force half a minute after it has asked it to stop."""
_INTERVAL = 2.0  # seconds between two looks at the log


def main(arguments: Sequence[str]) -> int:
    """Follow the run in a directory, the first argument, for the target, the second.

    Returns:
      0 if everything that can be sent was sent, or else 1.
    """
    from t2t_jax.run.trackers.tracker import kind_of, targets_of
    from t2t_jax.system.bucket import as_path

    answers, own = os.dup(1), os.dup(2)
    _print_to(Path(os.devnull))
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    try:
        [target] = targets_of(arguments[1:])
        kind_of(target).check(target.project)
    except Exception as error:  # of the library too, as of a key of the wrong form
        os.write(answers, f"{' '.join(str(error).split())}\n".encode())
        return 1
    os.write(answers, f"{READY}\n".encode())
    return _follow(as_path(arguments[0]), target, ended, own)


def _follow(workdir: Path, target: "Target", ended: threading.Event, own: int) -> int:
    """Wait until there is a run, and send its records until the training has ended.

    `own` is the descriptor of the standard error, which reports once that a tracker is down.
    """
    from t2t_jax.run.trackers.follower import Follower
    from t2t_jax.system.bucket import on_this_machine
    from t2t_jax.workdir import TRACKERS_FOLDER, is_run, log_file

    while not (is_run(workdir) and log_file(workdir).is_file()):
        if ended.wait(_INTERVAL):
            return 0
    follower = Follower(workdir, target)
    while True:
        # The process of an earlier start may still send what was left at its end.
        with suppress(BlockingIOError), follower.held():
            _print_to(on_this_machine(workdir / TRACKERS_FOLDER) / f"{target.tracker}.log")
            is_over = is_reported = False
            while not is_over:
                is_over = ended.wait(_INTERVAL)
                follower.follow(is_over=is_over)
                if follower.error and not is_reported:
                    with suppress(OSError):  # nobody reads it any more
                        os.write(own, f"warning: {target} is behind: {follower.error}\n".encode())
                is_reported = follower.error is not None
            return int(is_reported)
        if ended.wait(_INTERVAL):
            return 1


def _wait_for_end(ended: threading.Event) -> None:
    with suppress(OSError, ValueError):
        sys.stdin.buffer.readline()
    threading.Timer(SECONDS_AT_END, os._exit, (1,)).start()
    ended.set()


def _print_to(path: Path) -> None:
    """Append the standard output and the standard error of this process to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for number in (1, 2):
        os.dup2(file, number)
    os.close(file)


if __name__ == "__main__":
    for number in ENDING:  # Slurm sends them to every process of a job
        signal.signal(number, signal.SIG_IGN)
    from t2t_jax.system.program import run

    run(main)
