"""What the package needs, what its extras add, and what is said where one is missing."""

import ast
import json
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import packages_distributions
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement

from t2t_jax import errors, run_grid
from t2t_jax.config import Config, DataConfig
from t2t_jax.errors import installing
from t2t_jax.extras.corpora.tfds import tfds_builder
from t2t_jax.extras.encoders.images import image_splits
from t2t_jax.extras.interchange.vocabularies import pretrained
from t2t_jax.extras.watching.watch import plot_in_terminal
from t2t_jax.run.preparing import make_plan
from t2t_jax.sweep.launchers import Cluster
from t2t_jax.system import hub
from t2t_jax.tasks.measures.bleu import corpus_scores
from t2t_jax.tasks.translation import TASK
from tests.programs import ROOT, run_python
from tests.refusals import refused
from tests.sweep.test_comparison import GRID, result

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ALWAYS = {"jax", "flax", "optax", "orbax-checkpoint", "sentencepiece"}
BROUGHT = {"fsspec", "pyyaml"}  # by s3fs and gcsfs, and by flax
OF_USERS = {"torch", "ipython"}  # a reader of weights, and notebooks, which a user may have
LAZY_ROOMS = "system/drawing", "extras/inspect/figures/", "extras/watching/job_", "extras/serving/"
"""The folders that are imported within `needs_extra`."""


def _name(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=; ]", requirement)[0]).lower()


def _extras() -> set[str]:
    """The distributions that extras other than those of developers install."""
    others = {"all", "bench", "dev", "docs", "cuda12", "cuda13", "tpu"}
    return {
        _name(each)
        for extra, names in PROJECT["optional-dependencies"].items()
        for each in names
        if extra not in others
    }


def _imports(node: ast.AST, *, lazy: bool) -> Iterator[str]:
    """The top-level names of what a module imports: all, or what it does as it is imported."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in each.names)
        elif isinstance(each, ast.ImportFrom) and each.module and not each.level:
            yield each.module.partition(".")[0]
        elif lazy or not (isinstance(each, ast.FunctionDef) or _is_for_types(each)):
            yield from _imports(each, lazy=lazy)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _imported(*, lazy: bool, without: tuple[str, ...] = ()) -> set[str]:
    """The distributions that the package imports."""
    package = ROOT / "t2t_jax"
    files = [
        file
        for file in package.rglob("*.py")
        if not file.relative_to(package).as_posix().startswith(tuple(without))
    ]
    assert len(files) > 100
    modules = {name for file in files for name in _imports(ast.parse(file.read_text()), lazy=lazy)}
    known = packages_distributions()
    return {
        _name(known.get(name, [name])[0])
        for name in modules - sys.stdlib_module_names - {"t2t_jax", "configs"}
    }


def test_what_is_always_installed_is_little_and_all_of_it_is_used():
    needed = set(map(_name, PROJECT["dependencies"]))
    assert needed >= ALWAYS
    assert len(needed) <= 13
    assert needed <= _imported(lazy=True)


def test_the_environment_of_the_lowest_versions_has_the_floors():
    extras = PROJECT["optional-dependencies"]
    named = PROJECT["dependencies"] + extras["train"] + extras["plots"] + extras["hub"]
    floors = dict(re.findall(r"^([\w-]+)>=([\d.]+)", "\n".join(named), re.MULTILINE))
    lines = (ROOT / "tests/environments/lowest.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert pins.keys() == floors.keys()
    assert all(f"{pin}.".startswith(f"{floors[name]}.") for name, pin in pins.items())


def test_whatever_is_imported_is_declared():
    declared = set(map(_name, PROJECT["dependencies"])) | _extras() | BROUGHT | OF_USERS
    assert _imported(lazy=True) <= declared


def test_importing_a_module_needs_no_extra():
    assert not _imported(lazy=False, without=LAZY_ROOMS) & _extras()


def test_one_extra_has_all_that_users_may_need():
    extras = PROJECT["optional-dependencies"]
    [everything] = extras["all"]
    named = set(re.findall(r"\w+", everything.partition("[")[2]))
    assert named == extras.keys() - {"all", "bench", "dev", "docs", "cuda12", "cuda13", "tpu"}


def _training() -> object:
    return make_plan(Config(), Path("runs/none"))


@pytest.mark.parametrize(
    ("missing", "extra", "use"),
    [
        *((name, "train", _training) for name in ("grain", "sacrebleu", "tensorboardX")),
        # It is refused before it is read.
        ("sacremoses", "train", lambda: TASK.scored(None)),
        ("grain", "train", lambda: run_grid({"base": Config()}, "runs/none")),
        ("sacrebleu.metrics.bleu", "train", lambda: corpus_scores(["a"], ["a"], "en")),
        ("tensorflow_datasets", "train", lambda: tfds_builder("wmt14_translate/de-en")),
        (
            "plotext",
            "plots",
            lambda: plot_in_terminal("loss", [np.array([[1.0], [3.0]])], 60, 10, False),
        ),
        ("submitit", "slurm", lambda: Cluster(Path("grid"), ["timeout_min=1"])),
        (
            "sklearn.datasets",
            "digits",
            lambda: list(image_splits("digits:", DataConfig())["train"].read()),
        ),
        ("huggingface_hub", "hub", lambda: hub.fetch(hub.Address("a/b", None))),
        ("tokenizers", "interchange", lambda: pretrained._tokenizer("{}")),
    ],
)
def test_a_missing_package_is_one_line_that_names_the_extra(missing, extra, use, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    package = missing.partition(".")[0]
    with refused(f" needs {package}, which is not installed: {installing(extra)}"):
        use()


# Importing any of these fails: the packages that extras bring, but for what the core brings too.
_HIDE = """
import sys
class Hidden:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Hidden)
"""
_USE_THE_CORE = """
import sys, t2t_jax
translator = t2t_jax.load(sys.argv[1])
print(*translator.translate(["No devices found"]))
assert t2t_jax.score(translator, ["No"], ["Nein"])[0].log_prob < 0
assert t2t_jax.attention_maps(translator, "No").cross.ndim == 4
t2t_jax.explore(translator, "No")
from t2t_jax.__main__ import start
sys.argv[1:] = ["translate", "--workdir", sys.argv[1]]
start()
"""


@pytest.mark.thorough
def test_loading_and_translating_need_the_core_alone(tmp_path):
    """The import of the packages of all extras is refused, in another process."""
    shutil.copytree(ROOT / "tests/goldens/runs/0.2.0/run", tmp_path / "run")
    brought = {"array_record", "scipy", "yaml", "safetensors"}  # by Orbax and JAX, or of the core
    of_extras = {
        module
        for module, names in packages_distributions().items()
        if _extras() & set(map(_name, names))
    }
    assert {"grain", "sacrebleu", "tensorboardX", "matplotlib"} <= of_extras
    done = run_python(
        "-c",
        _HIDE.format(names=of_extras - brought) + _USE_THE_CORE,
        "run",
        code=0,
        cwd=tmp_path,
        stdin="No devices found\n",
    )
    first, second = done.stdout.splitlines()
    assert first == second


@pytest.fixture
def forget(monkeypatch):
    """A function that has the modules of a package imported anew."""

    def forget(package: str) -> None:
        for name in [name for name in sys.modules if f"{name}.".startswith(f"{package}.")]:
            monkeypatch.delitem(sys.modules, name)

    return forget


def test_without_the_library_of_pictures_there_are_none(forget, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    forget("t2t_jax.system.drawing")
    forget("t2t_jax.extras.inspect.figures")
    with refused(f" needs matplotlib, which is not installed: {installing('plots')}"):
        import_module("t2t_jax.extras.inspect.figures.heads")


def test_without_the_library_of_pictures_a_grid_has_its_other_tables(tmp_path, monkeypatch, capsys):
    from t2t_jax.sweep.tables import write_tables

    monkeypatch.setitem(sys.modules, "matplotlib.ticker", None)
    write_tables(GRID, {"base": [result(5.0, 20.0)]}, tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"table.md", "table.tex", "table.csv"}
    warning = capsys.readouterr().err
    assert warning.startswith("warning: table.png needs matplotlib")
    assert warning.endswith("[plots]'\n")


@pytest.fixture
def copy_from(tmp_path, monkeypatch):
    """A function that says of a copy of the package in a site where an installer had it from."""

    def copy_from(origin: dict[str, object] | None) -> None:
        information = tmp_path / "site/t2t_jax-0.2.0.dist-info"
        information.mkdir(parents=True)
        (information / "METADATA").write_text("Metadata-Version: 2.4\nName: t2t-jax\n")
        if origin:  # https://packaging.python.org/en/latest/specifications/direct-url/
            (information / "direct_url.json").write_text(json.dumps(origin))
        monkeypatch.syspath_prepend(tmp_path / "site")
        monkeypatch.setattr(errors, "__file__", str(tmp_path / "site/t2t_jax/errors.py"))

    return copy_from


@pytest.mark.parametrize(
    ("origin", "said"),
    [
        ({"url": "file:///my%20wheels/t.whl", "archive_info": {}}, "'/my wheels/t.whl[plots]'"),
        ({"url": "file:///clone", "dir_info": {}}, "'/clone[plots]'"),
        (
            {"url": "https://a.org/t.git", "vcs_info": {"vcs": "git", "commit_id": "1"}},
            "'t2t-jax[plots] @ git+https://a.org/t.git'",
        ),
        ({"url": "https://a.b/t.whl", "archive_info": {}}, "'t2t-jax[plots] @ https://a.b/t.whl'"),
        (None, "'t2t-jax[plots]'"),
    ],
    ids=["a wheel", "a directory", "Git", "an address", "an index"],
)
def test_an_extra_is_installed_from_where_the_package_came(copy_from, origin, said):
    copy_from(origin)
    assert installing("plots") == f"pip install {said}"
    assert all(Requirement(word) for word in shlex.split(said) if word.startswith("t2t-jax"))


def test_an_extra_of_a_clone_is_installed_in_the_clone(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert installing("plots") == "pip install -e '.[plots]'"
    monkeypatch.chdir(tmp_path)
    assert installing("plots") == f"pip install -e '{ROOT}[plots]'"
