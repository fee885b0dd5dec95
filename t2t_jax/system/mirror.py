"""A run in a bucket: a local directory that a thread copies to the store, its mirror.

The program trains in the directory as in any other. The thread compares the directory with what it
has sent, and sends the difference in rounds. A round reads the log first and sends it last, so the
store never has a record without the checkpoint that it tells of. In a round:

1. Small files, in the order in which they were written.
2. The files of new checkpoints, and then `_CHECKPOINT_METADATA` of each: a checkpoint in the store
   is complete if it has this file.
3. The log, as it was before the round.
4. Removals; of a checkpoint that file first.

While the store is unreachable, the training goes on and the thread retries. At its start, a run
that was killed goes on from the local directory if the log in the store is the beginning of the
local one. Otherwise the run was removed or went on elsewhere, and its files are fetched.
"""

import errno
import json
import os
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from t2t_jax.errors import UserError, warn
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.system.bucket import BucketPath, fetch_files, remove, send_files
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
_LOG = "log.jsonl"
_SENDING = ".sending"

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
    mirror = Mirror(workdir, mirror_of(workdir, folder))
    mirror.start()
    try:
        yield mirror.here
    except Exception:
        try:
            mirror.close(stop)
        except UnsentError as unsent:
            warn(str(unsent))
        raise
    except BaseException:
        mirror.give_up()
        raise
    mirror.close(stop)
    if not stop.number:
        shutil.rmtree(mirror.here, ignore_errors=True)


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

    def __init__(self, there: BucketPath, here: Path) -> None:
        """Keep the two places; `start` makes them equal."""
        self.there, self.here = there, here
        # The files that may be in the store, by name; None for one that is sent or removed next.
        self._sent: dict[str, _Signature | None] = {}
        self._sent_log: bytes | None = None
        self._ending, self._gives_up = threading.Event(), threading.Event()
        self._failure: Exception | None = None  # of the last round
        self._away_since = 0.0
        self._thread = threading.Thread(target=self._work, daemon=True, name="mirror")

    def start(self) -> None:
        """Make the local directory the newest state of the run, and start to send its changes.

        Raises:
          UserError: the store is unreachable.
        """
        depth = len(self.there.parts)
        stored = {"/".join(path.parts[depth:]): path for path in self.there.objects()}
        stored = {name: path for name, path in stored.items() if not _is_hidden(name)}
        stored_log, log = stored.pop(_LOG, None), self._log()
        self._sent_log = None if stored_log is None else stored_log.read_bytes()
        resumes = log is not None and self._sent_log is not None and log.startswith(self._sent_log)
        if resumes:
            warn(f"goes on from {self.here}, where a training in {self.there} was interrupted")
        else:
            shutil.rmtree(self.here, ignore_errors=True)
        equal, here = self._fetch(stored), self._files()
        self._sent = {name: here.get(name) if name in equal else None for name in stored}
        # A run whose checkpoints have no directory has lost them.
        for place in self.there, self.here:
            (place / _CHECKPOINTS[0]).mkdir(parents=True, exist_ok=True)
        if not resumes and self._sent_log is not None:  # last, as without it nothing is resumed
            write_whole(self.here / _LOG, self._sent_log)
        self._thread.start()

    def _fetch(self, stored: dict[str, BucketPath]) -> set[str]:
        """Fetch what the directory lacks, and return the names of files that are as in the store.

        It is small files of other programs and, for an empty directory, complete checkpoints.
        """
        here, complete = self._files(), set[str]()
        for folder in () if here else _CHECKPOINTS:
            complete.update(f"{folder}/{name}" for name in complete_in(self.there / folder))
        alike = {
            _folder(name)
            for name in filter(_is_last, here.keys() & stored.keys())
            if stored[name].read_bytes() == (self.here / name).read_bytes()
        }
        fetched = {
            name: path
            for name, path in stored.items()
            if _folder(name) in complete
            or (
                not _is_of_checkpoint(name)
                and (name not in here or path.stat().st_mtime_ns > here[name][0])
            )
        }
        fetch_files({self.here / name: path for name, path in fetched.items()})
        return {name for name in stored if name in fetched or _folder(name) in alike}

    def _log(self) -> bytes | None:
        try:
            log = (self.here / _LOG).read_bytes()
        except FileNotFoundError:
            return None
        return log[: log.rfind(b"\n") + 1]

    def _files(self) -> dict[str, _Signature]:
        """Return the signatures of the local files that belong into the store, but for the log."""
        found: dict[str, _Signature] = {}
        for folder, names, files in os.walk(self.here):
            names[:] = [name for name in names if name[0] != "." and UNFINISHED not in name]
            for file in files:
                path = os.path.join(folder, file)
                name = os.path.relpath(path, self.here)
                if not _is_hidden(name) and name != _LOG:
                    with suppress(FileNotFoundError):
                        status = os.stat(path)
                        found[name] = status.st_mtime_ns, status.st_size, status.st_ino
        return found

    def _work(self) -> None:
        while not self._gives_up.is_set():
            is_last, began = self._ending.is_set(), time.monotonic()
            try:
                self._round()
            except UnsentError:
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
        log, here = self._log(), self._files()
        if any(map(_is_newest, self._sent)) and not any(map(_is_newest, here)):
            raise FileNotFoundError(errno.ENOENT, "its checkpoints are gone", str(self.here))
        changed = [name for name in here if self._sent.get(name) != here[name]]
        changed.sort(key=here.__getitem__)
        files = [name for name in changed if _is_of_checkpoint(name)]
        # Keep the files for the time of this round, in which the training may remove them.
        shutil.rmtree(self.here / _SENDING, ignore_errors=True)
        try:
            for name in files:
                (self.here / _SENDING / name).parent.mkdir(parents=True, exist_ok=True)
                os.link(self.here / name, self.here / _SENDING / name)
        except FileNotFoundError:  # of a checkpoint that is being removed
            return self._round()
        again = {_folder(name) for name in files if _is_last(name) and name in self._sent}
        self._remove([f"{folder}/{LAST}" for folder in again])
        self._remove([n for n in self._sent if n not in here and _folder(n) in again])
        for name in changed:
            if not _is_of_checkpoint(name):
                self._check_wanted()
                self._sent[name] = None
                # It may grow meanwhile, as TensorBoard's events do.
                (self.there / name).write_bytes((self.here / name).read_bytes())
                self._sent[name] = here[name]
        self._send([name for name in files if not _is_last(name)], here)
        self._send([name for name in files if _is_last(name)], here)
        self._check_wanted()
        if log is not None and log != self._sent_log:
            (self.there / _LOG).write_bytes(log)
            self._sent_log = log
        gone = [name for name in self._sent if name not in here]
        # Orbax removes the files of a checkpoint one by one.
        incomplete = {_folder(name) for name in gone if _is_of_checkpoint(name)}
        incomplete -= {folder for folder in incomplete if f"{folder}/{PARAMETERS_ONLY}" in here}
        self._remove([n for n in self._sent if _is_last(n) and _folder(n) in incomplete])
        self._remove([name for name in gone if name in self._sent])

    def _send(self, names: list[str], here: dict[str, _Signature]) -> None:
        self._check_wanted()
        self._sent.update(dict.fromkeys(names))
        send_files({self.here / _SENDING / name: self.there / name for name in names})
        self._sent.update((name, here[name]) for name in names)

    def _remove(self, names: list[str]) -> None:
        self._check_wanted()
        remove(self.there / name for name in names)
        for name in names:
            del self._sent[name]

    def _check_wanted(self) -> None:
        if self._gives_up.is_set():
            raise UnsentError(f"nothing more is sent to {self.there}")

    def close(self, stop: StopSignal) -> None:
        """Wait until the store has everything; give up once it is unreachable for ten minutes.

        After a signal to stop, give up after a few seconds in any case.

        Raises:
          UnsentError: something could not be sent; it stays on this machine.
        """
        self._ending.set()
        begun = time.monotonic()
        while True:
            self._thread.join(0.05)
            if not self._thread.is_alive():
                return
            now, failure = time.monotonic(), self._failure
            latest = max(stop.since + _PATIENCE_SECONDS_STOPPED, begun + _LEAST_SECONDS)
            is_late = stop.number > 0 and now > latest
            since = max(begun, self._away_since)
            if is_late or (failure is not None and now > since + _PATIENCE_SECONDS):
                self.give_up()
                raise UnsentError(
                    f"{self.there} lacks the end of the run ({failure or 'it is slow'}), which is "
                    f"complete in {self.here}: once the store is back, start the same command "
                    "on this machine, which sends it"
                ) from failure

    def give_up(self) -> None:
        """Send nothing more, except for a request that is under way."""
        self._gives_up.set()
        self._ending.set()
        self._thread.join(_JOIN_SECONDS)


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
