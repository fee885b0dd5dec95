"""Publishing a run: its small form with a model card, in a directory, in a bucket or on the hub."""

import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from t2t_jax.config import MeshConfig
from t2t_jax.errors import UserError
from t2t_jax.extras.interchange import run as small_form
from t2t_jax.extras.interchange.formats import check_written
from t2t_jax.extras.interchange.portable import portable_model
from t2t_jax.extras.interchange.publishing.card import check_licence, licence_of, model_card
from t2t_jax.parallel.processes import check_free
from t2t_jax.system import atomic_file, bucket, opening, sums
from t2t_jax.system.hub import NEEDED_FILES, RUN_FILES, STATE_FILES, Address, address, reaching
from t2t_jax.training.storage import steps_of_run
from t2t_jax.workdir import BEST, CARD, CHECKPOINTS, CONFIG, PARAMETERS, log_file, read_config


@dataclass(frozen=True)
class Publication:
    """A run to be published, and how."""

    workdir: str
    """The name of the run, as `opened` takes it."""
    destination: str
    """`hf://NAME/MODEL`, a place in a bucket, or a directory."""
    licence: str | None = None
    """The licence; None is that of a run that was published before."""
    average: int | None = None
    """The number of checkpoints to average, as `t2t_jax.load` takes it."""
    step: int | Literal["best"] | None = None
    """The step of the last checkpoint, as `t2t_jax.load` takes it."""
    parallel: MeshConfig | None = None
    """The mesh to load the parameters onto."""
    dtype: str | None = None
    """The dtype of the parameters, "float32" or "bfloat16"; None is float32."""
    with_state: bool = False
    """Whether to publish what a training goes on from, too."""
    private: bool = False
    """Whether a new model on the hub is private."""
    revision: str | None = None
    """The branch of the hub; None is main."""

    @property
    def changes_parameters(self) -> bool:
        """Whether the parameters differ from those that the run is scored with, in float32."""
        return (self.average, self.step, self.dtype) != (None, None, None)


def publish(asked: Publication, dry_run: Path | None = None) -> str:
    """Publish a run: all of it, or nothing.

    A run that was published before is copied as it is, with its card, if no licence is given.

    Args:
      dry_run: a directory to write everything into, in place of the destination.

    Returns:
      The name by which the published run is opened.

    Raises:
      UserError: the run cannot be loaded, or the destination not be written to.
    """
    if asked.with_state and asked.changes_parameters:
        raise UserError(
            "--with-state publishes the run as it is; leave --average, --step and --dtype out, or "
            "the state"
        )
    check_written("run", asked.dtype)
    target = _target(asked)
    source = opening.opened(asked.workdir, with_state=asked.with_state)
    licence = _licence(asked, source)
    written = dry_run or target
    if isinstance(written, Address | bucket.BucketPath):
        with atomic_file.removed_at_end(Path(tempfile.mkdtemp(prefix="t2t_jax-"))) as place:
            _fill(asked, source, licence, place)
            if isinstance(written, Address):
                return _upload(place, written, asked.private)
            bucket.send_tree(place, written, CONFIG)
    else:
        opening.check_directory_name(written)
        with atomic_file.writing_directory(written) as place:
            _fill(asked, source, licence, place)
    return str(written)


def _target(asked: Publication) -> Address | Path:
    """Return where to publish; refuse an existing target, and flags that do not apply to it."""
    if target := address(asked.destination):
        if target.revision:
            raise UserError(f"{target} is only read; name the branch to write to by --revision")
        return target._replace(revision=asked.revision)
    for flag in ("private", "revision"):
        if getattr(asked, flag):
            raise UserError(f"--{flag} is for hf://NAME/MODEL, not for {asked.destination}")
    place = bucket.as_path(asked.destination)
    if isinstance(place, bucket.BucketPath) and (place / CONFIG).exists():
        raise UserError(f"{place} exists; choose another place, or remove that one first")
    return place


def _licence(asked: Publication, source: Path) -> str | None:
    """Return the licence of a new card, or None if the run already has a card."""
    card = source / CARD
    read_config(source)  # which refuses what is no run
    is_published = (source / PARAMETERS).is_file() and card.is_file()
    if asked.licence is None and is_published and licence_of(card.read_text("utf-8", "replace")):
        return None
    return check_licence(asked.licence)


def _fill(asked: Publication, source: Path, licence: str | None, place: Path) -> None:
    """Write all files to publish into an empty directory."""
    if asked.with_state:
        check_free(source)
        _copy_state(source, place)
    if licence is None:
        if asked.changes_parameters:
            raise UserError(
                f"{asked.workdir} is published, and has one set of parameters; leave --average, "
                "--step and --dtype out, or write it in another dtype by: t2t-jax export --to run "
                "--dtype bfloat16"
            )
        sums.check_sums(source, NEEDED_FILES)
        _copy((source / name for name in RUN_FILES), place)
    else:
        chosen: dict[str, Any] = {"average": asked.average, "step": asked.step}
        model = portable_model(source, parallel=asked.parallel, **chosen)
        small_form.write_without_sums(model, place, asked.dtype or "float32")
        card = model_card(source, model, asked.destination, licence)
        (place / CARD).write_text(card, encoding="utf-8")
    sums.write_sums(place)


def _copy_state(source: Path, place: Path) -> None:
    """Copy the newest checkpoint of a run, its best parameters and its log."""
    for name in (CHECKPOINTS, BEST):
        steps = steps_of_run(source, name)
        if not steps and name == CHECKPOINTS:
            raise UserError(f"{source} has no checkpoint to go on from; leave --with-state out")
        for step in steps[-1:]:
            directory, copy = source / name / str(step), place / name / str(step)
            if isinstance(directory, bucket.BucketPath):
                bucket.fetch_tree(directory, copy)
            else:
                shutil.copytree(directory, copy)
    _copy([log_file(source)], place)


def _copy(files: Iterable[Path], place: Path) -> None:
    for file in files:
        if file.is_file():
            with bucket.local_copy(file) as copy:
                shutil.copyfile(copy, place / file.name)


def _upload(place: Path, target: Address, private: bool) -> str:
    """Upload a directory in one commit, so that a reader sees all or none of it."""
    paths = [path for path in place.rglob("*") if path.is_file()]
    files = {path.relative_to(place).as_posix(): str(path) for path in paths}
    with reaching(target) as library:
        hub, name = library.HfApi(library_name="t2t_jax"), target.repository
        hub.create_repo(name, private=private or None, exist_ok=True)
        if private and not hub.model_info(name).private:
            raise UserError(f"{target} is there already, and public; make it private there first")
        if target.revision:
            hub.create_branch(name, branch=target.revision, exist_ok=True)
        there = hub.list_repo_files(name, revision=target.revision)
        changes = [
            *(library.CommitOperationAdd(path, file) for path, file in files.items()),
            *(library.CommitOperationDelete(path) for path in there if _is_left(path, files)),
        ]
        message = "Publish a run of t2t_jax"
        made = hub.create_commit(name, changes, commit_message=message, revision=target.revision)
        return str(Address(name, made.oid))


def _is_left(path: str, files: Mapping[str, str]) -> bool:
    """Return whether an earlier run left this file on the hub."""
    return path not in files and any(fnmatchcase(path, one) for one in (*RUN_FILES, *STATE_FILES))
