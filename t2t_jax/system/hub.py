"""Runs on the Hugging Face Hub, by their names `hf://NAME/MODEL` and `hf://NAME/MODEL@REVISION`.

huggingface_hub downloads them, with its settings: its cache, its token (`hf auth login`, HF_TOKEN),
HF_ENDPOINT and HF_HUB_OFFLINE. Only the files of a run are downloaded, and none is ever executed.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from t2t_jax.errors import UserError, in_one_line, needs_extra, way_out_of
from t2t_jax.system.fetched_path import FetchedPath

NEEDED_FILES = "config.json", "vocabulary.model", "model.safetensors"
"""The files that every published run has, and whose hashes loading checks."""
RUN_FILES = (
    *NEEDED_FILES,
    "vocabulary.sha256",
    "corpus.sha256",
    "imported.json",
    "provenance.json",
    "scores.jsonl",
    "SHA256SUMS",
    "README.md",
)
"""The files by which a run opens, as patterns; the config comes first."""
STATE_FILES = "log.jsonl", "checkpoints/*", "best/*"
"""The further files from which a training goes on, as patterns."""
_NEVER = "*.py", "*.pkl", "*.pickle", "*.pt", "*.bin", "*.so"
_PART = r"[\w-][\w.-]*"
_DATASET = re.compile(rf"hf://datasets/({_PART}/{_PART})(?:@([\w.][\w.-]*))?/(.+)", re.ASCII)
_ADDRESS = re.compile(rf"hf://({_PART}/{_PART})(?:@([\w.][\w./-]*))?", re.ASCII)


class Address(NamedTuple):
    """The name of a run on the hub."""

    repository: str
    """The name of the model, as NAME/MODEL."""
    revision: str | None
    """A branch, a tag or the hash of a commit; None is the newest of the main branch."""

    def __str__(self) -> str:
        """Return the name as it was given."""
        return f"hf://{self.repository}" + (f"@{self.revision}" if self.revision else "")


def address(name: str | os.PathLike[str]) -> Address | None:
    """Parse the name of a run on the hub; None for any other name."""
    # A path that was made of such a name has lost one of the two slashes.
    text = re.sub("^hf:/+", "hf://", os.fspath(name)).rstrip("/")
    if not text.startswith("hf://"):
        return None
    if not (found := _ADDRESS.fullmatch(text)):
        raise UserError(f"{text} names no model; give hf://NAME/MODEL, or hf://NAME/MODEL@REVISION")
    return Address(found[1], found[2])


def fetch(run: Address, *, with_state: bool = False) -> Path:
    """Download a run into the cache of huggingface_hub, unless it is there, and return its path.

    Without a connection, return the cached files of the revision.

    Args:
      with_state: whether to download also the training state for resuming.

    Raises:
      UserError: there is no such run or no right to read it, or it is neither reachable nor cached.
    """
    patterns = [*RUN_FILES, *(STATE_FILES if with_state else ())]
    place = FetchedPath(_download(run, patterns))
    for name in NEEDED_FILES:
        if not (place / name).is_file():
            raise UserError(
                f"{run} has no {name}: t2t-jax publish did not write it, or the cache has it in "
                "part; try again with a network"
            )
    return place


def fetch_dataset(place: str, patterns: Callable[[str], Sequence[str]]) -> str:
    """Download files of a data set into the cache of huggingface_hub, unless they are there.

    Args:
      place: a path with wildcards, as hf://datasets/NAME/DATASET/PATH, where DATASET may end in
        @REVISION.
      patterns: returns the paths to download, with wildcards, from PATH.

    Returns:
      The path of the files on this machine, with wildcards.
    """
    found = _DATASET.fullmatch(place)
    if not found:
        raise UserError(f"{place} names no files; give hf://datasets/NAME/DATASET/PATH-*.parquet")
    repository, revision, path = found.groups()
    folder = _download(Address(f"datasets/{repository}", revision), patterns(path), "dataset")
    return f"{folder}/{path}"


def _download(run: Address, patterns: Sequence[str], kind: str = "model") -> str:
    """Download files of a repository into the cache, and return their directory."""
    with reaching(run) as library:
        return library.snapshot_download(
            run.repository.removeprefix("datasets/"),
            repo_type=kind,
            revision=run.revision,
            allow_patterns=[*patterns],
            ignore_patterns=[*_NEVER],
            library_name="t2t_jax",
        )


@contextmanager
def reaching(run: Address) -> Iterator[ModuleType]:
    """Return a context with huggingface_hub, which turns its errors into messages of one line."""
    with needs_extra("hub", f"{run}"):
        import huggingface_hub
        from huggingface_hub import constants, errors
    try:
        yield huggingface_hub
    except UserError:
        raise
    except Exception as error:  # of many kinds, from the libraries below
        explanations = {  # of a kind before those of its base class
            errors.GatedRepoError: f"is gated: ask for access on {constants.ENDPOINT}/"
            f"{run.repository}, then run: hf auth login",
            errors.RepositoryNotFoundError: "does not exist, or is private: check the name, run: "
            "hf auth login, or set HF_TOKEN; t2t-jax publish makes a new one",
            errors.RevisionNotFoundError: "does not exist: the model has no branch, tag or commit "
            f"{run.revision}; check it, or leave it out",
            errors.LocalEntryNotFoundError: "cannot be reached, and is not in the cache "
            f"{constants.HF_HUB_CACHE}: check the network, HF_HUB_OFFLINE and HF_ENDPOINT; the "
            "same command goes on from there",
        }
        found = [text for kind, text in explanations.items() if isinstance(error, kind)]
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            found.append(
                "is refused; run: hf auth login, or set HF_TOKEN to a token with the right"
            )
        known = isinstance(error, OSError) and error.errno
        way_out = way_out_of(error) if known else "the same command goes on from there"  # type: ignore[arg-type]
        causes = [str(one) or type(one).__name__ for one in (error, error.__cause__) if one]
        why = in_one_line(": ".join(dict.fromkeys(causes)))
        found.append(f"cannot be reached: {why:.200}; {way_out}")
        raise UserError(f"{run} {found[0]}") from error
