"""Documents of the repository that lie outside docs/ are pages of the site, and links lead to them.

All documents link to each other by relative paths, which GitHub follows. Sphinx sees only what is
in docs/, so the others are copied to docs/_repository/, and links that lead out of docs/ are turned
to the copies.
"""

import os
import re
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
OUTSIDE = (
    "README.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks/README.md",
    "t2t_jax/data/bundled/LICENSES.md",
    "t2t_jax/data/bundled/SOURCES.md",
    "t2t_jax/demo/README.md",
)
"""The documents outside docs/, by their path in the repository."""

_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")


def relink(text: str, folder: Path) -> str:
    """The text of a document with each of its links as the site has them: from docs/.

    Args:
      text: a document in Markdown.
      folder: where in the repository it lies, from which its links lead.
    """

    def place(link: re.Match[str]) -> str:
        target = os.path.normpath(folder / link[1])
        name = os.path.relpath(target, ROOT)
        if name == "README.md":
            return "/index.md"
        if name in OUTSIDE:
            return f"/_repository/{name}"
        return f"/{os.path.relpath(target, DOCS)}"

    return _LINK.sub(place, text)


def _copy(app: Sphinx) -> None:
    """Copy the documents outside docs/, where they have changed."""
    for name in OUTSIDE:
        original, copy = ROOT / name, DOCS / "_repository" / name
        text = relink(original.read_text(encoding="utf-8"), original.parent)
        if not copy.exists() or copy.read_text(encoding="utf-8") != text:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text, encoding="utf-8")


def _read(app: Sphinx, name: str, source: list[str]) -> None:
    """Turn the links of a document of docs/ itself, as it is read."""
    if not name.startswith("_repository/"):
        source[0] = relink(source[0], (DOCS / name).parent)


def setup(app: Sphinx) -> dict[str, bool]:
    """Add this to a build of the site."""
    app.connect("builder-inited", _copy)
    app.connect("source-read", _read)
    return {"parallel_read_safe": True}
