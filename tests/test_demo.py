"""The demo: the translator that comes with the package, and opens by the name "demo".

In most tests a small run has its place, so that it can be taken away and trained on in seconds.
"""

import re
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import t2t_jax
from t2t_jax import UserError
from t2t_jax.__main__ import main
from t2t_jax.commands.entry import entry_command
from t2t_jax.system import opening
from t2t_jax.system.fetched_path import FetchedPath
from t2t_jax.system.safetensors_file import read_safetensors
from t2t_jax.system.sums import SUMS, check_sums, digest_of

_RELEASED = Path(__file__).parent / "goldens/runs/0.2.0"
_DEMO = Path(t2t_jax.__file__).parent / "demo"
_LINES = ["The file is open.", "No devices were found."]


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A small run in the form of the demo: published in bfloat16."""
    place = tmp_path_factory.mktemp("published") / "demo"
    flags = ["--licence", "mit", "--dtype", "bfloat16"]
    assert main(["publish", str(_RELEASED / "run"), str(place), *flags]) == 0
    return place


@pytest.fixture
def demo(published, tmp_path, monkeypatch):
    """The directory of the demo in a package, apart from the current directory."""
    place = tmp_path / "package/demo"
    shutil.copytree(published, place)
    monkeypatch.setattr(opening, "_DEMO_DIRECTORY", place)
    (tmp_path / "current").mkdir()
    monkeypatch.chdir(tmp_path / "current")
    return place


def test_the_demo_gives_the_translations_of_its_card(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    card = (_DEMO / "README.md").read_text(encoding="utf-8")
    table = card.partition("| English | translation |\n|---|---|\n")[2].partition("\n\n")[0]
    examples = dict(re.findall(r"^\| (.+) \| (.+) \|$", table, re.MULTILINE))
    assert len(examples) >= 5
    assert t2t_jax.load("demo").translate([*examples]) == [*examples.values()]


def test_the_files_of_the_demo_are_those_of_its_card():
    files = [path for path in _DEMO.iterdir() if path.name != SUMS]
    check_sums(_DEMO, [path.name for path in files])
    assert digest_of(_DEMO / "model.safetensors") in (_DEMO / "README.md").read_text("utf-8")
    assert sum(path.stat().st_size for path in files) < 10_000_000


def test_a_run_in_bfloat16_loads_as_its_rounded_parameters(published):
    arrays, _ = read_safetensors(published / "model.safetensors")
    assert {array.dtype for array in arrays.values()} == {jnp.bfloat16.dtype}
    found, exact = t2t_jax.load(published).params, t2t_jax.load(_RELEASED / "run").params
    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), exact)
    jax.tree.map(np.testing.assert_array_equal, found, rounded)
    with pytest.raises(UserError, match="run cannot store parameters in int8; choose float32"):
        main(["publish", str(published), "out", "--dtype", "int8"])


def test_python_and_commands_open_the_demo_by_its_name(demo, capsys):
    Path("lines").write_text("\n".join([*_LINES, ""]), encoding="utf-8")
    expected = t2t_jax.load(demo).translate(_LINES)
    assert t2t_jax.load("demo").translate(_LINES) == expected
    assert main(["translate", "demo", "--input", "lines"]) == 0
    assert capsys.readouterr().out.splitlines() == expected
    explore = "explore --text A --output page.html"
    for command in ("evaluate", explore, "heads", "serve", "report", "figures pictures"):
        place = entry_command([*command.split(), "--workdir", "demo"]).workdir
        [place] = place if isinstance(place, tuple) else [place]
        assert (place, type(place)) == (demo, FetchedPath)  # nothing writes into the package


def test_a_directory_of_that_name_wins(demo):
    shutil.copytree(_RELEASED / "run", "demo")
    assert opening.resolve_run("demo") == Path("demo")
    assert t2t_jax.load("demo").steps == t2t_jax.load(_RELEASED / "run").steps


def test_a_training_writes_into_a_directory_of_that_name(demo):
    command = entry_command(["train", "--config", "configs/quickstart.py", "demo"])
    assert command.workdir == Path("demo")
    assert not isinstance(command.workdir, FetchedPath)


@pytest.mark.thorough
def test_a_training_starts_from_the_demo(demo):
    Path("corpus").mkdir()
    for language in ("en", "de"):
        shutil.copy(_RELEASED / f"corpus/train.{language}", "corpus")
    config = t2t_jax.load("demo").config.replace(
        {
            "data.corpus": "text:corpus",
            "data.cache_dir": "cache",
            "training.init_from": "demo",
            "training.num_train_steps": 1,
        }
    )
    run = t2t_jax.train(config, "mine")
    assert run.exit_code == 0
    assert run.load().vocabulary.fingerprint == t2t_jax.load("demo").vocabulary.fingerprint


def test_a_misspelt_name_is_corrected(demo):
    with pytest.raises(UserError, match=r"^dmeo does not exist; did you mean demo\?$"):
        t2t_jax.load("dmeo")


def test_a_package_without_the_demo_says_how_to_get_it(demo):
    (demo / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"has no demo: .*; install it again, or train in"):
        t2t_jax.load("demo")
