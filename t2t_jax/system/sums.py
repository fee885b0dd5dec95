"""Write and check the SHA256SUMS file of a directory, for `sha256sum --check`."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from t2t_jax.errors import UserError
from t2t_jax.system.regular_file import regular

SUMS = "SHA256SUMS"
"""Name of the checksum file."""


def write_sums(directory: Path) -> None:
    """Write the hashes of all files at or below a directory into its SHA256SUMS."""
    (directory / SUMS).write_text(listed_sums(directory, SUMS), encoding="utf-8")


def listed_sums(directory: Path, skipped: str) -> str:
    """Format a checksum line for each file below a directory except the file `skipped`."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    tree = {path.relative_to(directory).as_posix(): path for path in paths}
    return "".join(f"{digest_of(path)}  {name}\n" for name, path in tree.items() if name != skipped)


def check_sums(directory: Path, names: Iterable[str]) -> None:
    """Raise a `UserError` if a named file does not match SHA256SUMS, if SHA256SUMS exists."""
    if not (directory / SUMS).is_file():
        return
    text = (directory / SUMS).read_text(encoding="utf-8", errors="replace")
    digests = {name: digest for digest, _, name in (x.partition("  ") for x in text.splitlines())}
    for name in names:
        if name not in digests:
            raise UserError(f"{directory / SUMS} does not list {name}; restore a complete copy")
        path = directory / name
        if not path.is_file():
            raise UserError(f"{path} is missing, which {SUMS} lists; restore a complete copy")
        if digest_of(path) != digests[name]:
            raise UserError(
                f"{path} is damaged or changed: {SUMS} has another hash; restore a complete copy"
            )


def digest_of(path: Path, kind: str = "sha256") -> str:
    """Return the hexadecimal hash of a file, by a `hashlib` algorithm."""
    with regular(path).open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()
