"""The program `t2t-jax`: one door to every command, from a clone or an installed wheel."""

import contextlib
import inspect
import re
import runpy
import subprocess
import sys
import tomllib
import zipfile
from importlib import import_module

import pytest

import t2t_jax
from t2t_jax.__main__ import main
from t2t_jax.commands.entry import command_class
from t2t_jax.commands.groups import all_commands
from tests.programs import ROOT, run_program, run_python
from tests.refusals import refused

NAMES = [name for group in all_commands().values() for name in group]


def test_the_map_has_every_command_in_one_line(capsys):
    for arguments in ([], ["--help"], ["-h"]):
        assert main(arguments) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 80
        entries = [line.strip() for line in lines if line.startswith("  ")]
        names = [entry.partition("  ")[0] for entry in entries[:-2]]
        assert names == NAMES
        assert all(entry.startswith("t2t-jax ") for entry in entries[-2:])
        assert len(lines) <= 40
        assert len(names) <= 23


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_the_version_is_printed(flag, capsys):
    assert main([flag]) == 0
    assert capsys.readouterr().out == f"t2t-jax {t2t_jax.__version__}\n"


def test_every_command_has_a_file_of_its_own():
    for name in NAMES:
        module = sys.modules[command_class(name).__module__]
        defined = [
            value
            for value in vars(module).values()
            if inspect.isclass(value) and value.__module__ == module.__name__
        ]
        assert [one.__name__.lower() for one in defined] == [re.sub("[- ]", "", name) + "command"]


def test_a_command_explains_itself_under_the_name_it_was_called_by(capsys):
    with pytest.raises(SystemExit) as end:
        main(["data", "prepare", "--help"], "python -m t2t_jax")
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("usage: python -m t2t_jax data prepare ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evalute"], "t2t-jax has no command 'evalute'; did you mean evaluate?"),
        (["qqq"], "t2t-jax has no command 'qqq'; see t2t-jax --help"),
        (["--workdir", "w", "evaluate"], "t2t-jax takes a command before its flags, as in t2t-jax"),
        (["train"], "t2t-jax train takes a config and the directory of the run"),
        (["train", "--config", "base"], "t2t-jax train takes a run, as in t2t-jax train runs/base"),
        (["train", "--workdir", "w", "--stpe"], "unknown flag --stpe; "),
        (["sweep"], "a sweep takes a config file with VARIANTS and a directory"),
        (["evaluate", "--beamsize", "3"], "unknown flag --beamsize; did you mean --beam-size?"),
        (["evaluate", "w", "--step", "worst"], "--step: no type matching"),
        (["evaluate", "w", "--beam-size", "0"], "beam_size=0 is outside"),
        (["compare", "--workdir", "w"], "unknown flag --workdir; see --help-all for all flags"),
        (["train", "--version"], "the version is printed by t2t-jax --version"),
    ],
)
def test_a_bad_command_line_is_refused_by_the_name_of_the_program(arguments, message):
    with refused(message):
        main(arguments)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["train.py", "--help"], "train.py train"),
        (["train.py", "report", "--help"], "train.py report"),
        (["eval.py", "train", "--help"], "eval.py train"),
        (["eval.py", "--help"], "eval.py COMMAND"),
    ],
)
def test_the_programs_of_a_clone_know_every_command(arguments, shown, capsys):
    program, *rest = arguments
    with contextlib.suppress(SystemExit):
        assert runpy.run_path(str(ROOT / program))["main"](rest) == 0
    assert capsys.readouterr().out.startswith(f"usage: {shown} ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train.py"], "train.py train takes a config and the directory of the run"),
        (["train.py", "trian"], "train.py has no command 'trian'; did you mean train?"),
        (["eval.py", "--workdir", "w"], "eval.py takes a command before its flags"),
    ],
)
def test_the_programs_of_a_clone_refuse_a_mistake_by_their_own_names(arguments, message):
    program, *rest = arguments
    with refused(message):
        runpy.run_path(str(ROOT / program))["main"](rest)


def test_the_map_help_and_mistakes_do_not_wait_for_jax():
    for arguments, code in ([], 0), (["sweep", "--help"], 0), (["evaluate", "--beamsize", "3"], 2):
        check = (
            f"import runpy, sys; sys.argv = ['t2t-jax', *{arguments!r}]\n"
            "try: runpy.run_module('t2t_jax', run_name='__main__')\n"
            "finally: assert not {'jax', 'flax', 'sacrebleu', 'grain'} & sys.modules.keys()\n"
        )
        done = run_python("-c", check, code=code)
        assert done.stderr.count("\n") == (1 if code else 0)
        assert done.stderr.startswith("error: unknown flag --beamsize; did" if code else "")


def test_the_installed_script_is_the_entry_point():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, function = project["scripts"]["t2t-jax"].partition(":")
    assert callable(getattr(import_module(module), function))


TINY = """
from t2t_jax import Config

def get_config():
    return Config().replace({
        "model.d_model": 16, "model.num_heads": 2, "model.d_ff": 32,
        "model.num_encoder_layers": 1, "model.num_decoder_layers": 1,
        "data.vocab_size": 300, "data.max_length": 32, "data.cache_dir": "cache",
        "data.source_tokens_per_step": 64, "data.target_tokens_per_step": 64,
        "training.num_train_steps": 3, "evaluation.num_sentences": 2,
    })
"""


@pytest.mark.slow
def test_a_wheel_needs_no_clone(tmp_path):
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "--quiet"]
    subprocess.run([*pip, "wheel", ROOT, "--no-deps", "--wheel-dir", tmp_path], check=True)
    [wheel] = tmp_path.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", site, wheel], check=True)
    with zipfile.ZipFile(wheel) as packed:
        assert "t2t_jax/configs/quickstart.py" in packed.namelist()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "own.py").write_text(TINY)
    installed = {"PYTHONPATH": str(site)}

    def run(*arguments, said=""):
        program = site / "bin" / "t2t-jax"
        done = run_program(program, *arguments, cwd=tmp_path / "elsewhere", stdin=said, **installed)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        return done.stdout

    code = "from t2t_jax.errors import installing; print(installing('serve'))"
    told = run_python("-c", code, code=0, cwd=tmp_path, **installed)
    assert told.stdout == f"pip install '{wheel}[serve]'\n"
    assert "--model.d-model" in run("train", "--config", "configs/quickstart.py", "--help")
    assert run("init", "mine").startswith("mine has config.py, README.md, run.sh;")
    assert "20 variants" in run("sweep", "--config", "configs/table3_small.py", "--dry-run")
    assert "3 steps are done" in run("train", "--config", "own.py", "--workdir", "runs/own")
    job = run("launch", "slurm", "--print", "--", "train", "--workdir", "runs/own")
    assert job.startswith("#!/bin/bash\n")
    assert run("translate", "--workdir", "runs/own", said="hello\n").count("\n") == 1
