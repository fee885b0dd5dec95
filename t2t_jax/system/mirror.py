"""Train in a local directory (the mirror), while a thread uploads its changes to a bucket.

The thread uploads changes of the local directory in rounds. At any time, the store has every
checkpoint that its log records, and the log up to every checkpoint. Steps of a round:

1. Remove deleted small files, and upload new small files in the order of writing.
2. Upload the files of new checkpoints.
3. Upload the log up to the records of these checkpoints.
4. Upload `_CHECKPOINT_METADATA` of each checkpoint, which marks it as complete.
5. Upload the log with the records of these checkpoints, but not of later ones.
6. Remove deleted checkpoints, `_CHECKPOINT_METADATA` first.

If the store is unreachable, training continues and the thread retries. Each round first writes the
hashes of stored and pending files to `.mirror.json`. A killed run resumes from the local directory
if this file has the hashes of the stored log and config. Otherwise, it downloads the stored files.
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
"""File of a checkpoint that is uploaded last and removed first."""
COMMITTED = "commit_success.txt"
"""File that Orbax writes last in a checkpoint that it writes directly to a bucket."""
PARAMETERS_ONLY = "PARAMETERS_ONLY"
"""File that marks a checkpoint without optimizer state."""
UNFINISHED = ".orbax-checkpoint-tmp"
"""Suffix in the name of an unfinished checkpoint of Orbax."""

_CHECKPOINTS = "checkpoints", "best", "damaged"
_LOG, _CONFIG = "log.jsonl", "config.json"
_RECORD, _SENDING, _FETCHED = ".mirror.json", ".sending", ".fetched"

_ROUND_SECONDS = 1.0
_SHARE = 10  # after a round of 3 s, pause 30 s, because growing files are uploaded whole
_RETRY_SECONDS = 5.0
_PATIENCE_SECONDS = 600.0  # at the end of a run
_PATIENCE_SECONDS_STOPPED = 12.0  # exit within 20 s, as schedulers kill after 30 s
_LEAST_SECONDS = 5.0  # minimum, even if the checkpoint took long to write
_JOIN_SECONDS = 1.0

_Signature = tuple[int, int, int]


class UnsentError(UserError):
    """Error: the last files of a run are only on this machine, not in the store."""


@contextmanager
def mirrored(workdir: Path, stop: StopSignal, folder: Path | None = None) -> Iterator[Path]:
    """Yield a local directory to train in, then wait until the bucket has its files.

    The caller must lock the run first. If `workdir` is not in a bucket, yield `workdir`.

    Args:
      stop: after this signal, wait only briefly.
      folder: the parent of all mirrors. None means the user's cache directory.

    Raises:
      UserError: the bucket is unreachable.
      UnsentError: at the end, the bucket lacks files.
    """
    if not isinstance(workdir, BucketPath):
        yield workdir
        return
    mirror = Mirror(workdir, mirror_of(workdir, folder), stop)
    mirror.start()
    try:
        yield mirror.local
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
    """Return the local directory, below `folder`, that mirrors a run in a bucket."""
    root = user_folder("cache") / "mirrors" if folder is None else folder
    return root.absolute() / str(workdir).replace("://", "/", 1)


def complete_in(directory: BucketPath) -> list[str]:
    """List the names of the complete checkpoints in a directory of a bucket."""
    files = defaultdict(list)
    for path in directory.objects():
        folder, *names = path.parts[len(directory.parts) :]
        files[folder].append("/".join(names))
    return [folder for folder, names in files.items() if _is_complete(directory / folder, names)]


def _is_complete(checkpoint: BucketPath, names: Sequence[str]) -> bool:
    """Return whether a checkpoint with these file names is complete.

    In a Google bucket, Orbax writes `_CHECKPOINT_METADATA` first, without commit time, and
    `commit_success.txt` last.
    """
    if COMMITTED in names or LAST not in names or checkpoint.parts[0] != "gs:":
        return COMMITTED in names or LAST in names
    with suppress(ValueError, AttributeError, FileNotFoundError):
        record = json.loads((checkpoint / LAST).read_bytes())
        return record.get("commit_timestamp_nsecs", 0) is not None
    return False


class Mirror:
    """A local directory, and a thread that uploads its changes to a bucket."""

    def __init__(self, remote: BucketPath, local: Path, stop: StopSignal) -> None:
        """Store both directories, without synchronizing them; see `start`."""
        self.remote, self.local, self._stop = remote, local, stop
        # Signatures of uploaded files by name; None while a file is being uploaded or removed.
        self._sent: dict[str, _Signature | None] = {}
        self._sent_log: bytes | None = None
        # Hashes of the contents that the store may have, by name, newest last.
        self._hashes: dict[str, list[str]] = {}
        self._ending, self._gives_up = threading.Event(), threading.Event()
        self._failure: Exception | None = None  # of the last round
        self._failing_since = 0.0
        self._thread = threading.Thread(target=self._work, daemon=True, name="mirror")

    def start(self) -> None:
        """Update the local directory, and start to upload its changes.

        Raises:
          UserError: the store is unreachable.
          SystemExit: a signal arrived during the download.
        """
        depth = len(self.remote.parts)
        remote = {"/".join(path.parts[depth:]): path for path in self.remote.objects()}
        remote = {name: path for name, path in remote.items() if not _is_hidden(name)}
        contents = {name: content_of(self.remote / name) for name in (_LOG, _CONFIG)}
        self._sent_log = contents[_LOG]
        remote.pop(_LOG, None)
        with suppress(FileNotFoundError, ValueError):
            self._hashes = dict(json.loads((self.local / _RECORD).read_bytes()))
        resumes = bool(self._hashes) and all(
            _digest(content) in self._hashes.get(name, [""]) for name, content in contents.items()
        )
        if resumes:
            warn(f"resumes from {self.local}, where training of {self.remote} was interrupted")
        else:
            self.remove()
            self._hashes = {_LOG: [_digest(self._sent_log)]}
        self._fetch(remote, self._files() if resumes else {})
        # A run without a checkpoints directory would count as damaged.
        for directory in self.remote, self.local:
            (directory / _CHECKPOINTS[0]).mkdir(parents=True, exist_ok=True)
        if not resumes and self._sent_log is not None:
            write_whole(self.local / _LOG, self._sent_log)
        self._write_record()  # last, as resuming requires this file
        self._thread.start()

    def _fetch(self, remote: Mapping[str, BucketPath], local: Mapping[str, _Signature]) -> None:
        """Download the complete checkpoints that `local` lacks, and changed files of `remote`."""
        complete = (f"{of}/{name}" for of in _CHECKPOINTS for name in complete_in(self.remote / of))
        # Skip a checkpoint that the killed run had removed locally: its name is not in `_hashes`.
        missing_folders = {
            folder
            for folder in complete
            if f"{folder}/{LAST}" not in local and (not local or f"{folder}/{LAST}" in self._hashes)
        }
        downloads = {
            name: path
            for name, path in remote.items()
            if not _in_checkpoint(name) or _folder(name) in missing_folders
        }
        staging = self.local / _FETCHED
        shutil.rmtree(staging, ignore_errors=True)
        fetch_files({staging / name: path for name, path in downloads.items()}, self._end_at_signal)
        self._sent = dict.fromkeys(remote)
        for name in sorted(downloads, key=_is_last):
            path, is_large = self.local / name, _in_checkpoint(name) and not _is_last(name)
            digest = "" if is_large else _digest((staging / name).read_bytes())
            if _folder(name) in missing_folders or digest not in self._hashes.get(name, ()):
                path.parent.mkdir(parents=True, exist_ok=True)
                os.replace(staging / name, path)
                self._hashes |= {} if is_large else {name: [digest]}
            elif _digest(content_of(path)) != digest:
                continue  # the local file is newer, or was removed
            self._sent[name] = _signature(path)
        unchanged = {
            _folder(name)
            for name in filter(_is_last, local.keys() & remote.keys())
            if remote[name].read_bytes() == (self.local / name).read_bytes()
        }
        self._sent.update((name, local.get(name)) for name in remote if _folder(name) in unchanged)

    def _end_at_signal(self) -> None:
        if self._stop.number:
            raise SystemExit(128 + self._stop.number)

    def _write_record(self) -> None:
        write_whole(self.local / _RECORD, json.dumps(self._hashes).encode())

    def remove(self) -> None:
        """Remove the record, so that no run resumes, and then the local directory."""
        (self.local / _RECORD).unlink(missing_ok=True)
        shutil.rmtree(self.local, ignore_errors=True)

    def _files(self) -> dict[str, _Signature]:
        """Map the local files to upload, except the log, to their time, size and inode."""
        signatures: dict[str, _Signature] = {}
        for folder, folders, file_names in os.walk(self.local, onerror=_raise_unless_gone):
            folders[:] = [name for name in folders if name[0] != "." and UNFINISHED not in name]
            for file_name in file_names:
                path = os.path.join(folder, file_name)
                name = os.path.relpath(path, self.local)
                if not _is_hidden(name) and name != _LOG:
                    with suppress(FileNotFoundError):
                        signatures[name] = _signature(path)
        return signatures

    def _work(self) -> None:
        while not self._gives_up.is_set():
            is_last, start_time = self._ending.is_set(), time.monotonic()
            try:
                self._round()
            except UnsentError as error:  # permanent
                self._failure = error
                if not self._gives_up.is_set():
                    warn(str(error))
                return
            except Exception as error:  # each store library raises its own classes
                if self._failure is None:
                    self._failing_since = start_time
                    warn(
                        f"cannot write to {self.remote} ({error}); training continues, and files "
                        f"stay in {self.local} until the store is reachable"
                    )
                self._failure = error
                self._gives_up.wait(_RETRY_SECONDS)
                continue
            if self._failure is not None:
                self._failure = None
                warn(f"{self.remote} is reachable again; all pending files were uploaded")
            if is_last:
                return
            seconds = time.monotonic() - start_time
            self._ending.wait(max(_ROUND_SECONDS, _SHARE * seconds))

    def _round(self) -> None:
        """Upload all local changes since the last round to the bucket."""
        local = self._files()
        # Earlier records are uploaded before a checkpoint, and its own record after it.
        log = content_of(self.local / _LOG)
        sent_names = [name for name, signature in self._sent.items() if signature is not None]
        logs = [_cut_log(log, _newest(names)) for names in (sent_names, local)]
        if any(map(_is_newest, self._sent)) and not any(map(_is_newest, local)):
            raise UnsentError(f"{self.local} has lost its checkpoints; {self.remote} is unchanged")
        changed_names = [name for name in local if self._sent.get(name) != local[name]]
        changed_names.sort(key=local.__getitem__)
        removed_names = [name for name in self._sent if name not in local]
        if not (changed_names or removed_names) and logs[-1] == self._sent_log:
            return
        self._forget(removed_names)
        self._check_owner()
        files = [name for name in changed_names if _in_checkpoint(name)]
        contents: dict[str, bytes] = {}
        # Hard links keep the files until the end of the round, as training may remove them.
        shutil.rmtree(self.local / _SENDING, ignore_errors=True)
        try:
            for name in files:
                (self.local / _SENDING / name).parent.mkdir(parents=True, exist_ok=True)
                os.link(self.local / name, self.local / _SENDING / name)
            for name in changed_names:
                if not _in_checkpoint(name):
                    # Read the content now, as event files may grow meanwhile.
                    contents[name] = (self.local / name).read_bytes()
        except FileNotFoundError:  # of a checkpoint that is being removed
            return self._round()
        self._note(contents, logs, [name for name in files if _is_last(name)])
        rewritten = {_folder(name) for name in files if _is_last(name) and name in self._sent}
        self._remove([f"{folder}/{LAST}" for folder in rewritten])
        self._remove([n for n in self._sent if n not in local and _folder(n) in rewritten])
        self._remove([n for n in removed_names if not _in_checkpoint(n)])
        for name, content in contents.items():
            self._check_owner()
            self._sent[name] = None
            (self.remote / name).write_bytes(content)
            self._sent[name], self._hashes[name] = local[name], [_digest(content)]
        self._send([name for name in files if not _is_last(name)], local)
        self._send_log(logs[0])
        self._send([name for name in files if _is_last(name)], local)
        self._send_log(logs[1])
        # Orbax removes the files of a checkpoint one by one.
        incomplete = {_folder(name) for name in removed_names if _in_checkpoint(name)}
        incomplete -= {folder for folder in incomplete if f"{folder}/{PARAMETERS_ONLY}" in local}
        self._remove([n for n in self._sent if _is_last(n) and _folder(n) in incomplete])
        self._remove([name for name in removed_names if name in self._sent])

    def _forget(self, names: Sequence[str]) -> None:
        """Delete the hashes of the checkpoints among some deleted files."""
        # Otherwise `start` would download these checkpoints again.
        if markers := self._hashes.keys() & filter(_is_last, names):
            for name in markers:
                del self._hashes[name]
            self._write_record()

    def _send_log(self, log: bytes | None) -> None:
        if log is not None and log != self._sent_log:
            self._check_owner()
            (self.remote / _LOG).write_bytes(log)
            self._sent_log, hashes = log, self._hashes[_LOG]
            self._hashes[_LOG] = hashes[hashes.index(_digest(log)) :]
            self._write_record()

    def _note(
        self, small_contents: Mapping[str, bytes], logs: Sequence[bytes | None], markers: list[str]
    ) -> None:
        """Save the hashes of small files, logs and checkpoint markers before a round uploads them.

        Args:
              markers: names of files that complete checkpoints.
        """
        contents = [(name, (self.local / _SENDING / name).read_bytes()) for name in markers]
        contents += [*small_contents.items(), *((_LOG, log) for log in logs if log is not None)]
        for name, content in contents:
            hashes = self._hashes.get(name, [""])
            self._hashes[name] = [*hashes, *{_digest(content)}.difference(hashes)]
        self._write_record()

    def _send(self, names: list[str], local: dict[str, _Signature]) -> None:
        if names:  # avoid reading the lock if there is nothing to upload
            self._check_owner()
        self._sent.update(dict.fromkeys(names))
        send_files({self.local / _SENDING / name: self.remote / name for name in names})
        self._sent.update((name, local[name]) for name in names)

    def _remove(self, names: list[str]) -> None:
        if names:
            self._check_owner()
        remove(self.remote / name for name in names)
        for name in names:
            del self._sent[name]

    def _check_owner(self) -> None:
        if self._gives_up.is_set() or lock.is_lost(self.remote / lock.LOCK):
            raise UnsentError(
                f"uploads to {self.remote} stop, because another process trains in it now; this "
                f"process keeps its files in {self.local}"
            )

    def close(self) -> None:
        """Wait until all files are uploaded.

        Raises:
          UnsentError: some files are only on this machine, because the store was unreachable for
            ten minutes, or unreachable or too slow for a few seconds after a stop signal.
        """
        self._ending.set()
        start_time = time.monotonic()
        while self._thread.is_alive():
            now, failure = time.monotonic(), self._failure
            latest = max(self._stop.since + _PATIENCE_SECONDS_STOPPED, start_time + _LEAST_SECONDS)
            is_late = self._stop.number > 0 and now > latest
            since = max(start_time, self._failing_since)
            if is_late or (failure is not None and now > since + _PATIENCE_SECONDS):
                self.give_up()
                with suppress(OSError):
                    local = self._files()
                    self._forget([name for name in self._sent if name not in local])
                raise UnsentError(
                    f"{self.remote} lacks the end of the run ({failure or 'it is slow'}), which is "
                    f"complete in {self.local}; once the store is reachable, run the same command "
                    "on this machine to upload it"
                ) from failure
            self._thread.join(0.05)
        if isinstance(self._failure, UnsentError):
            raise self._failure

    def give_up(self) -> None:
        """Stop uploading after the current request."""
        self._gives_up.set()
        self._ending.set()
        self._thread.join(_JOIN_SECONDS)


def _signature(path: str | Path) -> _Signature:
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size, status.st_ino


def _digest(content: bytes | None) -> str:
    return "" if content is None else hashlib.sha256(content).hexdigest()


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _newest(names: Iterable[str]) -> int:
    """Return the step of the newest complete checkpoint among file names; -1 if there is none."""
    steps = (name.split("/")[1] for name in names if _is_newest(name))
    return max((int(step) for step in steps if step.isdecimal()), default=-1)


def _cut_log(log: bytes | None, step: int) -> bytes | None:
    """Return the lines of a log before its first record of a checkpoint later than `step`."""
    if log is None:
        return None
    lines = log[: log.rfind(b"\n") + 1].splitlines(keepends=True)
    for index, line in enumerate(lines):
        if b'"checkpoint"' in line:
            with suppress(ValueError, KeyError, TypeError):
                record = json.loads(line)
                if record["of"] == "checkpoint" and record["step"] > step:
                    return b"".join(lines[:index])
    return b"".join(lines)


def _is_hidden(name: str) -> bool:
    """Return whether a component of a path begins with ".".

    In a checkpoint, only the first two components count.
    """
    # Zarr's `.zarray` belongs to a checkpoint.
    parts = name.split("/")
    return any(part[0] == "." for part in (parts[:2] if _in_checkpoint(name) else parts))


def _is_last(name: str) -> bool:
    return name.endswith(f"/{LAST}") and _in_checkpoint(name)


def _is_newest(name: str) -> bool:
    return _is_last(name) and name.startswith(f"{_CHECKPOINTS[0]}/")


def _in_checkpoint(name: str) -> bool:
    return name.count("/") > 1 and name.split("/")[0] in _CHECKPOINTS


def _folder(name: str) -> str:
    return "/".join(name.split("/")[:2])
