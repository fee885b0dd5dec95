"""The notebooks, run from top to bottom: on a checkpoint of four devices, and on a tiny grid."""

import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.thorough

REPOSITORY = Path(__file__).parents[1]


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


def test_the_notebook_runs_from_top_to_bottom(run, tmp_path, monkeypatch):
    monkeypatch.setenv("T2T_RUN", str(run))
    monkeypatch.setenv("T2T_MORE_STEPS", "4")
    notebook = nbformat.read(REPOSITORY / "notebooks" / "reload.ipynb", as_version=4)
    before = sorted(path.stat().st_mtime_ns for path in run.rglob("*"))
    client = NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    printed = "\n".join(_outputs(cell) for cell in cells)
    assert "steps (4, 6) on 1 cpu device(s)" in printed
    assert printed.count("No devices found\n    ") == 2
    assert "step 10  loss" in printed
    assert _outputs(cells[-1]).startswith("step 10\n")
    images = [o for cell in cells for o in cell.outputs if "image/png" in o.get("data", {})]
    assert len(images) == 1
    assert sorted(path.stat().st_mtime_ns for path in run.rglob("*")) == before


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


def test_the_notebook_of_a_grid_runs_from_top_to_bottom(tiny_run, tmp_path):
    shutil.copytree(tiny_run.folder / "corpus", tmp_path / "corpus")
    notebook = nbformat.read(REPOSITORY / "notebooks" / "grid.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    source = "".join(cell.source for cell in cells)
    assert [text for text in _TINY if text not in source] == []
    for cell in cells:
        for text, tiny in _TINY.items():
            cell.source = cell.source.replace(text, tiny)
    client = NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    shown = [output.get("data", {}) for cell in cells for output in cell.outputs]
    tables = [data["text/markdown"] for data in shown if "text/markdown" in data]
    assert tables == [(tmp_path / "grid" / "table.md").read_text(encoding="utf-8")]
    assert "| base |" in tables[0]
    assert sum("image/png" in data for data in shown) == 2


@pytest.mark.parametrize("name", ["reload", "grid"])
def test_a_notebook_is_stored_without_outputs(name):
    notebook = nbformat.read(REPOSITORY / "notebooks" / f"{name}.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
