"""Send a run's log to trackers: a process beside the training for each, and `t2t-jax track`.

A resumed run repeats the steps after its last checkpoint, and the log drops their records. So the
follower sends a record once there is a checkpoint of its step or of a later one, and all when the
training has ended. At each start it asks the tracker what it has, and sends what the log has beyond
that. RUN/trackers/TRACKER.json has the project and the run's id there.
"""

import os
import secrets
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from pathlib import Path

from t2t_jax import workdir as run_files
from t2t_jax.errors import UserError, in_one_line, warn
from t2t_jax.extras.trackers.tracker import TRACKERS, Row, Target, targets_of
from t2t_jax.parallel.processes import is_main
from t2t_jax.run.history import scalars
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.system.bucket import as_path, on_this_machine
from t2t_jax.system.lock import holding
from t2t_jax.system.records import Record, as_line, read_object, schema
from t2t_jax.system.signals import ENDING, StopSignal
from t2t_jax.workdir import CHECKPOINT, END, TRACKERS_FOLDER, WARNING

_SCHEMA = schema({"tracker": str, "id": str})
_INTERVAL = 2.0  # seconds between two looks at the log
_SECONDS_AT_END = 15.0
"""The longest time for which the rest is sent at the end. A scheduler such as Slurm ends a job by
force half a minute after it has asked it to stop."""


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
    stored_targets = remembered(workdir)
    named_targets = targets_of(trackers, stored_targets)
    processes: dict[Target, subprocess.Popen[bytes]] = {}
    try:
        for target in dict.fromkeys((*named_targets, *stored_targets)) if is_main() else ():
            try:
                processes[target] = _started(workdir, target)
            except (UserError, OSError) as error:
                if target in named_targets:
                    raise
                warn(f"the run is not sent to {target}: {error}")
        yield
    finally:
        _end(workdir, processes)


def _started(workdir: Path, target: Target) -> "subprocess.Popen[bytes]":
    """Check a target in one process, and follow the run in another."""
    program = [sys.executable, "-m", __name__, str(target)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}  # the devices are for the training
    check = subprocess.run(
        program, capture_output=True, text=True, errors="replace", env=environment
    )
    if check.returncode:
        refusal = check.stderr.strip().rpartition("\n")[2].removeprefix("error: ")
        raise UserError(refusal or f"the process for {target} ended with {check.returncode}")
    return subprocess.Popen(
        [*program, str(workdir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # Ctrl-C is for the training, which then ends this process
    )


def _end(workdir: Path, processes: Mapping[Target, "subprocess.Popen[bytes]"]) -> None:
    """Have the processes send the rest, and wait for them: briefly, and not after a signal."""
    for process in processes.values():
        assert process.stdin
        with suppress(OSError):  # it has ended by itself
            # A line, as processes that the training has forked may hold the stream open.
            process.stdin.write(b"end\n")
            process.stdin.close()
    latest = time.monotonic() + _SECONDS_AT_END
    with StopSignal() as stop:
        while any(process.poll() is None for process in processes.values()):
            if stop.number or time.monotonic() > latest:
                break
            time.sleep(0.05)
    for target, process in processes.items():
        code = process.poll()
        process.kill()
        process.wait()
        if code != 0 and run_files.is_run(workdir):
            command = shlex.join(["t2t-jax", "track", str(workdir), str(target)])
            warn(
                f"{target} has not got all of the log, see {TRACKERS_FOLDER}/{target.tracker}.log; "
                f"this sends the rest: {command}"
            )


def send_run(workdir: Path, target: Target, ended: threading.Event) -> int:
    """Send a run to a tracker until an event, then the rest; return the number of sent records.

    The output of the tracker's library, and failures before the event, go to standard output.

    Raises:
      UserError: another process sends the run to this tracker.
      Exception: the rest could not be sent; of any kind, as it is the code of somebody else.
    """
    with _held(workdir, target) as number:
        opened, seen, is_over = None, None, False
        while not is_over:
            is_over = ended.wait(_INTERVAL)
            signature = run_files.log_signature(workdir)
            if signature == seen and not is_over:
                continue
            try:
                records, end = _sendable(workdir, is_over)
                if opened is None and records:
                    opened = TRACKERS[target.tracker](target.project, number, workdir)
                    count = opened.rows
                if opened is not None:
                    opened.send([*_rows(records, count, opened.figures)])
                    count = max(count, len(records))
                seen = signature
            except Exception as error:
                if is_over:
                    raise
                print(in_one_line(f"{type(error).__name__}: {error}"), flush=True)
                opened = None
        if opened is None:
            return 0
        opened.close(end, bool(end and end.startswith("error: ")))
        return count


@contextmanager
def _held(workdir: Path, target: Target) -> Iterator[str]:
    """Lock a run at a tracker within a block, so that nobody else sends, and yield its id there."""
    folder = workdir / TRACKERS_FOLDER
    folder.mkdir(exist_ok=True)
    try:
        with holding(folder / f".{target.tracker}.lock", str(secrets.randbelow(2**31))):
            if target not in remembered(workdir):
                record = {"tracker": str(target), "id": secrets.token_hex(16)}
                write_whole(folder / f"{target.tracker}.json", f"{as_line(record)}\n".encode())
            yield remembered(workdir)[target]
    except BlockingIOError as error:
        raise UserError(f"another process sends {workdir} to it, as its training does") from error


def _sendable(workdir: Path, is_over: bool) -> tuple[list[Record], str | None]:
    """Return the records whose steps no run can repeat, and why the training ended."""
    with redirect_stderr(None):  # a training warns of damaged lines by itself
        records = run_files.read_log(workdir)
    ends = [str(record.get("text", "")) for record in records if record["of"] == END]
    steps = [record["step"] for record in records if record["of"] == CHECKPOINT]
    last = float("inf") if is_over and ends else max(steps, default=-1)
    kinds = CHECKPOINT, END
    sendable = [r for r in records if r["of"] not in kinds and r["step"] <= last]
    return sendable, ends[-1] if ends else None


def _rows(
    records: Sequence[Record], first: int, known: Container[tuple[str, int]]
) -> Iterator[Row]:
    """Yield records from a number on, without known figures; a warning counts as 1 by its rule."""
    for number, record in enumerate(records[first:], first):
        step, figures = record["step"], scalars(record)
        if record["of"] == WARNING:
            figures[f"{WARNING}/{record.get('rule', WARNING)}"] = 1.0
        if new := {name: value for name, value in figures.items() if (name, step) not in known}:
            yield Row(number, step, record.get("time") or 0.0, new)


def remembered(workdir: Path) -> dict[Target, str]:
    """Return the targets of earlier starts of a run, with the id of the run there."""
    files = [workdir / TRACKERS_FOLDER / f"{name}.json" for name in TRACKERS.all_names]
    way_out = "remove it, and the run is sent again, under a new id"
    records = [read_object(file, _SCHEMA, way_out) for file in files if file.exists()]
    return {Target(*record["tracker"].split(":", 1)): record["id"] for record in records}


def main(arguments: Sequence[str]) -> int:
    """Check a target, the first argument, or follow the run in a directory, the second, for it.

    It ends after a line on its standard input, or when that is closed, and ignores stop signals.
    The output of the tracker's library goes to RUN/trackers/TRACKER.log.
    """
    for number in (*ENDING, signal.SIGUSR1):  # Slurm sends them to every process of a job
        signal.signal(number, signal.SIG_IGN)
    [target] = targets_of(arguments[:1])
    if len(arguments) == 1:
        target.check()
        return 0
    workdir, ended = as_path(arguments[1]), threading.Event()
    threading.Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    while not (run_files.is_run(workdir) and (workdir / run_files.LOG).is_file()):
        if ended.wait(_INTERVAL):
            return 0
    folder = on_this_machine(workdir / TRACKERS_FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{target.tracker}.log").open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    while True:
        try:
            send_run(workdir, target, ended)
            return 0
        except UserError:  # the process of an earlier start may still send its rest
            if ended.wait(_INTERVAL):
                raise


def _wait_for_end(ended: threading.Event) -> None:
    with suppress(OSError, ValueError):
        sys.stdin.buffer.readline()
    threading.Timer(_SECONDS_AT_END, os._exit, (1,)).start()
    ended.set()


if __name__ == "__main__":
    from t2t_jax.system.program import run

    run(main)
