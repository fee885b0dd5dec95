"""Publishing a run: its small form with a model card, in a directory, in a bucket or on the hub."""

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from t2t_jax.errors import UserError
from t2t_jax.extras.interchange import run as small_form
from t2t_jax.extras.interchange.formats import check_written
from t2t_jax.extras.interchange.portable import portable_model
from t2t_jax.extras.interchange.publish_command import PublishCommand
from t2t_jax.extras.interchange.publishing.card import check_licence, licence_of, model_card
from t2t_jax.parallel.processes import check_free
from t2t_jax.system import atomic_file, bucket, opening, sums
from t2t_jax.system.hub import NEEDED_FILES, RUN_FILES, STATE_FILES, Address, address, reaching
from t2t_jax.training.storage import steps_of_run
from t2t_jax.workdir import BEST, CARD, CHECKPOINTS, CONFIG, LOG, PARAMETERS, read_config


def publish(command: PublishCommand) -> str:
    """Publish a run: all of it, or nothing.

    A run that was published before is copied as it is, with its card, if no licence is given.

    Returns:
      The name by which the published run is opened.

    Raises:
      UserError: the run cannot be loaded, or the destination not be written to.
    """
    if command.with_state and command.changes_parameters:
        raise UserError(
            "--with-state publishes the run as it is; leave --average, --step and --dtype out, or "
            "the state"
        )
    check_written("run", command.dtype)
    target = _target(command)
    source = opening.resolve_run(command.workdir, with_state=command.with_state)
    licence = _licence(command, source)
    written = command.dry_run or target
    if isinstance(written, Address | bucket.BucketPath):
        with atomic_file.removed_at_end(Path(tempfile.mkdtemp(prefix="t2t_jax-"))) as place:
            _fill(command, source, licence, place)
            if isinstance(written, Address):
                return _upload(place, written, command.private)
            bucket.send_tree(place, written, CONFIG)
    else:
        opening.check_directory_name(written)
        with atomic_file.writing_directory(written) as place:
            _fill(command, source, licence, place)
    return str(written)


def _target(command: PublishCommand) -> Address | Path:
    """Return where to publish; refuse an existing target, and flags that do not apply to it."""
    if target := address(command.destination):
        if target.revision:
            raise UserError(f"{target} is only read; name the branch to write to by --revision")
        return target._replace(revision=command.revision)
    for flag in ("private", "revision"):
        if getattr(command, flag):
            raise UserError(f"--{flag} is for hf://NAME/MODEL, not for {command.destination}")
    place = bucket.as_path(command.destination)
    if isinstance(place, bucket.BucketPath) and (place / CONFIG).exists():
        raise UserError(f"{place} exists; choose another place, or remove that one first")
    return place


def _licence(command: PublishCommand, source: Path) -> str | None:
    """Return the licence of a new card, or None if the run already has a card."""
    card = source / CARD
    read_config(source)  # which refuses what is no run
    is_published = (source / PARAMETERS).is_file() and card.is_file()
    if command.licence is None and is_published and licence_of(card.read_text("utf-8", "replace")):
        return None
    return check_licence(command.licence)


def _fill(command: PublishCommand, source: Path, licence: str | None, place: Path) -> None:
    """Write all files to publish into an empty directory."""
    if command.with_state:
        check_free(source)
        _copy_state(source, place)
    if licence is None:
        if command.changes_parameters:
            raise UserError(
                f"{command.workdir} is published, and has one set of parameters; leave --average, "
                "--step and --dtype out, or write it in another dtype by: t2t-jax export --to run "
                "--dtype bfloat16"
            )
        sums.check_sums(source, NEEDED_FILES)
        _copy((source / name for name in RUN_FILES), place)
    else:
        model = portable_model(
            source, average=command.average, step=command.step, parallel=command.parallel
        )
        small_form.write_without_sums(model, place, command.dtype or "float32")
        card = model_card(source, model, command.destination, licence)
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
    _copy([source / LOG], place)


def _copy(files: Iterable[Path], place: Path) -> None:
    for file in files:
        if file.is_file():
            with bucket.local_copy(file) as copy:
                shutil.copyfile(copy, place / file.name)


def _upload(place: Path, target: Address, private: bool) -> str:
    """Upload a directory in one commit, so that a reader sees all or none of it."""
    files = {
        file.relative_to(place).as_posix(): file for file in place.rglob("*") if file.is_file()
    }
    with reaching(target) as library:
        hub, name = library.HfApi(library_name="t2t_jax"), target.repository
        hub.create_repo(name, private=private or None, exist_ok=True)
        if private and not hub.model_info(name).private:
            raise UserError(f"{target} is there already, and public; make it private there first")
        if target.revision:
            hub.create_branch(name, branch=target.revision, exist_ok=True)
        stored = hub.list_repo_files(name, revision=target.revision)
        patterns = [*RUN_FILES, *STATE_FILES]
        earlier = {*library.utils.filter_repo_objects(stored, allow_patterns=patterns)}
        changes = [
            *(library.CommitOperationAdd(path, file) for path, file in files.items()),
            *(library.CommitOperationDelete(path) for path in sorted(earlier - files.keys())),
        ]
        message = "Publish a run of t2t_jax"
        made = hub.create_commit(name, changes, commit_message=message, revision=target.revision)
        return str(Address(name, made.oid))
