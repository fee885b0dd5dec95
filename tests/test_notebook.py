"""The notebook, run from top to bottom on a checkpoint of four devices."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

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


def test_the_notebook_is_stored_without_outputs():
    notebook = nbformat.read(REPOSITORY / "notebooks" / "reload.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
