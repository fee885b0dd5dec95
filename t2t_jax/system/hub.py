"""Download runs from the Hugging Face Hub: `hf://NAME/MODEL` or `hf://NAME/MODEL@REVISION`.

huggingface_hub downloads only the files of a run, and never executes them. Its settings apply: the
cache, the token (`hf auth login`, HF_TOKEN), HF_ENDPOINT and HF_HUB_OFFLINE.
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
"""Files that every published run has; loading checks their hashes."""
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
"""Patterns of files that loading a run needs; the config comes first."""
STATE_FILES = "log.jsonl", "checkpoints/*", "best/*"
"""Patterns of additional files that resuming needs."""
_NEVER = "*.py", "*.pkl", "*.pickle", "*.pt", "*.bin", "*.so"
_PART = r"[\w-][\w.-]*"
_DATASET = re.compile(rf"hf://datasets/({_PART}/{_PART})(?:@([\w.][\w.-]*))?/(.+)", re.ASCII)
_ADDRESS = re.compile(rf"hf://({_PART}/{_PART})(?:@([\w.][\w./-]*))?", re.ASCII)


class Address(NamedTuple):
    """The name of a run on the hub."""

    repository: str
    """Name of the repository, as NAME/MODEL."""
    revision: str | None
    """A branch, a tag or a commit hash; None is the head of the main branch."""

    def __str__(self) -> str:
        """Return the name as hf://NAME/MODEL@REVISION."""
        return f"hf://{self.repository}" + (f"@{self.revision}" if self.revision else "")


def address(name: str | os.PathLike[str]) -> Address | None:
    """Parse the name of a run on the hub; None for any other name."""
    # `Path` collapses the two slashes of such a name into one.
    text = re.sub("^hf:/+", "hf://", os.fspath(name)).rstrip("/")
    if not text.startswith("hf://"):
        return None
    if not (match := _ADDRESS.fullmatch(text)):
        raise UserError(f"{text} names no model; give hf://NAME/MODEL, or hf://NAME/MODEL@REVISION")
    return Address(match[1], match[2])


def fetch(run: Address, *, with_state: bool = False) -> Path:
    """Return the path of a run in the cache of huggingface_hub; download the run if needed.

    Without a connection, use the cached files.

    Args:
      with_state: whether to also download the training state for resuming.

    Raises:
      UserError: the run is missing, inaccessible, or neither reachable nor cached.
    """
    patterns = [*RUN_FILES, *(STATE_FILES if with_state else ())]
    path = FetchedPath(_download(run, patterns))
    for name in NEEDED_FILES:
        if not (path / name).is_file():
            raise UserError(
                f"{run} has no {name}: t2t-jax publish did not write it, or the cache is "
                "incomplete; try again with a network"
            )
    return path


def fetch_dataset(pattern: str, patterns: Callable[[str], Sequence[str]]) -> str:
    """Download files of a dataset into the cache of huggingface_hub, if needed.

    Args:
      pattern: hf://datasets/NAME/DATASET/PATH or hf://datasets/NAME/DATASET@REVISION/PATH, where
        PATH may have wildcards.
      patterns: a function from PATH to the paths to download, with wildcards.

    Returns:
      The local path, with the same wildcards.
    """
    match = _DATASET.fullmatch(pattern)
    if not match:
        raise UserError(f"{pattern} names no files; give hf://datasets/NAME/DATASET/PATH-*.parquet")
    repository, revision, path = match.groups()
    folder = _download(Address(f"datasets/{repository}", revision), patterns(path), "dataset")
    return f"{folder}/{path}"


def _download(address: Address, patterns: Sequence[str], kind: str = "model") -> str:
    """Download files of a repository into the cache, and return their directory."""
    with reaching(address) as library:
        return library.snapshot_download(
            address.repository.removeprefix("datasets/"),
            repo_type=kind,
            revision=address.revision,
            allow_patterns=[*patterns],
            ignore_patterns=[*_NEVER],
            library_name="t2t_jax",
        )


@contextmanager
def reaching(address: Address) -> Iterator[ModuleType]:
    """Yield the module huggingface_hub; errors in the block become a `UserError` in one line."""
    with needs_extra("hub", f"{address}"):
        import huggingface_hub
        from huggingface_hub import constants, errors
    try:
        yield huggingface_hub
    except UserError:
        raise
    except Exception as error:  # the libraries below raise many classes
        explanations = {  # a subclass comes before its base class
            errors.GatedRepoError: f"is gated: ask for access on {constants.ENDPOINT}/"
            f"{address.repository}, then run: hf auth login",
            errors.RepositoryNotFoundError: "does not exist, or is private: check the name, run: "
            "hf auth login, or set HF_TOKEN; t2t-jax publish makes a new one",
            errors.RevisionNotFoundError: "does not exist: the model has no branch, tag or commit "
            f"{address.revision}; check it, or leave it out",
            errors.LocalEntryNotFoundError: "cannot be reached, and is not in the cache "
            f"{constants.HF_HUB_CACHE}: check the network, HF_HUB_OFFLINE and HF_ENDPOINT; the "
            "same command resumes from there",
        }
        messages = [text for kind, text in explanations.items() if isinstance(error, kind)]
        status_code = getattr(getattr(error, "response", None), "status_code", None)
        if status_code in (401, 403):
            messages.append(
                "denies access; run: hf auth login, or set HF_TOKEN to a token with access"
            )
        has_errno = isinstance(error, OSError) and error.errno
        remedy = way_out_of(error) if has_errno else "the same command resumes from there"  # type: ignore[arg-type]
        causes = [str(cause) or type(cause).__name__ for cause in (error, error.__cause__) if cause]
        cause_text = in_one_line(": ".join(dict.fromkeys(causes)))
        messages.append(f"cannot be reached: {cause_text:.200}; {remedy}")
        raise UserError(f"{address} {messages[0]}") from error
