"""The software that computes a run: versions of its packages, and a hash of this package's code."""

import hashlib
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = (
    *("t2t-jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy"),
    *("libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin"),
)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that compute a run; "none" if missing."""
    numbers = {"python": platform.python_version(), "the code of t2t-jax": code_hash()}
    for package in _PACKAGES:
        try:
            numbers[package] = version(package)
        except PackageNotFoundError:
            numbers[package] = "none"
    return numbers


def code_hash() -> str:
    """Return a hash of this package's Python files, which clones of one version may not share."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]
