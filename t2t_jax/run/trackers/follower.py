"""Send the records of a run's log to a tracker, each once.

A resumed run repeats the steps after its last checkpoint, and the log drops their records. So the
follower sends a record once there is a checkpoint of its step or of a later one, and all when the
training has ended. RUN/trackers/TRACKER.json records the number of sent records after each upload.
After a kill between the two, the tracker reports what it has.
"""

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

from t2t_jax.config import walk
from t2t_jax.errors import UserError, in_one_line
from t2t_jax.run.history import scalars
from t2t_jax.run.trackers.tracker import TRACKERS, Row, Target, TrackedRun, Tracker, kind_of
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.system.bucket import on_this_machine
from t2t_jax.system.lock import holding
from t2t_jax.system.records import Between, Record, Schema, as_line, read_object
from t2t_jax.workdir import (
    CHECKPOINT,
    END,
    TRACKERS_FOLDER,
    WARNING,
    log_signature,
    read_config,
    read_log,
)

_COUNT = Between(int, 0, 2**62)
_SCHEMA = Schema({"tracker": str, "id": str, "rows": _COUNT, "step": int, "of_step": _COUNT})
_ROWS_AT_ONCE = 500
_LEAST_PAUSE, _LONGEST_PAUSE = 5.0, 300.0  # seconds between two tries at a tracker that is down


def remembered(workdir: Path) -> list[Target]:
    """Return the targets of earlier starts of a run.

    Raises:
      UserError: a file that names one is damaged.
    """
    found = []
    for name in TRACKERS:
        if (path := _place_file(workdir, name)).is_file():
            found.append(Target(name, _read_place(path)["tracker"].partition(":")[2]))
    return found


def check_target(workdir: Path, target: Target) -> None:
    """Refuse a target if the run is sent to another project of the same tracker.

    Raises:
      UserError: the project differs, or the file that names it is damaged.
    """
    for known in remembered(workdir):
        if known.tracker == target.tracker and known != target:
            raise UserError(
                f"{workdir} is sent to {known}, and not to {target}: a run has one id at a "
                f"tracker; name that one, or remove {_place_file(workdir, target.tracker)} to "
                "begin anew"
            )


def _place_file(workdir: Path, tracker: str) -> Path:
    return workdir / TRACKERS_FOLDER / f"{tracker}.json"


def _read_place(path: Path) -> Record:
    return read_object(path, _SCHEMA, "remove it, and the run is sent again, under a new id")


def sendable(records: Sequence[Record], is_over: bool) -> list[Record]:
    """Return the records of a log whose steps no run can repeat.

    Args:
      records: all records of the log.
      is_over: whether nobody trains any more. Then an end in the log means that all can be sent.

    Returns:
      The records, in the order of their steps, without those of checkpoints and of the end.
    """
    kinds = {record["of"] for record in records}
    steps = (record["step"] for record in records if record["of"] == CHECKPOINT)
    last = float("inf") if is_over and END in kinds else max(steps, default=-1)
    rows = [r for r in records if r["of"] not in (CHECKPOINT, END) and r["step"] <= last]
    return sorted(rows, key=lambda record: record["step"])


class Follower:
    """Sends the records of one run to one tracker.

    Attributes:
      target: the tracker and its project.
      error: why the last upload failed, in one line; None if it did not.
      has_ended: whether the log recorded the end of the training when it was last read.
    """

    def __init__(self, workdir: Path, target: Target) -> None:
        """Prepare to follow a run; enter `held` to send records.

        Raises:
          UserError: the run is sent to another project of the tracker, its state is damaged, or the
            tracker's library is not installed.
        """
        check_target(workdir, target)
        self.target, self.has_ended = target, False
        self.error: str | None = None
        self._workdir, self._kind = workdir, kind_of(target)
        self._kind.check(target.project)
        self._tracker: Tracker | None = None
        self._seen: object = None
        self._pause, self._not_before = _LEAST_PAUSE, 0.0
        self._extra = 0  # rows that the tracker has beyond those noted; fewer if negative

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the run at the tracker within a block, so that nobody else sends.

        Raises:
          BlockingIOError: another process sends the run to this tracker.
        """
        (self._workdir / TRACKERS_FOLDER).mkdir(exist_ok=True)
        lock = self._workdir / TRACKERS_FOLDER / f".{self.target.tracker}.lock"
        with holding(lock, str(secrets.randbelow(2**31))):
            path = _place_file(self._workdir, self.target.tracker)
            if path.is_file():
                self._place = _read_place(path)
            else:
                new = {"id": secrets.token_hex(16), "rows": 0, "step": 0, "of_step": 0}
                self._note({"tracker": str(self.target), **new})
            yield

    def follow(self, *, is_over: bool = False) -> None:
        """Send all new sendable records; `error` keeps a failure, and the next call retries.

        Args:
          is_over: whether nobody trains any more; then also close the run at the tracker, and retry
            without a delay after a failure.
        """
        seen = log_signature(self._workdir)
        if not is_over and (seen == self._seen or time.monotonic() < self._not_before):
            return
        try:
            with redirect_stderr(None):  # a training warns of damaged lines by itself
                records = read_log(self._workdir)
            ends = [str(one.get("text", "")) for one in records if one["of"] == END]
            self.has_ended = bool(ends)
            self._send(sendable(records, is_over))
            if is_over and self._tracker:
                self._tracker.close(ends[-1] if ends else None)
                self._tracker = None
        except Exception as error:  # of any kind: it is the code of somebody else
            self.error = in_one_line(f"{type(error).__name__}: {error}")[:300]
            self._tracker = None
            self._not_before = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        else:
            self.error, self._pause, self._seen = None, _LEAST_PAUSE, seen

    @property
    def rows(self) -> int:
        """Return the number of sent records."""
        return int(self._place["rows"])

    def _send(self, records: Sequence[Record]) -> None:
        """Send the records that the tracker does not have."""
        if self._tracker is None:
            if not records:
                return
            self._tracker = self._kind(self.target.project, self._told())
            known = self._tracker.known
            self._extra = 0 if known is None else known - self._place["rows"]
        first = max(0, self._num_sent(records) + self._extra)
        number = self._place["rows"] + self._extra
        for start in range(first, len(records), _ROWS_AT_ONCE):
            part = records[start : start + _ROWS_AT_ONCE]
            self._tracker.send([_row(number + n, one) for n, one in enumerate(part)])
            number += len(part)
            step = part[-1]["step"]
            of_step = sum(one["step"] == step for one in records[: start + len(part)])
            self._note({**self._place, "rows": number, "step": step, "of_step": of_step})
            self._extra = 0

    def _num_sent(self, records: Sequence[Record]) -> int:
        """Return how many of the records the state file counts as sent."""
        step = self._place["step"]
        before = sum(record["step"] < step for record in records)
        of_step = sum(record["step"] == step for record in records)
        return before + min(of_step, self._place["of_step"])

    def _note(self, place: dict[str, Any]) -> None:
        write_whole(_place_file(self._workdir, self.target.tracker), f"{as_line(place)}\n".encode())
        self._place = place

    def _told(self) -> TrackedRun:
        plain = str, int, float, bool, type(None)
        config = {
            path: value if isinstance(value, plain) else str(value)
            for path, _, value in walk(read_config(self._workdir))
        }
        folder = on_this_machine(self._workdir / TRACKERS_FOLDER)
        return TrackedRun(self._place["id"], str(self._workdir), config, folder)


def _row(number: int, record: Record) -> Row:
    figures, warning = scalars(record), None
    if record["of"] == WARNING:
        rule = str(record.get("rule", WARNING))
        figures[f"{WARNING}/{rule}"] = 1.0
        warning = rule, str(record.get("text", ""))
    return Row(number, record["step"], record.get("time") or 0.0, figures, warning)
