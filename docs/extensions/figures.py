"""The figures of the documents are drawn when the site is built, into docs/_figures/."""

import os
from pathlib import Path

from sphinx.application import Sphinx

import t2t_jax

os.environ.setdefault("JAX_PLATFORMS", "cpu")


def _draw(app: Sphinx) -> None:
    """Draw all figures, unless the code is older than they are."""
    directory = Path(app.srcdir) / "_figures"
    code = max(path.stat().st_mtime for path in Path(t2t_jax.__file__).parent.rglob("*.py"))
    drawn = [path.stat().st_mtime for path in directory.glob("*.svg")]
    if drawn and min(drawn) > code:
        return
    from t2t_jax.extras.inspect.figures import write_figures

    write_figures(directory)


def setup(app: Sphinx) -> dict[str, bool]:
    """Add this to a build of the site."""
    app.connect("builder-inited", _draw)
    return {"parallel_read_safe": True}
