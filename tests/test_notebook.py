"""The notebooks, run from top to bottom: on a published run, and on a tiny grid.

They are run by this Python; with `T2T_NOTEBOOK_PYTHON`, by another one, in which their first cell
installs the package from `T2T_PACKAGE`. `.ci/floors` does so in the environments that it makes.
"""

import json
import os
import shutil
import signal
from contextlib import suppress
from zipfile import ZipFile

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

import t2t_jax
from t2t_jax.__main__ import main
from tests.hub_server import serving
from tests.programs import ROOT

pytestmark = pytest.mark.thorough

_PYTHON = os.environ.get("T2T_NOTEBOOK_PYTHON")


@pytest.fixture
def execute(tmp_path, monkeypatch):
    """A function that runs a notebook in a directory of its own."""
    if _PYTHON:
        monkeypatch.delenv("PYTHONPATH", raising=False)  # of the package that is not installed
        monkeypatch.delenv("XLA_FLAGS", raising=False)  # of another version of XLA
        command = [_PYTHON, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        spec = {"argv": command, "display_name": "other", "language": "python"}
        (tmp_path / "jupyter/kernels/other").mkdir(parents=True)
        (tmp_path / "jupyter/kernels/other/kernel.json").write_text(json.dumps(spec))
        monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where TensorBoard says that it runs

    def execute(notebook):
        NotebookClient(
            notebook,
            timeout=600,
            kernel_name="other" if _PYTHON else "python3",
            resources={"metadata": {"path": tmp_path}},
        ).execute()

    yield execute
    for file in tmp_path.glob(".tensorboard-info/pid-*.info"):
        with suppress(ProcessLookupError):
            os.kill(json.loads(file.read_text())["pid"], signal.SIGTERM)


def _outputs(cell):
    return "".join(output.get("text", "") for output in cell.outputs)


def _read(name):
    return nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)


def _code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_the_notebook_runs_from_top_to_bottom(tiny_run, execute, tmp_path, monkeypatch):
    tiny_run.finish(tmp_path / "run", "--training.num-train-steps=6")
    notebook = _read("reload")
    with serving(monkeypatch, tmp_path / "cache") as hub:
        name = "hf://someone/en-de"
        assert main(["publish", str(tmp_path / "run"), name, "--licence", "mit"]) == 0
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("T2T_RUN", name)
        monkeypatch.setenv("T2T_STEPS", "12")
        monkeypatch.setenv("T2T_PUBLISH_TO", str(tmp_path / "published"))
        execute(notebook)
    cells = {cell.source.split(" = ")[0]: cell for cell in _code(notebook)}
    assert sum(len(_outputs(cell).splitlines()) for cell in _code(notebook)[:2]) <= 15
    bar, value = (
        output.data["text/plain"] for output in cells["STEPS"].outputs if "data" in output
    )
    assert "12/12" in bar  # as it was drawn last
    assert "step 12  loss" not in _outputs(cells["STEPS"])
    assert "finetuned, " in value
    translated = _outputs(cells["finetuned"]).splitlines()
    published = t2t_jax.load(tmp_path / "published")
    assert translated[1::2] == [f"    {line}" for line in published.translate(translated[::2])]
    loop, reloaded = (cell for cell in _code(notebook) if "params)" in cell.source)
    first, *_, last = map(float, _outputs(loop).split())
    assert last < first
    own = t2t_jax.load(tmp_path / "own_loop").translate(["Enter your password"])
    assert repr(own[0]) in reloaded.outputs[0].data["text/plain"]
    assert "<td>languages</td><td>en → de</td>" in str(cells["translator"].outputs)
    shown = [output.get("data", {}) for cell in _code(notebook) for output in cell.outputs]
    assert sum("<iframe srcdoc=" in data.get("text/html", "") for data in shown) == 1
    assert sum("image/png" in data for data in shown) == 1


# The grid of the test: its models, its corpus and its size in place of the notebook's.
_TINY = {
    "d_model=128": "d_model=16",
    "d_ff=256": "d_ff=32",
    '"bundled:"': '"text:corpus", cache_dir="cache"',
    "vocab_size=2000": "vocab_size=300",
    "_per_step=1024": "_per_step=128",
    "num_train_steps=300": "num_train_steps=20",
    "warmup_steps=150": "warmup_steps=10",
    "num_sentences=200": "num_sentences=8",
    "beam_size=1": "beam_size=1, max_extra_length=4",
    "HEADS, DROPOUTS = [4, 1], [0.1, 0.0]": "HEADS, DROPOUTS = [4], [0.1, 0.0]",
    "SEEDS = 2": "SEEDS = 1",
}


def test_the_notebook_of_a_grid_runs_from_top_to_bottom(tiny_run, execute, tmp_path):
    shutil.copytree(tiny_run.folder / "corpus", tmp_path / "corpus")
    notebook = _read("ablate")
    cells = _code(notebook)
    source = "".join(cell.source for cell in cells)
    assert [text for text in _TINY if text not in source] == []
    for cell in cells:
        for text, tiny in _TINY.items():
            cell.source = cell.source.replace(text, tiny)
    execute(notebook)
    shown = [output.get("data", {}) for cell in cells for output in cell.outputs]
    tables = [data["text/markdown"] for data in shown if "text/markdown" in data]
    assert tables == [(tmp_path / "grid" / "table.md").read_text(encoding="utf-8")]
    assert "| base |" in tables[0]
    assert sum("image/png" in data for data in shown) == 1


def test_the_notebooks_install_alike():
    assert _sources("reload")[:2] == _sources("ablate")[:2]


def _sources(name):
    return [cell.source for cell in _code(_read(name))]


def _wheel(folder):
    """A wheel that no runtime suits."""
    wheel = folder / "t2t_jax-9-py3-none-any.whl"
    with ZipFile(wheel, "w") as file:
        extras = "".join(f"Provides-Extra: {each}\n" for each in ("train", "plots", "hub"))
        about = f"Metadata-Version: 2.1\nName: t2t-jax\nVersion: 9\n{extras}"
        about += "Requires-Dist: numpy>=99\n"
        file.writestr("t2t_jax-9.dist-info/METADATA", about)
        file.writestr("t2t_jax-9.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        file.writestr("t2t_jax-9.dist-info/RECORD", "")
    return wheel


_HIDDEN = "import importlib.util\nimportlib.util.find_spec = lambda name: None\n"
_COLAB = """
import sys
from types import ModuleType, SimpleNamespace

sys.modules.setdefault("google", ModuleType("google"))
sys.modules["google.colab"] = ModuleType("google.colab")
sys.modules["google.colab"].files = SimpleNamespace(upload=lambda: {!r})
"""


def test_a_wheel_that_is_uploaded_and_does_not_suit_leaves_the_runtime_as_it_is(
    execute, tmp_path, monkeypatch
):
    monkeypatch.delenv("T2T_PACKAGE", raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    upload = _COLAB.format({str(_wheel(tmp_path)): b""})
    cell = nbformat.v4.new_code_cell(_HIDDEN + upload + _sources("reload")[0])
    with pytest.raises(CellExecutionError, match="t2t_jax was not installed, for the reason above"):
        execute(nbformat.v4.new_notebook(cells=[cell]))
    printed = _outputs(cell)
    assert "ERROR: " in printed  # the reason of pip
    assert len(printed.splitlines()) <= 15


def test_without_a_wheel_the_first_cell_asks_for_one(execute, monkeypatch):
    monkeypatch.delenv("T2T_PACKAGE", raising=False)
    cell = nbformat.v4.new_code_cell(_HIDDEN + _sources("reload")[0])
    with pytest.raises(CellExecutionError, match="set PACKAGE to its wheel, a clone or an address"):
        execute(nbformat.v4.new_notebook(cells=[cell]))
