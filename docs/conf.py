"""How Sphinx makes a site of these documents: `sphinx-build -W -b html docs docs/_build`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

from t2t_jax import __version__

project = "t2t_jax"
author = "The authors of t2t_jax"
release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "figures",
    "mathml",
    "reference",
    "repository",
]
myst_enable_extensions = ["dollarmath"]
exclude_patterns = ["_build", "_figures", "_repository/README.md", "results/*/table.md"]

# Links to headings are written as GitHub names them.
myst_heading_anchors = 4

# Docstrings are in Google's style, with code in single backticks.
default_role = "code"
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 80
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = "t2t_jax"
html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["site.css"]
