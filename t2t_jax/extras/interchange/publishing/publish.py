"""Publish a run with a model card to a directory, a bucket or the Hugging Face Hub."""

import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import replace
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
from t2t_jax.training.checkpoint_files import steps_of_run
from t2t_jax.workdir import BEST, CARD, CHECKPOINTS, CONFIG, LOG, PARAMETERS, read_config


def publish(command: PublishCommand) -> str:
    """Publish a run atomically, and return the address that opens the published run.

    Without a license, the function copies an already published run with its model card.

    Raises:
      UserError: the run cannot be loaded, or the destination is not writable.
    """
    if command.with_state and command.changes_parameters:
        raise UserError(
            "--with-state publishes the run unchanged; omit --average, --step and --dtype, or omit "
            "--with-state"
        )
    check_written("run", command.dtype)
    target = _target(command)
    source = opening.resolve_run(command.workdir, with_state=command.with_state)
    licence = _licence(command, source)
    output = command.dry_run or target
    if isinstance(output, Address | bucket.BucketPath):
        with atomic_file.removed_at_end(Path(tempfile.mkdtemp(prefix="t2t_jax-"))) as directory:
            _fill(command, source, licence, directory)
            if isinstance(output, Address):
                return _upload(directory, output, command.private)
            bucket.send_tree(directory, output, CONFIG)
    else:
        opening.check_directory_name(output)
        with atomic_file.writing_directory(output) as directory:
            _fill(command, source, licence, directory)
    return str(output)


def _target(command: PublishCommand) -> Address | Path:
    """Return the destination; raise a `UserError` for an existing bucket path or a wrong flag."""
    if target := address(command.destination):
        if target.revision:
            raise UserError(f"{target} names a revision; set the branch to write with --revision")
        return target._replace(revision=command.revision)
    for flag in ("private", "revision"):
        if getattr(command, flag):
            raise UserError(f"--{flag} is for hf://NAME/MODEL, not for {command.destination}")
    path = bucket.as_path(command.destination)
    if isinstance(path, bucket.BucketPath) and (path / CONFIG).exists():
        raise UserError(f"{path} exists; choose another destination, or remove {path} first")
    return path


def _licence(command: PublishCommand, source: Path) -> str | None:
    """Return the license for a new model card, or None to keep the card of a published run."""
    card = source / CARD
    read_config(source)  # raises a UserError for a directory that is not a run
    is_published = (source / PARAMETERS).is_file() and card.is_file()
    if command.licence is None and is_published and licence_of(card.read_text("utf-8", "replace")):
        return None
    return check_licence(command.licence)


def _fill(command: PublishCommand, source: Path, licence: str | None, directory: Path) -> None:
    """Write all files to publish into an empty directory.

    Args:
      licence: license of a new model card; None copies a published run with its card.
    """
    if command.with_state:
        check_free(source)
        _copy_state(source, directory)
    if licence is None:
        if command.changes_parameters:
            raise UserError(
                f"{command.workdir} is published, and has one set of parameters; omit --average, "
                "--step and --dtype, or write another dtype with: t2t-jax export --to run --dtype "
                "bfloat16"
            )
        sums.check_sums(source, NEEDED_FILES)
        _copy((source / name for name in RUN_FILES), directory)
        sums.write_sums(directory)
    else:
        model = portable_model(
            source, average=command.average, step=command.step, parallel=command.parallel
        )
        card = model_card(source, model, command.destination, licence)
        model = replace(model, records={**model.records, CARD: card.encode()})
        small_form.write(model, directory, command.dtype or "float32")


def _copy_state(source: Path, directory: Path) -> None:
    for subfolder in (CHECKPOINTS, BEST):
        steps = steps_of_run(source, subfolder)
        if not steps and subfolder == CHECKPOINTS:
            raise UserError(f"{source} has no checkpoint to resume from; omit --with-state")
        for step in steps[-1:]:
            checkpoint, copy = source / subfolder / str(step), directory / subfolder / str(step)
            if isinstance(checkpoint, bucket.BucketPath):
                bucket.fetch_tree(checkpoint, copy)
            else:
                shutil.copytree(checkpoint, copy)
    _copy([source / LOG], directory)


def _copy(files: Iterable[Path], directory: Path) -> None:
    for file in files:
        if file.is_file():
            with bucket.local_copy(file) as copy:
                shutil.copyfile(copy, directory / file.name)


def _upload(directory: Path, target: Address, private: bool) -> str:
    paths = (path for path in directory.rglob("*") if path.is_file())
    files = {path.relative_to(directory).as_posix(): path for path in paths}
    with reaching(target) as hub_library:
        hub, name = hub_library.HfApi(library_name="t2t_jax"), target.repository
        hub.create_repo(name, private=private or None, exist_ok=True)
        if private and not hub.model_info(name).private:
            raise UserError(f"{target} exists and is public; make it private on the hub first")
        if target.revision:
            hub.create_branch(name, branch=target.revision, exist_ok=True)
        hub_files = hub.list_repo_files(name, revision=target.revision)
        patterns = [*RUN_FILES, *STATE_FILES]
        # The commit deletes files of an earlier upload, but keeps all other files on the hub.
        old_files = {*hub_library.utils.filter_repo_objects(hub_files, allow_patterns=patterns)}
        changes = [
            *(hub_library.CommitOperationAdd(path, file) for path, file in files.items()),
            *(hub_library.CommitOperationDelete(path) for path in sorted(old_files - files.keys())),
        ]
        message = "Publish a run of t2t_jax"
        commit = hub.create_commit(name, changes, commit_message=message, revision=target.revision)
        return str(Address(name, commit.oid))
