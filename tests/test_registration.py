"""A run whose config names a function that a config file registered."""

from pathlib import Path

import numpy as np
import pytest

from t2t_jax import UserError, evaluate, load, run_grid, train
from t2t_jax.config import registry
from t2t_jax.config.file import load_config, load_grid
from t2t_jax.extras.interchange import safetensors
from t2t_jax.extras.interchange.portable import portable_model
from t2t_jax.modules import named_functions
from t2t_jax.run.dry_run import dry_run
from t2t_jax.sweep.cell import cells
from t2t_jax.sweep.launchers import Local
from t2t_jax.workdir import read_config

_FILE = """
import runpy, jax, t2t_jax

def doubled(x):
    return 2 * jax.nn.relu(x)

t2t_jax.register_activation("doubled", doubled)
def plain(x, g, epsilon):
    return g * x / (epsilon + abs(x).max(-1, keepdims=True))

t2t_jax.register_normalization("plain", plain, lambda width: {{"g": t2t_jax.Parameter((), 1.0)}})

def get_config():
    base = runpy.run_path("{tiny}")["get_config"]()
    return base.replace({{
        "model.feed_forward": "doubled", "model.norm": "plain", "training.num_train_steps": 2,
        **{corpus},
    }})

VARIANTS = {{"doubled": get_config()}}
"""


@pytest.fixture(scope="module")
def trained(tiny_run, tmp_path_factory, forgotten_parts):
    """The config file and the directory of a run of two steps."""
    folder = tmp_path_factory.mktemp("registration")
    path = folder / "own.py"
    path.write_text(_FILE.format(tiny=tiny_run.folder / "tiny.py", corpus=tiny_run.without_dev))
    assert train(load_config(str(path)), folder / "run").exit_code == 0
    return path, folder / "run"


def test_a_run_keeps_the_file_that_registered_what_its_config_names(trained):
    path, workdir = trained
    kept = {file.name: file.read_text() for file in (workdir / "registered").iterdir()}
    assert kept == dict.fromkeys(["feed_forward.py", "norm.py"], path.read_text())


@pytest.mark.usefixtures("tables")
def test_nothing_of_a_run_is_executed_unless_its_reader_says_so(trained, monkeypatch):
    _, workdir = trained
    kept = workdir / "registered" / "feed_forward.py"
    with pytest.raises(UserError) as error:
        load(workdir)
    said = str(error.value)
    assert said.startswith(f"{workdir}/config.json: model.feed_forward='doubled' is not one of")
    named = f"read {kept}, and name it in T2T_JAX_REGISTER or in t2t_jax.load(..., register=...)"
    assert named in said
    assert "\n" not in said
    monkeypatch.setenv(registry.FILES, str(kept))
    assert read_config(workdir).model.norm == "plain"
    assert load(workdir).translate(["a dog"]) == load(workdir).translate(["a dog"])


@pytest.mark.usefixtures("tables")
def test_loading_runs_the_files_that_its_caller_names_and_a_saved_run_keeps_them(trained, tmp_path):
    path, workdir = trained
    translator = load(workdir, register=workdir / "registered" / "norm.py")
    other = load(workdir, register=[workdir / "registered" / "feed_forward.py"])
    assert other.steps == translator.steps
    assert evaluate(translator, split="train", num_sentences=4).scores
    translator.save(tmp_path / "saved")
    kept = [file.read_text() for file in (tmp_path / "saved/registered").iterdir()]
    assert kept == [path.read_text()] * 2
    bad = tmp_path / "bad.py"
    bad.write_text("1 / 0")
    with pytest.raises(UserError, match=r"bad\.py line 1: ZeroDivisionError"):
        load(workdir, register=str(bad))


@pytest.mark.usefixtures("tables")
def test_loading_warns_of_parts_that_the_run_was_not_trained_with(trained, tmp_path, capsys):
    path, workdir = trained
    other = tmp_path / "other.py"
    other.write_text(f"{path.read_text()}\nEDITED = True\n")
    load(workdir, register=other)
    assert f"other.py, which is not as it was when {workdir}" in capsys.readouterr().err


def test_a_single_number_that_a_norm_learns_stays_one_in_files(trained, tmp_path):
    model = portable_model(trained[1])
    safetensors.write(model, tmp_path)
    arrays = safetensors.read(tmp_path).arrays
    assert arrays.keys() == model.arrays.keys()
    assert arrays["encoder.layers.0.feed_forward.norm.g"].shape == ()
    assert all(np.array_equal(arrays[name], x) for name, x in model.arrays.items())


@pytest.mark.usefixtures("tables")
def test_a_run_goes_on_with_the_functions_that_it_was_started_with(trained, tmp_path):
    path, workdir = trained
    changed = tmp_path / "changed.py"
    changed.write_text(path.read_text().replace("2 * jax", "3 * jax"))
    with pytest.raises(UserError, match=rf"'doubled' is registered by {changed}, which is not as"):
        train(load_config(str(changed)), workdir)


@pytest.mark.usefixtures("tables")
def test_a_comment_in_the_file_makes_no_other_function(trained, tmp_path):
    path, workdir = trained
    same = tmp_path / "same.py"
    same.write_text("# The same.\n" + path.read_text())
    assert train(load_config(str(same)), workdir).exit_code == 0


@pytest.mark.usefixtures("tables")
def test_a_function_with_a_problem_is_refused_for_a_new_run_and_warned_of_in_an_old_one(
    trained, tmp_path, monkeypatch, capsys
):
    path, workdir = trained
    config = load_config(str(path))
    problem = "activation 'doubled' gives 2 and then 3"
    monkeypatch.setattr(named_functions, "_problem", lambda *args: problem if args[-1] else None)
    for start in (train, dry_run):
        with pytest.raises(UserError, match=problem):
            start(config, tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
    load(workdir)
    assert f"warning: {workdir}: {problem}\n" in capsys.readouterr().err
    assert train(config, workdir).exit_code == 0
    assert f"warning: {workdir}: {problem}\n" in capsys.readouterr().err


@pytest.mark.thorough
@pytest.mark.usefixtures("tables")
def test_the_processes_of_a_grid_register_by_its_file(trained, tmp_path):
    path, _ = trained
    own = tmp_path / "grid.py"
    own.write_text(path.read_text().replace("without_dev", "corpus"))  # a grid compares on dev
    grid = load_grid(str(own))
    outcome = run_grid(grid, tmp_path / "grid", launcher=Local(1))
    assert len(outcome.results["doubled"]) == 1
    assert Path(tmp_path / "grid/doubled/seed0/registered/norm.py").read_text() == own.read_text()
    kept = tmp_path / "grid/doubled/seed0/registered/feed_forward.py"
    kept.write_text(own.read_text().replace("2 * jax", "3 * jax"))
    (cell,) = cells(grid, tmp_path / "grid", 1)
    with pytest.raises(UserError, match=r"'doubled' is registered by .*which is not as it was"):
        cell.result()
