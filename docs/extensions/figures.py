"""The figures of the documents are drawn when the site is built, into docs/_figures/."""

from pathlib import Path

from sphinx.application import Sphinx


def _draw(app: Sphinx) -> None:
    try:
        from t2t_jax.figures import write_figures
    except ImportError:
        return
    write_figures(Path(app.srcdir) / "_figures")


def setup(app: Sphinx) -> dict[str, bool]:
    """Add this to a build of the site."""
    app.connect("builder-inited", _draw)
    return {"parallel_read_safe": True}
