"""The record of the software that computes a run: versions, the git commit and a hash of code."""

import contextlib
import hashlib
import io
import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import jax
import pytest

import t2t_jax
from t2t_jax.config import Config
from t2t_jax.config.definitions import syntax
from t2t_jax.config.registry import registering
from t2t_jax.data.corpus import open_corpus
from t2t_jax.extras.interchange.formats import write_model
from t2t_jax.extras.interchange.portable import portable_model
from t2t_jax.extras.interchange.publish_command import PublishCommand
from t2t_jax.extras.watching.report import build_report, software_section
from t2t_jax.run import provenance as module
from t2t_jax.run.evaluation import score_record
from t2t_jax.run.provenance import (
    COMPUTING,
    UNRECORDED,
    changes,
    provenance,
    read_provenance,
    record_provenance,
    without_files,
)

CODE = '''
"""The inverse square root schedule."""


class Schedule:
    """A schedule."""

    warmup: int = 4000
    """The steps of the warmup."""

    def rate(self, step: int, factor: float = 1.0) -> float:
        """Return the rate of a step."""
        # The first term is smaller after the warmup.
        name = f"step {step:>{factor}}"
        return factor * min(step**-0.5, step * self.warmup**-1.5) if name else 0.0
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("The inverse square root schedule.", "Section 5.3.", id="module docstring"),
        pytest.param('    """A schedule."""\n', "", id="no class docstring"),
        pytest.param("The steps of the warmup.", "How long it warms up.", id="field docstring"),
        pytest.param("Return the rate of a step.", "Return eta.", id="function docstring"),
        pytest.param("# The first term", "# Equation 3: the first term", id="comment"),
        pytest.param("factor * min(step", "(factor)* min(\n  step", id="line break and brackets"),
        pytest.param('f"step {step:>{factor}}"', "f'step {step:>{factor}}'", id="quotes"),
    ],
)
def test_text_that_changes_no_result_does_not_change_the_hash(old, new):
    assert CODE.count(old) == 1
    assert syntax(CODE.replace(old, new)) == syntax(CODE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("-0.5", "-0.6", id="constant"),
        pytest.param("step * self", "step + self", id="operator"),
        pytest.param("factor: float = 1.0", "factor: float = 2.0", id="default of an argument"),
        pytest.param("warmup: int = 4000", "warmup: int = 400", id="default of a field"),
        pytest.param(
            'f"step {step:>{factor}}"', 'f"step {step:<{factor}}"', id="string that is a value"
        ),
        pytest.param("else 0.0", "else None", id="none"),
        pytest.param("else 0.0", "else False", id="type of a constant"),
        pytest.param("    def rate", "    @staticmethod\n    def rate", id="decorator"),
    ],
)
def test_code_that_may_change_a_result_changes_the_hash(old, new):
    assert CODE.count(old) == 1
    assert syntax(CODE.replace(old, new)) != syntax(CODE)


def test_the_hash_is_the_same_in_every_version_of_python():
    """The figure is that of Python 3.11; the suite runs with 3.13 as well."""
    digest = hashlib.sha256(syntax(CODE).encode()).hexdigest()[:12]
    assert digest == "6991e22026f6"


def test_the_hashed_files_are_those_that_compute_results():
    found = provenance(Config())
    root = Path(t2t_jax.__file__).parent
    folders = {name.partition("/")[0] for name in found["files"]}
    assert folders == {
        *("batch.py", "config", "data", "decoding", "functional", "kernels", "modules"),
        *("parallel", "run", "tasks", "training"),
    }
    of_run = {name for name in found["files"] if name.startswith("run/")}
    assert of_run == {f"run/{name}.py" for name in ("evaluation", "preparing", "start", "trainer")}
    for name in ("training/schedule.py", "modules/layers.py", "tasks/measures/perplexity.py"):
        text = (root / name).read_text("utf-8")
        assert found["files"][name] == hashlib.sha256(syntax(text).encode()).hexdigest()[:12]


def test_versions_are_those_of_the_packages():
    found = provenance(Config())["versions"]
    assert found["jax"] == jax.__version__
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"t2t-jax", "flax", "optax", "orbax-checkpoint", "numpy", "jaxlib"} <= found.keys()


def test_a_registered_function_is_hashed_with_its_file(tmp_path):
    config = _registering(tmp_path, "square_of_provenance", "x * x")
    file = (tmp_path / "square_of_provenance.py").read_text()
    expected = hashlib.sha256(syntax(file).encode()).hexdigest()[:12]
    found = provenance(config)
    assert found["files"]["activation 'square_of_provenance'"] == expected
    assert found["code"] != provenance(Config())["code"]
    assert changes(provenance(Config()), found) == []  # that is what the configs differ in


def _registering(folder, name, formula):
    file = folder / f"{name}.py"
    file.write_text(
        f'import t2t_jax\n\nt2t_jax.register_activation("{name}", lambda x: {formula})\n'
    )
    with registering():
        exec(compile(file.read_text(), str(file), "exec"), {})
    return Config().replace({"model.feed_forward": name})


def test_a_function_of_a_notebook_is_hashed_by_its_text():
    t2t_jax.register_activation("cube_of_provenance", _cube)
    found = provenance(Config().replace({"model.feed_forward": "cube_of_provenance"}))
    expected = syntax("def _cube(x):\n    return x * x * x\n")
    digest = hashlib.sha256(expected.encode()).hexdigest()[:12]
    assert found["files"]["activation 'cube_of_provenance'"] == digest


def _cube(x):
    """Return the third power."""
    return x * x * x


@pytest.mark.parametrize("extra", ["their_tasks", "t2t_jax.extras.of_a_test"])
def test_the_package_of_a_task_from_elsewhere_is_hashed(tmp_path, monkeypatch, extra):
    folder = tmp_path.joinpath(*extra.split("."))
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "task.py").write_text("TASK = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(module, "_modules_of", lambda config: [f"{extra}.task"])
    monkeypatch.setattr(module, "_package_files", dict)
    if extra.startswith("t2t_jax"):
        monkeypatch.setattr(module, "_PACKAGE", tmp_path / "t2t_jax")
    name = "extras/of_a_test/task.py" if extra.startswith("t2t_jax") else "their_tasks/task.py"
    before = provenance(Config())
    assert name in before["files"]
    (folder / "task.py").write_text("TASK = 2\n")
    assert changes(before, provenance(Config())) == [name]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A git repository with a package in a folder, as the package that is asked for."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "a.py").write_text("a = 1\n")
    (tmp_path / ".gitignore").write_text("*.pyc\n")
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=A", "-c", "user.email=a@b.c", "commit", "-qm", "one"],
    ):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    monkeypatch.setattr(module, "_PACKAGE", package)
    module._git.cache_clear()
    yield package
    module._git.cache_clear()


@pytest.mark.parametrize(
    ("file", "dirty"),
    [
        pytest.param(None, False, id="nothing changed"),
        pytest.param("package/a.py", True, id="a file changed"),
        pytest.param("package/b.py", True, id="a file that git does not know"),
        pytest.param("package/b.pyc", False, id="a file that git ignores"),
        pytest.param("notes.txt", False, id="a file beside the package"),
    ],
)
def test_the_commit_is_recorded_with_whether_files_differ_from_it(checkout, file, dirty):
    if file:
        (checkout.parent / file).write_text("a = 2\n")
    command = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True)
    assert module._git() == {"commit": commit.stdout.strip(), "dirty": dirty}


@pytest.mark.parametrize("reason", ["no repository", "no git", "git fails"])
def test_without_git_there_is_no_commit_and_no_error(checkout, monkeypatch, reason, tmp_path):
    if reason == "no repository":
        (checkout.parent / ".git").rename(tmp_path / "moved")
        missing = Mock(side_effect=PackageNotFoundError)
        monkeypatch.setattr(module.Distribution, "from_name", missing)
    elif reason == "no git":
        monkeypatch.setenv("PATH", "")
    else:
        (checkout.parent / ".git" / "HEAD").unlink()
    assert module._git() == {}


def test_pip_knows_the_commit_that_it_installed_from(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_PACKAGE", tmp_path / "t2t_jax")
    origin = {"url": "https://host/t2t", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}}
    installed = SimpleNamespace(read_text={"direct_url.json": json.dumps(origin)}.get)
    monkeypatch.setattr(module.Distribution, "from_name", lambda name: installed)
    module._git.cache_clear()
    assert module._git() == {"commit": "c0ffee", "dirty": False}
    module._git.cache_clear()


A = {
    "code": "aaa",
    "files": {"training/schedule.py": "1", "data/rows.py": "1"},
    "versions": {"python": "3.11.2", "jax": "0.10.1", "flax": "0.12"},
}
B = A | {"code": "bbb", "files": A["files"] | {"training/schedule.py": "2"}}
C = A | {"versions": A["versions"] | {"jax": "0.10.2", "python": "3.13.0"}}


@pytest.mark.parametrize(
    ("before", "now", "every"),
    [
        pytest.param(A, A, [], id="the same"),
        pytest.param(A, A | {"commit": "c", "dirty": True}, [], id="another commit"),
        pytest.param(A, B, ["training/schedule.py"], id="a file"),
        pytest.param(A, C, ["jax 0.10.1 -> 0.10.2", "python 3.11.2 -> 3.13.0"], id="versions"),
        pytest.param(
            A | {"settings": {"XLA_FLAG": "1", "JAX_SOFTMAX_CUSTOM_JVP": "True"}},
            A | {"settings": {"XLA_FLAG": "1", "JAX_DISABLE_JIT": "True"}},
            ["JAX_DISABLE_JIT unset -> True", "JAX_SOFTMAX_CUSTOM_JVP True -> unset"],
            id="settings of JAX",
        ),
        pytest.param(UNRECORDED, UNRECORDED, [], id="both of an older version"),
        pytest.param(UNRECORDED, A, ["code that was not recorded"], id="one of an older version"),
    ],
)
def test_what_differs_between_two_records(before, now, every):
    assert changes(before, now) == every
    computing = [change for change in every if not change.startswith("python ")]
    assert changes(before, now, COMPUTING) == computing


@pytest.mark.parametrize(
    ("starts", "recorded", "warnings"),
    [
        pytest.param([(0, A)], [(0, "aaa")], 0, id="a new run"),
        pytest.param([(0, A), (8, A)], [(0, "aaa")], 0, id="the same code"),
        pytest.param([(0, A), (8, B)], [(0, "aaa"), (8, "bbb")], 1, id="other code"),
        pytest.param([(0, A), (8, B), (9, B)], [(0, "aaa"), (8, "bbb")], 1, id="once"),
        pytest.param([(0, A), (0, B)], [(0, "bbb")], 0, id="no step was taken by the first"),
        pytest.param([(0, A), (8, B), (8, A)], [(0, "aaa")], 1, id="brought back in time"),
        pytest.param([(8, A)], [(0, "unrecorded"), (8, "aaa")], 1, id="a run of 0.2"),
    ],
)
def test_a_resumed_run_records_other_code_and_warns(tmp_path, capsys, starts, recorded, warnings):
    for first_step, software in starts:
        record_provenance(tmp_path, software, first_step)
    found = read_provenance(tmp_path)
    assert [(one["first_step"], one["code"]) for one in found] == recorded
    said = capsys.readouterr().err
    assert said.count("by different software") == warnings
    if (8, B) in starts:
        assert "training/schedule.py" in said
    section = software_section(found)
    assert len(section.rows) == len(recorded)
    assert len(section.notes) == len(recorded) - 1


@pytest.fixture(scope="module")
def resumed(tmp_path_factory, tiny_run):
    """A run whose schedule had another formula up to step 2, and what was said at its resuming."""
    config = tiny_run.config.replace(tiny_run.without_dev)
    workdir, said = tmp_path_factory.mktemp("provenance") / "run", io.StringIO()
    now = module._package_files()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_package_files", lambda: now | {"training/schedule.py": "another"})
        t2t_jax.train(config, workdir, until=2)
    with contextlib.redirect_stderr(said):
        t2t_jax.train(config, workdir, until=4)
    return config, workdir, said.getvalue()


@pytest.mark.thorough
def test_a_resumed_training_says_and_records_which_code_it_had(resumed):
    config, workdir, said = resumed
    now, recorded = provenance(config), read_provenance(workdir)
    codes = [one["code"] for one in recorded]
    assert codes[0] != codes[1] == now["code"]
    assert said.count("was trained to step 2 by different software") == 1
    assert "training/schedule.py" in said
    assert [one["first_step"] for one in recorded] == [0, 2]
    assert recorded[1] == now | {"first_step": 2}
    jobs = [json.loads((workdir / "jobs" / f"{n}.json").read_text()) for n in (1, 2)]
    assert [job["provenance"]["code"] for job in jobs] == codes
    assert jobs[1]["provenance"] == without_files(now)
    for step, code in zip((2, 4), codes, strict=True):
        origin = (workdir / "checkpoints" / str(step) / "origin" / "metadata").read_text()
        assert json.loads(origin)["provenance"]["code"] == code
    page = build_report(workdir).markdown()
    assert "From step 3 on, the run used other software: training/schedule.py" in page
    assert all(f"| {code} |" in page for code in codes)
    translator = t2t_jax.load(workdir)
    evaluation = t2t_jax.evaluate(translator, split="train", num_sentences=1, beam_size=1)
    record = score_record(translator, open_corpus(config.data), evaluation)
    assert record["provenance"] == without_files(now)


@pytest.mark.parametrize("name", ["run", "safetensors", "marian"])
def test_an_exported_model_comes_with_the_software_that_trained_it(resumed, tmp_path, name):
    _, workdir, _ = resumed
    write_model(portable_model(workdir), name, tmp_path / "out")
    assert (tmp_path / "out" / "provenance.json").read_bytes() == (
        workdir / "provenance.json"
    ).read_bytes()


def test_the_card_of_a_published_model_has_the_software(resumed, tmp_path):
    _, workdir, _ = resumed
    published = str(tmp_path / "published")
    PublishCommand(workdir=str(workdir), destination=published, licence="mit").run()
    card = (tmp_path / "published" / "README.md").read_text("utf-8")
    assert "## Software" in card
    assert read_provenance(tmp_path / "published") == read_provenance(workdir)
