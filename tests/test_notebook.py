"""The notebooks, run from top to bottom: on a run of four devices, and on a tiny grid.

They are run by this Python; with `T2T_NOTEBOOK_PYTHON`, by another one, in which their first cell
installs the package from `T2T_PACKAGE`. `.ci/floors` does so in the environments that it makes.
"""

import json
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from zipfile import ZipFile

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

import t2t_jax
from t2t_jax.__main__ import main
from tests.hub_server import serving

pytestmark = pytest.mark.thorough

REPOSITORY = Path(__file__).parents[1]
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


@pytest.fixture(scope="module")
def run(tiny_run, tmp_path_factory):
    """The directory of a run on 2 x 2 devices."""
    workdir = tmp_path_factory.mktemp("notebook") / "run"
    mesh = ["--parallel.fsdp=2", "--parallel.tensor=2"]
    printed = tiny_run.finish(
        workdir, *mesh, "--training.num-train-steps=6", "--checkpoint.average=2", devices=4
    )
    assert "4 cpu device(s)" in printed
    return workdir


def _outputs(cell):
    return "".join(output.get("text", "") for output in cell.outputs)


def test_the_notebook_runs_from_top_to_bottom(run, execute, tmp_path, monkeypatch):
    monkeypatch.setenv("T2T_RUN", str(run))
    monkeypatch.setenv("T2T_MORE_STEPS", "4")
    monkeypatch.setenv("T2T_SAVE_TO", str(tmp_path / "saved"))
    notebook = nbformat.read(REPOSITORY / "notebooks" / "reload.ipynb", as_version=4)
    before = sorted(path.stat().st_mtime_ns for path in run.rglob("*"))
    execute(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    printed = "\n".join(_outputs(cell) for cell in cells)
    assert "steps (4, 6) on 1 cpu device(s)" in printed
    assert printed.count("No devices found\n    ") == 2
    assert "step 10  loss" in printed
    [last] = [_outputs(cell) for cell in cells if cell.source.startswith("longer")]
    step, *translated = last.splitlines()
    assert step == "step 10"
    lines = translated[::2]
    saved = t2t_jax.load(tmp_path / "saved").translate(lines)
    assert [f"    {line}" for line in saved] == translated[1::2]
    shown = [output.get("data", {}) for cell in cells for output in cell.outputs]
    assert sum("<iframe srcdoc=" in data.get("text/html", "") for data in shown) == 1
    assert sum("image/png" in data for data in shown) == 1
    assert sorted(path.stat().st_mtime_ns for path in run.rglob("*")) == before


def test_the_notebook_goes_on_from_the_parameters_of_a_run_on_the_hub(
    run, execute, tmp_path, monkeypatch
):
    notebook = nbformat.read(REPOSITORY / "notebooks" / "reload.ipynb", as_version=4)
    with serving(monkeypatch, tmp_path / "cache") as hub:
        assert main(["publish", str(run), "hf://someone/en-de", "--licence", "mit"]) == 0
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("T2T_RUN", "hf://someone/en-de")
        monkeypatch.setenv("T2T_MORE_STEPS", "4")
        monkeypatch.setenv("T2T_SAVE_TO", str(tmp_path / "saved"))
        execute(notebook)
    [last] = [_outputs(cell) for cell in notebook.cells if cell.source.startswith("longer")]
    assert last.startswith("step 4\n")
    assert t2t_jax.load(tmp_path / "saved").steps[-1] == 4


# The grid of the test: its models, its corpus and its size in place of the notebook's.
_TINY = {
    '"model.d_model": 128': '"model.d_model": 16',
    '"model.d_ff": 256': '"model.d_ff": 32',
    '"bundled:"': '"text:corpus", "data.cache_dir": "cache"',
    '"data.vocab_size": 2000': '"data.vocab_size": 300',
    '_per_step": 1024': '_per_step": 128',
    '"training.num_train_steps": 400': '"training.num_train_steps": 20',
    '"evaluation.num_sentences": 200': '"evaluation.num_sentences": 8',
    '"decoding.beam_size": 1': '"decoding.beam_size": 1, "decoding.max_extra_length": 4',
    # tests/sweep/test_sweep.py trains grids of more than one variant.
    '    **t2t_jax.product(base, {"model.num_heads": [1]}),\n': "",
    '    **t2t_jax.product(base, {"model.dropout_rate": [0.0]}),\n': "",
    "SEEDS = 2": "SEEDS = 1",
}


def test_the_notebook_of_a_grid_runs_from_top_to_bottom(tiny_run, execute, tmp_path):
    shutil.copytree(tiny_run.folder / "corpus", tmp_path / "corpus")
    notebook = nbformat.read(REPOSITORY / "notebooks" / "grid.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
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
    assert sum("image/png" in data for data in shown) == 2


def _code_of(name):
    notebook = nbformat.read(REPOSITORY / "notebooks" / f"{name}.ipynb", as_version=4)
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def test_the_notebooks_install_alike():
    assert _code_of("reload")[:2] == _code_of("grid")[:2]


def test_a_runtime_that_does_not_suit_is_said_in_a_sentence_and_left_as_it_is(
    execute, tmp_path, monkeypatch
):
    wheel = tmp_path / "demanding-9-py3-none-any.whl"
    with ZipFile(wheel, "w") as file:
        extras = "".join(f"Provides-Extra: {each}\n" for each in ("train", "plots", "hub"))
        about = f"Metadata-Version: 2.1\nName: demanding\nVersion: 9\n{extras}"
        about += "Requires-Dist: numpy>=99\n"
        file.writestr("demanding-9.dist-info/METADATA", about)
        file.writestr("demanding-9.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        file.writestr("demanding-9.dist-info/RECORD", "")
    monkeypatch.setenv("T2T_PACKAGE", str(wheel))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    hide = "import importlib.util\nimportlib.util.find_spec = lambda name: None\n"
    cell = nbformat.v4.new_code_cell(hide + _code_of("reload")[0])
    with pytest.raises(CellExecutionError, match="t2t_jax was not installed, as is said above"):
        execute(nbformat.v4.new_notebook(cells=[cell]))
    printed = _outputs(cell)
    assert "numpy==" in printed  # kept
    assert "numpy>=99" in printed  # needed
    assert "Successfully installed" not in printed


@pytest.mark.parametrize("name", ["reload", "grid"])
def test_a_notebook_is_stored_without_outputs(name):
    notebook = nbformat.read(REPOSITORY / "notebooks" / f"{name}.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
