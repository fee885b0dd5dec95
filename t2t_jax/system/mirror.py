"""A run in a bucket: a local directory that a thread copies to the store, its mirror.

The program trains in the directory as in any other. The thread compares the directory with what it
has sent, and sends the difference in rounds. The store never has the record of a checkpoint without
the checkpoint, nor a checkpoint without the records before it. In a round:

1. Removals of small files, and the small files that are new, in the order in which they were
   written.
2. The files of new checkpoints.
3. The log up to the records of these checkpoints.
4. `_CHECKPOINT_METADATA` of each: a checkpoint in the store is complete if it has this file.
5. The log with the records of these checkpoints, but of no later one.
6. Removals of checkpoints, of each that file first.

While the store is unreachable, the training goes on and the thread retries. Before a round, the
file `.mirror.json` notes the hashes of what the store has and is about to get. At its start, a run
that was killed goes on from the local directory if the log and the config in the store are among
these. Otherwise the run was removed or went on elsewhere, and its files are fetched.
"""

import hashlib
import json
import os
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from t2t_jax.errors import UserError, warn
from t2t_jax.system import lock
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.system.bucket import BucketPath, content_of, fetch_files, remove, send_files
from t2t_jax.system.folders import user_folder
from t2t_jax.system.signals import StopSignal

LAST = "_CHECKPOINT_METADATA"
"""The file of a checkpoint that is sent last and removed first."""
COMMITTED = "commit_success.txt"
"""The file that Orbax writes last if it writes a checkpoint into a bucket by itself."""
PARAMETERS_ONLY = "PARAMETERS_ONLY"
"""The file of a checkpoint that has lost the state of the optimizer on purpose."""
UNFINISHED = ".orbax-checkpoint-tmp"
"""The mark of Orbax in the name of a checkpoint that is being written."""

_CHECKPOINTS = "checkpoints", "best", "damaged"
_LOG, _CONFIG = "log.jsonl", "config.json"
_RECORD, _SENDING, _FETCHED = ".mirror.json", ".sending", ".fetched"

_ROUND_SECONDS = 1.0
_SHARE = 10  # a round of 3 s is followed by a pause of 30 s, as files that grow are sent whole
_RETRY_SECONDS = 5.0
_PATIENCE_SECONDS = 600.0  # at the end of a run
_PATIENCE_SECONDS_STOPPED = 12.0  # so that all ends within 20 s: who sends a signal waits for 30 s
_LEAST_SECONDS = 5.0  # after a state that took long to write
_JOIN_SECONDS = 1.0

_Signature = tuple[int, int, int]


class UnsentError(UserError):
    """The end of a run is complete on this machine, but not in the store."""


@contextmanager
def mirrored(workdir: Path, stop: StopSignal, folder: Path | None = None) -> Iterator[Path]:
    """Return a context with the directory to train in; its end waits until all of it is sent.

    It is `workdir` itself, unless that is in a bucket. Call this with the run locked.

    Args:
      stop: after this signal, the end waits only briefly.
      folder: the parent of all mirrors; None is the user's cache folder.

    Raises:
      UserError: the store is unreachable at the start.
      UnsentError: the store is unreachable at the end.
    """
    if not isinstance(workdir, BucketPath):
        yield workdir
        return
    mirror = Mirror(workdir, mirror_of(workdir, folder), stop)
    mirror.start()
    try:
        yield mirror.here
    except Exception:
        try:
            mirror.close()
        except UnsentError as unsent:
            warn(str(unsent))
        raise
    except BaseException:
        mirror.give_up()
        raise
    mirror.close()
    if not stop.number:
        mirror.remove()


def mirror_of(workdir: BucketPath, folder: Path | None = None) -> Path:
    """Return the local directory of a run in a bucket."""
    root = user_folder("cache") / "mirrors" if folder is None else folder
    return root.absolute() / str(workdir).replace("://", "/", 1)


def complete_in(directory: BucketPath) -> list[str]:
    """List the complete checkpoints in a directory in a bucket, by name."""
    files = defaultdict(list)
    for path in directory.objects():
        folder, *rest = path.parts[len(directory.parts) :]
        files[folder].append("/".join(rest))
    return [folder for folder, names in files.items() if _is_complete(directory / folder, names)]


def _is_complete(checkpoint: BucketPath, names: Sequence[str]) -> bool:
    """Return whether a checkpoint has all files, given their names.

    If Orbax itself writes into a bucket of Google's, it writes `LAST` first, without the time of
    the commit, and `COMMITTED` last.
    """
    if COMMITTED in names or LAST not in names or checkpoint.parts[0] != "gs:":
        return COMMITTED in names or LAST in names
    with suppress(ValueError, AttributeError, FileNotFoundError):
        record = json.loads((checkpoint / LAST).read_bytes())
        return record.get("commit_timestamp_nsecs", 0) is not None
    return False


class Mirror:
    """A local directory and its copy in a bucket, which a thread keeps up to date."""

    def __init__(self, there: BucketPath, here: Path, stop: StopSignal) -> None:
        """Keep the two places; `start` makes them equal."""
        self.there, self.here, self._stop = there, here, stop
        # The files that may be in the store, by name; None for one that is sent or removed next.
        self._sent: dict[str, _Signature | None] = {}
        self._sent_log: bytes | None = None
        # The hashes of the contents that the store may have from here, by name, the newest last.
        self._known: dict[str, list[str]] = {}
        self._ending, self._gives_up = threading.Event(), threading.Event()
        self._failure: Exception | None = None  # of the last round
        self._away_since = 0.0
        self._thread = threading.Thread(target=self._work, daemon=True, name="mirror")

    def start(self) -> None:
        """Make the local directory the newest state of the run, and start to send its changes.

        Raises:
          UserError: the store is unreachable.
          SystemExit: a signal came while files were fetched.
        """
        depth = len(self.there.parts)
        stored = {"/".join(path.parts[depth:]): path for path in self.there.objects()}
        stored = {name: path for name, path in stored.items() if not _is_hidden(name)}
        contents = {name: content_of(self.there / name) for name in (_LOG, _CONFIG)}
        self._sent_log = contents[_LOG]
        stored.pop(_LOG, None)
        with suppress(FileNotFoundError, ValueError):
            self._known = dict(json.loads((self.here / _RECORD).read_bytes()))
        resumes = bool(self._known) and all(
            _digest(content) in self._known.get(name, [""]) for name, content in contents.items()
        )
        if resumes:
            warn(f"goes on from {self.here}, where a training in {self.there} was interrupted")
        else:
            self.remove()
            self._known = {_LOG: [_digest(self._sent_log)]}
        self._fetch(stored, self._files() if resumes else {})
        # A run whose checkpoints have no directory has lost them.
        for place in self.there, self.here:
            (place / _CHECKPOINTS[0]).mkdir(parents=True, exist_ok=True)
        if not resumes and self._sent_log is not None:
            write_whole(self.here / _LOG, self._sent_log)
        self._write_record()  # last, as nothing is resumed without it
        self._thread.start()

    def _fetch(self, stored: Mapping[str, BucketPath], here: Mapping[str, _Signature]) -> None:
        """Fetch complete checkpoints that the directory lacks, and files of other programs."""
        found = (f"{of}/{name}" for of in _CHECKPOINTS for name in complete_in(self.there / of))
        # One that the training was about to remove from the store is not known any more.
        lacking = {
            folder
            for folder in found
            if f"{folder}/{LAST}" not in here and (not here or f"{folder}/{LAST}" in self._known)
        }
        wanted = {
            name: path
            for name, path in stored.items()
            if not _is_of_checkpoint(name) or _folder(name) in lacking
        }
        fetched = self.here / _FETCHED
        shutil.rmtree(fetched, ignore_errors=True)
        fetch_files({fetched / name: path for name, path in wanted.items()}, self._end_at_signal)
        self._sent = dict.fromkeys(stored)
        for name in sorted(wanted, key=_is_last):
            local, is_large = self.here / name, _is_of_checkpoint(name) and not _is_last(name)
            digest = "" if is_large else _digest((fetched / name).read_bytes())
            if _folder(name) in lacking or digest not in self._known.get(name, ()):
                local.parent.mkdir(parents=True, exist_ok=True)
                os.replace(fetched / name, local)
                self._known |= {} if is_large else {name: [digest]}
            elif _digest(content_of(local)) != digest:
                continue  # it is newer here, or was removed
            self._sent[name] = _signature(local)
        alike = {
            _folder(name)
            for name in filter(_is_last, here.keys() & stored.keys())
            if stored[name].read_bytes() == (self.here / name).read_bytes()
        }
        self._sent.update((name, here.get(name)) for name in stored if _folder(name) in alike)

    def _end_at_signal(self) -> None:
        """End the program at a signal, as nothing is trained yet."""
        if self._stop.number:
            raise SystemExit(128 + self._stop.number)

    def _write_record(self) -> None:
        write_whole(self.here / _RECORD, json.dumps(self._known).encode())

    def remove(self) -> None:
        """Remove the local directory; a kill in between leaves nothing to go on from."""
        (self.here / _RECORD).unlink(missing_ok=True)
        shutil.rmtree(self.here, ignore_errors=True)

    def _files(self) -> dict[str, _Signature]:
        """Return the signatures of the local files that belong into the store, but for the log."""
        found: dict[str, _Signature] = {}
        for folder, names, files in os.walk(self.here, onerror=_raise_unless_gone):
            names[:] = [name for name in names if name[0] != "." and UNFINISHED not in name]
            for file in files:
                path = os.path.join(folder, file)
                name = os.path.relpath(path, self.here)
                if not _is_hidden(name) and name != _LOG:
                    with suppress(FileNotFoundError):
                        found[name] = _signature(path)
        return found

    def _work(self) -> None:
        while not self._gives_up.is_set():
            is_last, began = self._ending.is_set(), time.monotonic()
            try:
                self._round()
            except UnsentError as error:  # for good
                self._failure = error
                if not self._gives_up.is_set():
                    warn(str(error))
                return
            except Exception as error:  # of many kinds, from the libraries of the stores
                if self._failure is None:
                    self._away_since = began
                    warn(
                        f"{self.there} cannot be written to ({error}); the run goes on, and "
                        f"what it writes waits in {self.here} until the store is back"
                    )
                self._failure = error
                self._gives_up.wait(_RETRY_SECONDS)
                continue
            if self._failure is not None:
                self._failure = None
                warn(f"{self.there} is back; what has waited is sent")
            if is_last:
                return
            took = time.monotonic() - began
            self._ending.wait(max(_ROUND_SECONDS, _SHARE * took))

    def _round(self) -> None:
        """Send the changes since the last round."""
        here = self._files()
        # Records before each checkpoint are sent ahead of it, and that of the checkpoint after it.
        log = content_of(self.here / _LOG)
        sent = [name for name, signature in self._sent.items() if signature is not None]
        logs = [_until(log, _newest(names)) for names in (sent, here)]
        if any(map(_is_newest, self._sent)) and not any(map(_is_newest, here)):
            raise UnsentError(f"{self.here}: its checkpoints are gone; {self.there} stays as it is")
        changed = [name for name in here if self._sent.get(name) != here[name]]
        changed.sort(key=here.__getitem__)
        gone = [name for name in self._sent if name not in here]
        if not (changed or gone) and logs[-1] == self._sent_log:
            return
        self._forget(gone)
        self._check_wanted()
        files = [name for name in changed if _is_of_checkpoint(name)]
        small: dict[str, bytes] = {}
        # Keep the files for the time of this round, in which the training may remove them.
        shutil.rmtree(self.here / _SENDING, ignore_errors=True)
        try:
            for name in files:
                (self.here / _SENDING / name).parent.mkdir(parents=True, exist_ok=True)
                os.link(self.here / name, self.here / _SENDING / name)
            for name in changed:
                if not _is_of_checkpoint(name):
                    small[name] = (self.here / name).read_bytes()  # events may grow meanwhile
        except FileNotFoundError:  # of a checkpoint that is being removed
            return self._round()
        self._note(small, logs, [name for name in files if _is_last(name)])
        again = {_folder(name) for name in files if _is_last(name) and name in self._sent}
        self._remove([f"{folder}/{LAST}" for folder in again])
        self._remove([n for n in self._sent if n not in here and _folder(n) in again])
        self._remove([n for n in gone if not _is_of_checkpoint(n)])
        for name, content in small.items():
            self._check_wanted()
            self._sent[name] = None
            (self.there / name).write_bytes(content)
            self._sent[name], self._known[name] = here[name], [_digest(content)]
        self._send([name for name in files if not _is_last(name)], here)
        self._send_log(logs[0])
        self._send([name for name in files if _is_last(name)], here)
        self._send_log(logs[1])
        # Orbax removes the files of a checkpoint one by one.
        incomplete = {_folder(name) for name in gone if _is_of_checkpoint(name)}
        incomplete -= {folder for folder in incomplete if f"{folder}/{PARAMETERS_ONLY}" in here}
        self._remove([n for n in self._sent if _is_last(n) and _folder(n) in incomplete])
        self._remove([name for name in gone if name in self._sent])

    def _forget(self, gone: Sequence[str]) -> None:
        """Note removed checkpoints at once, as a start fetches known ones that are not here."""
        if removed := self._known.keys() & filter(_is_last, gone):
            for name in removed:
                del self._known[name]
            self._write_record()

    def _send_log(self, log: bytes | None) -> None:
        if log is not None and log != self._sent_log:
            self._check_wanted()
            (self.there / _LOG).write_bytes(log)
            self._sent_log, known = log, self._known[_LOG]
            self._known[_LOG] = known[known.index(_digest(log)) :]
            self._write_record()

    def _note(
        self, small: Mapping[str, bytes], logs: Sequence[bytes | None], markers: list[str]
    ) -> None:
        """Write down what a round is about to send."""
        contents = [(name, (self.here / _SENDING / name).read_bytes()) for name in markers]
        contents += [*small.items(), *((_LOG, log) for log in logs if log is not None)]
        for name, content in contents:
            before = self._known.get(name, [""])
            self._known[name] = [*before, *{_digest(content)}.difference(before)]
        self._write_record()

    def _send(self, names: list[str], here: dict[str, _Signature]) -> None:
        if names:  # else this would ask the store for the lock, to send nothing
            self._check_wanted()
        self._sent.update(dict.fromkeys(names))
        send_files({self.here / _SENDING / name: self.there / name for name in names})
        self._sent.update((name, here[name]) for name in names)

    def _remove(self, names: list[str]) -> None:
        if names:
            self._check_wanted()
        remove(self.there / name for name in names)
        for name in names:
            del self._sent[name]

    def _check_wanted(self) -> None:
        if self._gives_up.is_set() or lock.is_lost(self.there / lock.LOCK):
            raise UnsentError(
                f"nothing more is sent to {self.there}, in which another process trains now; what "
                f"this one has is in {self.here}"
            )

    def close(self) -> None:
        """Wait until the store has everything; give up once it is unreachable for ten minutes.

        After a signal to stop, give up after a few seconds in any case.

        Raises:
          UnsentError: something could not be sent; it stays on this machine.
        """
        self._ending.set()
        begun = time.monotonic()
        while self._thread.is_alive():
            now, failure = time.monotonic(), self._failure
            latest = max(self._stop.since + _PATIENCE_SECONDS_STOPPED, begun + _LEAST_SECONDS)
            is_late = self._stop.number > 0 and now > latest
            since = max(begun, self._away_since)
            if is_late or (failure is not None and now > since + _PATIENCE_SECONDS):
                self.give_up()
                with suppress(OSError):
                    here = self._files()
                    self._forget([name for name in self._sent if name not in here])
                raise UnsentError(
                    f"{self.there} lacks the end of the run ({failure or 'it is slow'}), which is "
                    f"complete in {self.here}: once the store is back, start the same command "
                    "on this machine, which sends it"
                ) from failure
            self._thread.join(0.05)
        if isinstance(self._failure, UnsentError):
            raise self._failure

    def give_up(self) -> None:
        """Send nothing more, except for a request that is under way."""
        self._gives_up.set()
        self._ending.set()
        self._thread.join(_JOIN_SECONDS)


def _signature(path: str | Path) -> _Signature:
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size, status.st_ino


def _digest(content: bytes | None) -> str:
    """Return a hash of a content; "" if there is none."""
    return "" if content is None else hashlib.sha256(content).hexdigest()


def _raise_unless_gone(error: OSError) -> None:
    """Let a round fail where a directory cannot be read, whose files are not removed."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _newest(names: Iterable[str]) -> int:
    """Return the step of the newest checkpoint to go on from; -1 without any."""
    steps = (name.split("/")[1] for name in names if _is_newest(name))
    return max((int(step) for step in steps if step.isdecimal()), default=-1)


def _until(log: bytes | None, step: int) -> bytes | None:
    """Return the whole lines of a log before the record of a checkpoint later than a step."""
    if log is None:
        return None
    lines = log[: log.rfind(b"\n") + 1].splitlines(keepends=True)
    for number, line in enumerate(lines):
        if b'"checkpoint"' in line:
            with suppress(ValueError, KeyError, TypeError):
                record = json.loads(line)
                if record["of"] == "checkpoint" and record["step"] > step:
                    return b"".join(lines[:number])
    return b"".join(lines)


def _is_hidden(name: str) -> bool:
    """Return whether a file is none of the run's; zarr's `.zarray` is one of a checkpoint."""
    parts = name.split("/")
    return any(part[0] == "." for part in (parts[:2] if _is_of_checkpoint(name) else parts))


def _is_last(name: str) -> bool:
    return name.endswith(f"/{LAST}") and _is_of_checkpoint(name)


def _is_newest(name: str) -> bool:
    """Return whether a file says that there is a checkpoint to go on from."""
    return _is_last(name) and name.startswith(f"{_CHECKPOINTS[0]}/")


def _is_of_checkpoint(name: str) -> bool:
    return name.count("/") > 1 and name.split("/")[0] in _CHECKPOINTS


def _folder(name: str) -> str:
    """Return the directory of the checkpoint of a file, such as checkpoints/4."""
    return "/".join(name.split("/")[:2])
