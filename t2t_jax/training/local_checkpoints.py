"""Checkpoints on disks of the hosts, which are written more often than those in the run directory.

A directory that hosts share, or a bucket, may take minutes for a large state, which a disk of the
host takes in seconds. So each process also writes there, every `checkpoint.local_every_steps`
steps, in the format that checkpoints have in buckets, and all parts of the arrays that its devices
have: also those that other processes have, so that a copy is left if a host is lost.

    LOCAL_DIR/RUN/START/PROCESS/STEP     RUN is the name of the run with a hash of its path

Only the start of a run reads them. The processes tell each other what each finds on its host, and
the newest step of which all parts are there, wherever they are, is copied to the other checkpoints
of the run. From there it is restored, on any number of processes.
"""

import hashlib
import json
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from t2t_jax.config import Config
from t2t_jax.errors import UserError, in_one_line, warn
from t2t_jax.parallel.processes import agree, is_main, of_main
from t2t_jax.system.bucket import BucketPath, send_files
from t2t_jax.system.quiet import orbax_kept_quiet
from t2t_jax.training.bucket_manager import LAST, of_one_process
from t2t_jax.training.chunks import all_chunks, is_chunk
from t2t_jax.training.origin import Identity, check_origin
from t2t_jax.training.storage import (
    UNFINISHED,
    open_alone,
    reading_checkpoints,
    reason_of,
    restore,
    steps_in,
)
from t2t_jax.workdir import CHECKPOINTS, log_file

_KEPT = 2


def is_due_locally(config: Config, step: int) -> bool:
    """Return whether the config asks for a checkpoint on the hosts' own disks after a step."""
    every_steps = config.checkpoint.local_every_steps
    return every_steps is not None and step % every_steps == 0


class _Found(NamedTuple):
    """A checkpoint on this host, of one process of an earlier start of the run."""

    place: Path
    step: int
    tag: int
    """A number that parts of the same checkpoint share: the sums over its arrays and the borders of
    their parts are in it."""
    chunks: list[str]
    """The files that the whole checkpoint has for values, of which some are here."""

    @classmethod
    def read(cls, place: Path, identity: Identity) -> "_Found":
        """Describe a checkpoint of this run.

        Raises:
          UserError: it is damaged, or of another run.
        """
        step = int(place.name)
        with reading_checkpoints(place.parent) as reader:
            stored = restore(reader, place.parent, step, origin=ocp.args.JsonRestore())["origin"]
        origin, chunks = check_origin(stored, place, identity), all_chunks(place)
        digest = hashlib.sha256(json.dumps([origin["sums"], chunks], sort_keys=True).encode())
        return cls(place, step, int.from_bytes(digest.digest()[:4]) >> 1, chunks)

    def has(self, chunk: str) -> bool:
        """Return whether a file is here."""
        return (self.place / chunk).is_file()


class LocalCheckpoints:
    """The checkpoints that this process writes on a disk of its host."""

    def __init__(self, workdir: Path, local_dir: str) -> None:
        """Find what earlier starts of the run have left; all processes do so together."""
        path = str(workdir.absolute())
        name = f"{workdir.name}-{hashlib.sha256(path.encode()).hexdigest()[:8]}"
        self._workdir, self._root = workdir, Path(local_dir).expanduser().absolute() / name
        self._before: list[Path] = []  # the directories of earlier starts
        with suppress(OSError):
            self._before = [*self._root.iterdir()]
        start = of_main(secrets.randbelow(2**31))
        self._place = self._root / str(start) / str(jax.process_index())
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="local checkpoint")
        self._written: Future[None] | None = None
        self._newest, self._has_failed = -1, False

    def promote(self, identity: Identity, newest: int | None) -> None:
        """Copy the newest whole step to the checkpoints of the run, if it is newer than these.

        All processes do so together. Nothing is copied to a run that has no log, as a run that was
        removed and begun again.

        Args:
          newest: the step of the newest checkpoint of the run, as process 0 sees it; None if there
            is none.
        """
        if not of_main(int(is_main() and log_file(self._workdir).is_file())):
            self._remove_earlier()
        newest = of_main(-1 if newest is None else newest)
        found = [*_on_this_host(self._before, newest, identity)]
        while (step := agree(max((one.step for one in found), default=-1))) >= 0:
            tag = agree(max((one.tag for one in found if one.step == step), default=-1))
            parts = [one for one in found if (one.step, one.tag) == (step, tag)]
            if _promote(parts, self._workdir / CHECKPOINTS / str(step)):
                return
            found = [one for one in found if one not in parts]

    def save(self, step: int, args: ocp.args.Composite) -> None:
        """Begin to write a checkpoint, once the one before is written.

        If it cannot be written, a warning says so once.
        """
        self.wait()
        with self._failing_once(), ExitStack() as failed:
            self._place.mkdir(parents=True, exist_ok=True)
            manager = failed.enter_context(
                closing(open_alone(self._place, True, also_of_others=True))
            )
            manager.save(step, args=of_one_process(args), force=True)
            failed.pop_all()
            self._written = self._writer.submit(self._finish, manager)

    @orbax_kept_quiet()
    def _finish(self, manager: ocp.CheckpointManager) -> None:
        with self._failing_once():
            with closing(manager):
                manager.wait_until_finished()
            steps = steps_in(self._place)
            self._newest = steps[-1]
            for step in steps[:-_KEPT]:
                # A rest of it is not mistaken for a checkpoint.
                rest = (self._place / str(step)).rename(self._place / f"{step}{UNFINISHED}")
                shutil.rmtree(rest)
            self._remove_earlier()

    @contextmanager
    def _failing_once(self) -> Iterator[None]:
        try:
            with orbax_kept_quiet():
                yield
        except Exception as error:  # of many kinds
            if not self._has_failed:
                warn(
                    f"checkpoint.local_dir: {self._place} cannot be written to "
                    f"({reason_of(error)}); the run goes on without checkpoints there"
                )
            self._has_failed = True
            # Python would complain, whenever it collects them, of writes that Orbax has left.
            unfinished = "coroutine 'async_serialize_from_host"
            warnings.filterwarnings("ignore", unfinished, RuntimeWarning)
            for rest in self._place.glob(f"*{UNFINISHED}*"):
                shutil.rmtree(rest, ignore_errors=True)

    def _remove_earlier(self) -> None:
        for place in self._before:
            shutil.rmtree(place, ignore_errors=True)
        self._before = []

    def wait(self) -> None:
        """Wait until the checkpoint that is being written is on the disk, or has failed."""
        if self._written is not None:
            self._written.result()
            self._written = None

    def close(self, newest: int | None) -> None:
        """Remove the checkpoints, unless one is newer than the newest of the run, which is given.

        Several processes leave the directories of the run to the one that ends last.
        """
        self.wait()
        self._writer.shutdown()
        if newest is not None and newest >= self._newest:
            self._remove_earlier()
            shutil.rmtree(self._place, ignore_errors=True)
            for folder in (self._place.parent, self._root):
                with suppress(OSError):  # another process has its checkpoints there
                    folder.rmdir()


def _on_this_host(starts: Iterable[Path], newest: int, identity: Identity) -> Iterator[_Found]:
    """Yield the checkpoints of this host that are of this run, and newer than a step."""
    places: list[Path] = []
    with suppress(OSError):  # the disk is away
        places = [place for start in starts for place in start.glob("*/*")]
    for place in places:
        if place.name.isdecimal() and int(place.name) > newest:
            try:
                yield _Found.read(place, identity)
            except (OSError, LookupError, ValueError) as error:
                warn(f"{in_one_line(error)}; it is not used")


def _promote(parts: Sequence[_Found], place: Path) -> bool:
    """Copy a checkpoint to the others of the run if all processes together have the whole of it.

    Args:
      parts: what this host has of it.
      place: its place in the run directory.

    Returns:
      Whether it is there now.
    """
    chunks = parts[0].chunks if parts else []
    here = np.zeros(agree(len(chunks)), np.uint8)
    for number, chunk in enumerate(chunks):
        here[number] = any(part.has(chunk) for part in parts)
    has = np.reshape(multihost_utils.process_allgather(here), (-1, here.size)).astype(bool)
    lacking = int(here.size - has.any(axis=0).sum())
    if lacking:
        if is_main():
            warn(
                f"step {place.name} in checkpoint.local_dir is not used, as no host has "
                f"{lacking} of its {here.size} parts"
            )
        return False
    process = jax.process_index()
    holders = [np.flatnonzero(each) for each in has.T]
    own = {c for n, c in enumerate(chunks) if holders[n][n % len(holders[n])] == process}
    leads = process == min(int(each[0]) for each in holders)
    target = place
    if not isinstance(place, BucketPath):
        target = place.with_name(f"{place.name}{UNFINISHED}")
    source = parts[0].place if leads else None
    if _all_do(partial(_copy, parts, own, target, leads)) and (
        _all_do(partial(_commit, source, target, place))
    ):
        if is_main():
            warn(f"step {place.name}, which the hosts had in checkpoint.local_dir, is now {place}")
        return True
    if is_main():
        with suppress(OSError, UserError):
            _remove(target)
    agree(0)  # until it is done
    return False


def _remove(place: Path) -> None:
    if isinstance(place, BucketPath):
        place.remove_tree()
    else:
        shutil.rmtree(place)


def _copy(parts: Sequence[_Found], chunks: set[str], target: Path, leads: bool) -> None:
    """Copy some files for values, and from one process all others but the last one."""
    for part in parts:
        files = [part.place / chunk for chunk in chunks if part.has(chunk)]
        chunks = {chunk for chunk in chunks if not part.has(chunk)}
        if leads and part is parts[0]:
            rest = (path for path in part.place.rglob("*") if path.is_file())
            files += [path for path in rest if not is_chunk(path) and path.name != LAST]
        if isinstance(target, BucketPath):
            send_files(files, part.place, target)
            continue
        for path in files:
            copy = target / path.relative_to(part.place)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)


def _commit(source: Path | None, target: Path, place: Path) -> None:
    """Make a checkpoint whole whose files are all there; one process does so, from its source."""
    if source is None:
        return
    if isinstance(target, BucketPath):
        (target / LAST).send(source / LAST)
    else:
        shutil.copyfile(source / LAST, target / LAST)
        target.rename(place)


def _all_do(work: Callable[[], None]) -> bool:
    """Do work in each process, and return whether all have succeeded; one that has not warns."""
    try:
        work()
        failed = 0
    except (OSError, UserError) as error:
        warn(f"a checkpoint in checkpoint.local_dir cannot be copied ({error}); it is not used")
        failed = 1
    return not agree(failed)
