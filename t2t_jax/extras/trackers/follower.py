"""Send a run's log to trackers, from one process per tracker during training, or from `track`.

A resumed run repeats the steps after its last checkpoint, and the log drops their records. So a
record is sent after a checkpoint of its step or a later step, or at the end of training. Only
records that the tracker lacks are sent. RUN/trackers/TRACKER.json stores the project and run id.
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
from t2t_jax.errors import UserError, reason_of, warn
from t2t_jax.extras.trackers.tracker import TRACKERS, Row, Target, parse_targets
from t2t_jax.parallel.processes import is_main
from t2t_jax.run.history import scalars
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.system.bucket import as_path, on_this_machine
from t2t_jax.system.lock import holding
from t2t_jax.system.records import Record, as_line, read_object, schema
from t2t_jax.system.signals import ENDING, StopSignal
from t2t_jax.workdir import CHECKPOINT, END, TRACKERS_FOLDER, WARNING

_SCHEMA = schema({"tracker": str, "id": str})
_INTERVAL = 2.0  # seconds between two reads of the log
_SECONDS_AT_END = 15.0
"""The maximum time for the last records after training. Slurm kills a job half a minute after it
asked the job to stop."""


@contextmanager
def follow(workdir: Path, trackers: Sequence[str]) -> Iterator[None]:
    """Send a run's log to trackers within a block, also to the trackers of earlier starts.

    Only process 0 sends. Trackers that fail in the block cause at most a warning. After the block,
    they have 15 seconds for the last records; a signal ends the wait. `trackers` are texts such as
    `wandb:PROJECT`.

    Raises:
      UserError: before the block, if one of `trackers` is unusable.
    """
    stored_targets = read_targets(workdir)
    named_targets = parse_targets(trackers, stored_targets)
    processes: dict[Target, subprocess.Popen[bytes]] = {}
    try:
        for target in dict.fromkeys((*named_targets, *stored_targets)) if is_main() else ():
            try:
                processes[target] = _start_follower(workdir, target)
            except (UserError, OSError) as error:
                if target in named_targets:
                    raise
                warn(f"the run is not sent to {target}: {error}")
        yield
    finally:
        _stop_all(workdir, processes)


def _start_follower(workdir: Path, target: Target) -> "subprocess.Popen[bytes]":
    """Check a target in one process, and start another that sends the run to it."""
    command = [sys.executable, "-m", __name__, str(target)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}  # training uses the accelerators
    check = subprocess.run(
        command, capture_output=True, text=True, errors="replace", env=environment
    )
    if check.returncode:
        error_line = check.stderr.strip().rpartition("\n")[2].removeprefix("error: ")
        raise UserError(error_line or f"the process for {target} ended with {check.returncode}")
    return subprocess.Popen(
        [*command, str(workdir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # Ctrl-C only reaches the trainer, which then stops followers
    )


def _stop_all(workdir: Path, processes: Mapping[Target, "subprocess.Popen[bytes]"]) -> None:
    """Wait at most 15 seconds, or until a signal, for the last records; then kill the processes."""
    for process in processes.values():
        assert process.stdin
        with suppress(OSError):  # the process may have ended already
            # Closing is not enough: processes that the trainer forked may keep the pipe open.
            process.stdin.write(b"end\n")
            process.stdin.close()
    deadline = time.monotonic() + _SECONDS_AT_END
    with StopSignal() as stop:
        while any(process.poll() is None for process in processes.values()):
            if stop.number or time.monotonic() > deadline:
                break
            time.sleep(0.05)
    for target, process in processes.items():
        code = process.poll()
        process.kill()
        process.wait()
        if code != 0 and run_files.is_run(workdir):
            command = shlex.join(["t2t-jax", "track", str(workdir), str(target)])
            warn(
                f"{target} did not receive the whole log, see {TRACKERS_FOLDER}/{target.tracker}"
                f".log; this command sends the rest: {command}"
            )


def send_run(workdir: Path, target: Target, ended: threading.Event) -> int:
    """Send a run to a tracker until `ended` is set, and return the number of records there.

    Failures before that are printed. The last records are sent afterwards.

    Raises:
      UserError: another process sends the run to this tracker.
      Exception: the tracker's library failed to send the last records.
    """
    with _lock_run(workdir, target) as run_id:
        open_run, sent_signature, is_over = None, None, False
        while not is_over:
            is_over = ended.wait(_INTERVAL)
            signature = run_files.log_signature(workdir)
            if signature == sent_signature and not is_over:
                continue
            try:
                records, end_text = _final_records(workdir, is_over)
                if open_run is None and records:
                    open_run = TRACKERS[target.tracker](target.project, run_id, workdir)
                    num_sent = open_run.rows
                if open_run is not None:
                    open_run.send([*_rows(records, num_sent, open_run.figures)])
                    num_sent = max(num_sent, len(records))
                sent_signature = signature
            except Exception as error:
                if is_over:
                    raise
                print(reason_of(error), flush=True)
                open_run = None  # opened again at the next change, to ask for the records it has
        if open_run is None:
            return 0
        open_run.close(end_text, bool(end_text and end_text.startswith("error: ")))
        return num_sent


@contextmanager
def _lock_run(workdir: Path, target: Target) -> Iterator[str]:
    """Lock a run, so that only one process sends it to a tracker; yield its id at the tracker."""
    folder = workdir / TRACKERS_FOLDER
    folder.mkdir(exist_ok=True)
    try:
        with holding(folder / f".{target.tracker}.lock", str(secrets.randbelow(2**31))):
            if target not in read_targets(workdir):
                record = {"tracker": str(target), "id": secrets.token_hex(16)}
                write_whole(folder / f"{target.tracker}.json", f"{as_line(record)}\n".encode())
            yield read_targets(workdir)[target]
    except BlockingIOError as error:
        raise UserError(f"another process is sending {workdir} to this tracker") from error


def _final_records(workdir: Path, is_over: bool) -> tuple[list[Record], str | None]:
    """Return log records that no resumed run repeats, and why training ended, or None."""
    with redirect_stderr(None):  # the trainer warns of damaged lines itself
        records = run_files.read_log(workdir)
    end_texts = [str(record.get("text", "")) for record in records if record["of"] == END]
    checkpoint_steps = [record["step"] for record in records if record["of"] == CHECKPOINT]
    last = float("inf") if is_over and end_texts else max(checkpoint_steps, default=-1)
    final_records = [r for r in records if r["of"] not in (CHECKPOINT, END) and r["step"] <= last]
    return final_records, end_texts[-1] if end_texts else None


def _rows(
    records: Sequence[Record], first: int, sent_figures: Container[tuple[str, int]]
) -> Iterator[Row]:
    """Yield rows with the figures of records, beginning with the record at index `first`.

    Figures whose (name, step) is in `sent_figures` are left out.
    """
    for index, record in enumerate(records[first:], first):
        step, figures = record["step"], scalars(record)
        if record["of"] == WARNING:  # trackers plot a warning as a 1 under the name of its rule
            figures[f"{WARNING}/{record.get('rule', WARNING)}"] = 1.0
        new_names = [name for name in figures if (name, step) not in sent_figures]
        if new_names:
            yield Row(index, step, record.get("time") or 0.0, {n: figures[n] for n in new_names})


def read_targets(workdir: Path) -> dict[Target, str]:
    """Return the tracker projects of earlier starts of a run, with the run's id at each."""
    files = [workdir / TRACKERS_FOLDER / f"{name}.json" for name in TRACKERS.all_names]
    advice = "remove the file to send the run again, under a new id"
    records = [read_object(file, _SCHEMA, advice) for file in files if file.exists()]
    return {Target(*record["tracker"].split(":", 1)): record["id"] for record in records}


def main(arguments: Sequence[str]) -> int:
    """Check the target TRACKER:PROJECT in the first argument, or send it the run in the second.

    Without a second argument, a run directory, it only checks. A line on standard input ends the
    sending, which ignores stop signals and writes its output to RUN/trackers/TRACKER.log.
    """
    for signal_number in (*ENDING, signal.SIGUSR1):  # Slurm signals every process of a job
        signal.signal(signal_number, signal.SIG_IGN)
    [target] = parse_targets(arguments[:1])
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
        except UserError:  # the process of an earlier start may still be sending
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
