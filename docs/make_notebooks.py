"""Write the pages of docs/paper as executed notebooks, with the outputs and pictures of cells.

    python docs/make_notebooks.py                   all pages
    python docs/make_notebooks.py 01-stacks ...     some pages

A Python block of a page becomes a cell. The text that a page shows below a block, and a picture of
`_figures`, are left out, because the cell has its own. A block below `<!-- MODULE:NAME -->` is the
source of a part of the package; in the language `py` it is only shown. A block within `<details>`
is the solution of an exercise, which notebooks hide until the reader opens the cell.
"""

import inspect
import os
import re
import sys
import textwrap
from functools import reduce
from importlib import import_module
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs/paper").glob("[0-9]*.md"))
FOLDER = ROOT / "notebooks/paper"
_BLOCK = re.compile(r"^```python\n(.*?)^```$\n(?:\n(?: {4}[^\n]*\n)+)?", re.MULTILINE | re.DOTALL)
_SOURCE = re.compile(
    r"<!-- ([\w.]+):([\w.]+) -->\n\n```(python|py)\n.*?^```$", re.MULTILINE | re.DOTALL
)
_PICTURE = re.compile(r"^!\[[^\]]*\]\(\.\./_figures/[^)]*\)\n", re.MULTILINE)
_MARKS = re.compile(r"^</details>\n|^<!-- .* -->\n", re.MULTILINE)
_SUMMARY = re.compile(r"^<details><summary>(.*)</summary>$", re.MULTILINE)


def source_of(module: str, name: str) -> str:
    """Return the source of a function or method of the package."""
    part = reduce(getattr, name.split("."), import_module(module))
    source = textwrap.dedent(inspect.getsource(part))
    # The page explains arguments and results, so the first paragraph of a docstring is enough.
    return re.sub(r'^( *"""[^"]+?)\n\n.*?"""$', r'\1"""', source, flags=re.MULTILINE | re.DOTALL)


def refreshed(page: str) -> str:
    """Return the text of a page with the current source of each function that it shows."""

    def block(match: re.Match[str]) -> str:
        module, name, language = match.groups()
        return f"<!-- {module}:{name} -->\n\n```{language}\n{source_of(module, name)}```"

    return _SOURCE.sub(block, page)


def _links(text: str) -> str:
    """Make the links of a page of docs/paper those of a notebook of notebooks/paper."""
    text = re.sub(r"\]\((\d\d-[\w-]+)\.md", r"](\1.ipynb", text)
    return re.sub(r"\]\((?:\.\./(?!\.\.)|(?=index\.md))", r"](../../docs/", text).replace(
        "../../docs/index.md", "../../docs/paper/index.md"
    )


def _text_cells(text: str) -> list[nbformat.NotebookNode]:
    text = _SUMMARY.sub(r"*\1: open the next cell.*", _MARKS.sub("", _PICTURE.sub("", text)))
    text = _links(text).strip()
    return [nbformat.v4.new_markdown_cell(text)] if text else []


def _code_cell(text: str, *, is_hidden: bool) -> nbformat.NotebookNode:
    # Colab and Jupyter read different fields.
    hidden = {"cellView": "form", "jupyter": {"source_hidden": True}}
    return nbformat.v4.new_code_cell(text, metadata=hidden if is_hidden else {})


def notebook_of(page: str) -> nbformat.NotebookNode:
    """Make the notebook of a page, without outputs."""
    install = nbformat.read(ROOT / "notebooks/reload.ipynb", as_version=4).cells[2].source
    cells, position = [], 0
    for match in _BLOCK.finditer(page):
        before = page[position : match.start()]
        cells += _text_cells(before)
        is_solution = "<details>" in before.rpartition("</details>")[2]
        cells.append(_code_cell(match[1].strip(), is_hidden=is_solution))
        position = match.end()
    cells += _text_cells(page[position:])
    cells.insert(1, _code_cell(install, is_hidden=True))
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"  # so that the same page is the same file
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return nbformat.v4.new_notebook(cells=cells, metadata=metadata)


def execute(notebook: nbformat.NotebookNode) -> None:
    """Run the cells of a notebook in a new kernel on the CPU, and store their outputs."""
    # Tests set flags that change the last digits, and with them the course of a training.
    names = os.environ.keys() - {"XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS"}
    environment = {name: os.environ[name] for name in names} | {"JAX_PLATFORMS": "cpu"}
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute(env=environment)
    notebook.metadata.language_info = {"name": "python"}  # without this machine's version
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times
        if cell.cell_type == "code":  # warnings of a machine's libraries are left out
            results = [x for x in cell.outputs if x.output_type != "stream"]
            printed = printed_by(cell)
            streams = [nbformat.v4.new_output("stream", text=printed)] if printed else []
            cell.outputs = [*streams, *results]


def printed_by(cell: nbformat.NotebookNode) -> str:
    """Return what a cell has printed to the standard output."""
    outputs = cell.get("outputs", [])
    return "".join(x.text for x in outputs if x.output_type == "stream" and x.name == "stdout")


def with_outputs(page: str, notebook: nbformat.NotebookNode) -> str:
    """Return the text of a page with what the cells of its notebook print below their blocks."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    printed = map(printed_by, cells[1:])  # the first cell installs the package

    def block(match: re.Match[str]) -> str:
        text = textwrap.indent(next(printed), "    ", lambda line: True).replace("    \n", "\n")
        return f"```python\n{match[1]}```\n" + (f"\n{text}" if text else "")

    return _BLOCK.sub(block, page)


def main(names: list[str]) -> None:
    """Write the notebooks of some pages, or of all, and what they print into the pages."""
    FOLDER.mkdir(exist_ok=True)
    for path in PAGES:
        if names and path.stem not in names:
            continue
        page = refreshed(path.read_text("utf-8"))
        notebook = notebook_of(page)
        execute(notebook)
        path.write_text(with_outputs(page, notebook), "utf-8")
        nbformat.write(notebook, FOLDER / f"{path.stem}.ipynb")
        print(f"wrote {FOLDER / path.stem}.ipynb")


if __name__ == "__main__":
    main(sys.argv[1:])
