"""Plugins: packages that add commands to the program, and those that are broken."""

import json
import os
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from pkgutil import iter_modules

import pytest

import t2t_jax
from t2t_jax import Config, UserError, plugins
from t2t_jax.commands.groups import command_reference
from t2t_jax.config import EncoderDecoderConfig
from t2t_jax.config.families import Family
from tests.programs import ROOT, run_python
from tests.selection import thorough_after

OURS = [one for one in plugins.plugins() if one.package.startswith("t2t_jax.extras.")]

PACKAGE = """
from t2t_jax.plugins import Plugin

PLUGIN = Plugin(commands={"hello": ("first steps", "greet somebody")})
"""
COMMAND = """
from dataclasses import dataclass


@dataclass(frozen=True)
class HelloCommand:
    '''Greet somebody.'''

    name: str = "world"
    '''Whom to greet.'''

    def run(self) -> int:
        print(f"hello {self.name}")
        return 0

"""

EVERYTHING = """
from t2t_jax.plugins import Plugin

PLUGIN = Plugin(
    tasks={"sorting": "everything.parts:SORTING"},
    families={"twin": "everything.parts:TWIN"},
    formats={"names": "everything.parts:NAMES"},
    trackers={"steps": "everything.parts:open_steps"},
)
"""
PARTS = """
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from t2t_jax.config import EncoderDecoderConfig
from t2t_jax.config.families import Family
from t2t_jax.config.tasks import TaskFacts
from t2t_jax.extras.interchange.formats import Format
from t2t_jax.extras.interchange.safetensors import VOCABULARIES, carried
from t2t_jax.extras.trackers.tracker import OpenRun


@dataclass(frozen=True)
class TwinConfig(EncoderDecoderConfig):
    architecture: str = "twin"


TRANSFORMER = "t2t_jax.modules.transformer:Transformer"
DECODING = "t2t_jax.modules.cached_decoding:TransformerDecoding"
TWIN = Family(TwinConfig, TRANSFORMER, DECODING)
SORTING = TaskFacts(
    ("twin",),
    "t2t_jax.data.corpus:pair_splits",
    ("bleu", "BLEU"),
    ("translate",),
    writes_text=True,
    task="t2t_jax.tasks.translation:TASK",
)
NAMES = Format("the names of the parameters", object="everything.parts:EXPORT")


def write(model, directory):
    (directory / "names").write_text("\\n".join(model.arrays))


EXPORT = SimpleNamespace(VOCABULARIES=VOCABULARIES, carried=carried, write=write)


def open_steps(project, number, workdir):
    def send(rows):
        for row in rows:
            Path(project).write_text(f"{row.step}")

    return OpenRun(send, lambda *_: None)
"""


@dataclass(frozen=True)
class TwinConfig(EncoderDecoderConfig):
    """The family of the paper under another name."""

    architecture: str = "twin"


TRANSFORMER = "t2t_jax.modules.transformer:Transformer"
DECODING = "t2t_jax.modules.cached_decoding:TransformerDecoding"
TWIN = Family(TwinConfig, TRANSFORMER, DECODING, tasks=("translation",))


def install(site, name, code):
    """Install a package with a plugin, and a command, as pip does: the code beside its metadata."""
    module = name.replace("-", "_")
    info = site / f"{module}-1.0.dist-info"
    for folder in (info, site / module):
        folder.mkdir(parents=True)
    (site / module / "__init__.py").write_text(code)
    (site / module / "hello_command.py").write_text(COMMAND)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{plugins.GROUP}]\n{name} = {module}:PLUGIN\n")


def call(site, *arguments, code=0):
    program = (
        f"import sys; sys.path.append({str(site)!r})\n"
        "from t2t_jax.__main__ import start\n"
        f"sys.argv = ['t2t-jax', *{arguments!r}]\nstart()"
    )
    paths = os.pathsep.join([str(site), str(ROOT)])  # for the processes of trackers, too
    return run_python("-c", program, code=code, PYTHONPATH=paths)


@pytest.fixture
def hello(tmp_path):
    install(tmp_path, "hello-plugin", PACKAGE)
    return tmp_path


def test_the_command_of_an_installed_package_is_listed_and_runs(hello):
    listed = call(hello, "--help")
    assert listed.stderr == ""
    assert "\n  init           write a config" in listed.stdout
    assert ["hello", "greet", "somebody"] in [line.split() for line in listed.stdout.split("\n")]
    assert call(hello, "hello", "--name", "you").stdout == "hello you\n"
    text = call(hello, "hello", "--help").stdout
    assert "--name TEXT\n      Whom to greet. (default: world)" in text


@pytest.mark.thorough
def test_a_run_has_the_task_family_format_and_tracker_of_an_installed_package(tmp_path):
    install(tmp_path, "everything", EVERYTHING)
    (tmp_path / "everything/parts.py").write_text(PARTS)
    run, sent = tmp_path / "run", tmp_path / "sent"
    sizes = ("d_model", 16), ("num_heads", 2), ("num_encoder_layers", 1), ("num_decoder_layers", 1)
    flags = [f"--model.{name}={size}" for name, size in sizes]
    flags += ["--model.architecture=twin", "--data.task=sorting", f"--track=steps:{sent}"]
    flags += ["--training.num-train-steps=2", "--evaluation.num-sentences=2"]

    trained = call(tmp_path, "train", "--config", "configs/quickstart.py", str(run), *flags)
    assert trained.stderr == ""
    assert json.loads((run / "config.json").read_text())["model"]["architecture"] == "twin"
    assert sent.read_text() == "2"
    call(tmp_path, "export", str(run), str(tmp_path / "exported"), "--to", "names")
    assert "decoder.layers.0.self_attention.W_Q" in (tmp_path / "exported/names").read_text()
    gone = call(tmp_path / "nowhere", "translate", str(run), code=2)
    assert "model.architecture='twin' is not one of" in gone.stderr
    assert gone.stderr.endswith("or in a file of T2T_JAX_REGISTER, or its package installed\n")


@pytest.fixture
def added(monkeypatch):
    """Add the rows of a plugin in this process."""

    def add(**of_kinds):
        plugin = plugins.Plugin(**of_kinds, package="mine")
        monkeypatch.setattr(plugins, "plugins", lambda: [*OURS, plugin])

    plugins.warn_once.cache_clear()
    return add


def test_a_family_learns_the_tasks_that_it_names(added):
    added(families={"twin": f"{__name__}:TWIN"})
    assert Config().replace({"model.architecture": "twin"}).model == TwinConfig()
    with pytest.raises(UserError, match=r"data.task='language_modelling' is not for .*='twin'"):
        Config().replace({"model.architecture": "twin", "data.task": "language_modelling"})


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("nowhere:ROW", r"cannot be imported \(ModuleNotFoundError: No module named 'nowhere'\)"),
        ("math:pi", "math:pi of the package math is a float, not a Family"),
        ("math:nothing", "cannot be imported .AttributeError"),
    ],
)
def test_a_broken_row_is_named_and_the_others_work(place, problem, added, capsys):
    added(families={"twin": f"{__name__}:TWIN", "broken": place})
    with pytest.raises(UserError, match=problem):
        Config().replace({"model.architecture": "broken"})
    with pytest.raises(UserError, match=r"is for .*'image_encoder', not for 'twin'"):
        Config().replace({"model.architecture": "twin", "model.patch_size": 2})
    assert capsys.readouterr().err.startswith("warning: left out: broken in the families: ")


def test_a_row_takes_no_name_of_the_core(added, capsys):
    added(tasks={"auto": "nowhere:ROW", "parsing": "nowhere:ROW"})
    with pytest.raises(UserError, match=r"data.task='x' is not one of 'auto', "):
        Config().replace({"data.task": "x"})
    warnings = capsys.readouterr().err
    assert "auto in the tasks of the package mine (t2t-jax has that name)" in warnings
    assert "parsing in the tasks of the package mine (t2t-jax has that name)" in warnings


@pytest.mark.parametrize(
    ("code", "warning"),
    thorough_after(
        4,
        [
            ("import nowhere_to_be_found", "the plugin of the package broken-plugin (ModuleNot"),
            ("raise SystemError('a\\nb')", "the plugin of the package broken-plugin (SystemErr"),
            (
                PACKAGE.replace("(commands", "(tasks={'x': 3}, commands"),
                "x in the tasks needs a reference, MODULE:NAME",
            ),
            (PACKAGE.replace("(commands", "(tasks=['x'], commands"), "object has no attribute"),
            (PACKAGE.replace("(commands", "(corpora={'x': 'y:z'}, commands"), "needs a CorpusRow"),
            ("PLUGIN = 3", "broken_plugin:PLUGIN is a int, not a Plugin"),
            ("raise SystemExit('no licence')", "broken-plugin (SystemExit: no licence)"),
            (
                PACKAGE.replace('("first steps", ', "(").replace('somebody")', 'you")'),
                "a group and a line",
            ),
            ("", "broken-plugin (AttributeError: module 'broken_plugin' has no attribute 'PLUGI"),
            (
                PACKAGE.replace('"hello":', '"train":'),
                "train in the commands of the package broken-plugin (t2t-jax has that name)",
            ),
            (
                PACKAGE.replace('"hello":', '"serve":'),
                "package broken-plugin (t2t_jax.extras.serving has that name)",
            ),
            (PACKAGE, "of the package hello-plugin (broken-plugin has that name)"),
        ],
        unpacked=True,
    ),
)
def test_a_broken_package_is_named_in_one_line_and_the_other_commands_work(code, warning, hello):
    install(hello, "broken-plugin", code)
    done = call(hello, "hello")
    assert done.stdout == "hello world\n"
    assert warning in done.stderr
    assert done.stderr.startswith("warning: left out: ")
    assert done.stderr.count("\n") == 1
    assert "update or uninstall it" in done.stderr


def test_a_command_whose_module_is_broken_is_refused_in_one_line(hello):
    install(hello, "lost-plugin", PACKAGE.replace("hello", "lost"))
    assert call(hello, "hello").stderr == ""
    done = call(hello, "lost", code=2)
    assert done.stderr.startswith(
        "error: lost_plugin.lost_command:LostCommand of the package lost_plugin cannot be imported "
        "(ModuleNotFoundError: No module named 'lost_plugin.lost_command'); update or uninstall it"
    )
    assert done.stderr.count("\n") == 1


def test_every_extra_is_a_plugin_whose_places_are_there():
    folder = Path(t2t_jax.__file__).parent / "extras"
    names = [f"t2t_jax.extras.{module.name}" for module in iter_modules([str(folder)])]
    assert [plugin.package for plugin in OURS] == names
    for plugin in OURS:
        commands = map(command_reference, plugin.commands)
        others = (plugin.flags, plugin.names, plugin.remarks)
        places = [*commands, *(place for kind in others for place in kind.values())]
        assert places
        for place in places:
            assert place.startswith(f"{plugin.package}.")
            assert plugins.load(place).__doc__


def test_the_contract_has_the_extras_that_rows_name():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    [contract] = (one for one in contracts if one["type"] == "independence")
    assert sorted(contract["ignore_imports"]) == sorted(
        f"{plugin.package}.** -> t2t_jax.extras.{used}.**"
        for plugin in OURS
        for used in plugin.uses
    )


FLAGS = """
from contextlib import contextmanager
from dataclasses import dataclass

from t2t_jax.plugins import Plugin, TrainingFlags


@dataclass(frozen=True)
class Flags(TrainingFlags):
    instead = ("count",)
    shout: bool = False
    '''Shout before and after.'''
    count: int | None = None
    '''Count, and train nothing.'''

    def check(self, workdir):
        print("checks", workdir)

    def run(self, config):
        print(self.count, config.model.d_ff)
        return 7


PLUGIN = Plugin(flags={"train": "shout_plugin:Flags", "sweep": "shout_plugin:Flags"})
"""


def test_a_package_adds_flags_to_train_and_sweep(tmp_path):
    install(tmp_path, "shout-plugin", FLAGS)
    base = "train", "--config", "base"
    assert call(tmp_path, *base, "--count", "3", "--model.d-ff", "5", code=7).stdout == "3 5\n"
    for name in "train", "sweep":
        assert "--shout\n      Shout before and after." in call(tmp_path, name, "--help-all").stdout
    refused = call(tmp_path, *base, "--count", "3", "--dry-run", code=2).stderr
    assert refused.startswith("error: --dry-run cannot be combined with --count, which")
    install(tmp_path, "other-plugin", FLAGS.replace("shout_plugin", "other_plugin"))
    done = call(tmp_path, *base, "--count", "3", "--model.d-ff", "5", code=7)
    assert "left out: the flags of train of the package shout-plugin (other-plugin" in done.stderr


def test_flags_reach_another_process_as_text():
    kinds = plugins.added_flags("sweep")
    given = [kind(**{one.name: ("a:b",) for one in fields(kind)}) for kind in kinds]
    assert plugins.flags_from([one.as_text() for one in given], "sweep") == [
        kind(**{name: [*value] for name, value in vars(one).items()})
        for kind, one in zip(kinds, given, strict=True)
    ]
    assert plugins.flags_from([], "sweep") == [kind() for kind in kinds]


CORPORA = """
from t2t_jax.plugins import CorpusRow, Plugin

ROW = CorpusRow("greet_plugin:splits", "WORD")
PLUGIN = Plugin(corpora={"greet": ROW, "text": ROW, "wmt14-en-de": ROW})


def splits(name, config):
    from t2t_jax.data.splits import Split, chunks

    pair = "hello", name.partition(":")[2]
    return {"train": Split.of(str, lambda word: chunks(iter([pair])), pair)}
"""
READER = """
import sys
sys.path.append(sys.argv[1])
from t2t_jax.config import DataConfig
from t2t_jax.data.corpus import open_corpus

print(open_corpus(DataConfig("greet:hallo+greet:tag*2")).lines("train"))
open_corpus(DataConfig("greets:hallo"))
"""


def test_a_package_adds_a_scheme_of_corpora_but_takes_none(tmp_path):
    install(tmp_path, "greet-plugin", CORPORA)
    done = run_python("-c", READER, tmp_path, code=1)
    assert done.stdout == "(['hello', 'hello', 'hello'], ['hallo', 'tag', 'tag'])\n"
    refusal = "in the corpora of the package greet-plugin (t2t-jax has that name)"
    assert [done.stderr.count(f"{one} {refusal}") for one in ("text", "wmt14-en-de")] == [1, 1]
    assert "iwslt14-de-en:DIR, greet:WORD, nor a mixture" in done.stderr
