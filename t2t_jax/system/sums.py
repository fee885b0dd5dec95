"""The file SHA256SUMS of a directory: the hash of every file, as `sha256sum --check` takes it."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from t2t_jax.errors import UserError

SUMS = "SHA256SUMS"
"""The name of the file."""


def write_sums(directory: Path) -> None:
    """Write the hashes of all files at or below a directory into its SHA256SUMS."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    names = {path.relative_to(directory).as_posix(): path for path in paths}
    lines = [f"{sha256(path)}  {name}\n" for name, path in names.items() if name != SUMS]
    (directory / SUMS).write_text("".join(lines), encoding="utf-8")


def check_sums(directory: Path, names: Iterable[str]) -> None:
    """Refuse a directory in which one of some files is not what its SHA256SUMS says.

    A directory without SHA256SUMS is not checked, and neither is a file that it does not list.

    Raises:
      UserError: a file is missing, or its hash is another one.
    """
    if not (directory / SUMS).is_file():
        return
    text = (directory / SUMS).read_text(encoding="utf-8", errors="replace")
    listed = {name: digest for digest, _, name in (row.partition("  ") for row in text.split("\n"))}
    for name in names:
        if name not in listed:
            continue
        path = directory / name
        if not path.is_file():
            raise UserError(f"{path} is missing, which {SUMS} lists; bring back a whole copy")
        if sha256(path) != listed[name]:
            raise UserError(
                f"{path} is damaged, or was changed: its hash is not that in {SUMS}; bring back a "
                "whole copy"
            )


def sha256(path: Path) -> str:
    """Return the hash of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
