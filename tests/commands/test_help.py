"""The help of every command, and how every command takes a run."""

import re
import shlex
from dataclasses import is_dataclass
from pathlib import Path

import pytest

from t2t_jax import Config, UserError
from t2t_jax.__main__ import main
from t2t_jax.commands.entry import command_class, entry_command
from t2t_jax.commands.flag_table import flags_of
from t2t_jax.commands.groups import all_commands
from t2t_jax.commands.help import COMMON
from t2t_jax.config.config import known_fields
from tests.programs import run_python
from tests.refusals import refused

NAMES = [name for group in all_commands().values() for name in group]
BUT_LAUNCH = [name for name in NAMES if name != "launch"]  # whose flags are of its schedulers

AHEAD = {"import": ["marian", "model"], "figures": ["pictures"]}
"""What stands ahead of the run."""
BEHIND = {
    "publish": ["hf://me/mine"],
    "explore": ["--text", "a", "--output", "v.html"],
    "export": ["out", "--to", "safetensors"],
    "score": ["--source", "s", "--target", "t"],
    "track": ["wandb:x"],
    "train": ["--config", "configs/quickstart.py"],
    "sweep": ["--config", "configs/table3_small.py"],
}
"""What else a command needs."""
HEAVY = {
    *("jax", "flax", "numpy", "scipy", "rich", "typeguard", "sacrebleu", "regex", "grain"),
    *("orbax", "tensorflow_datasets", "sentencepiece", "starlette", "matplotlib", "yaml"),
}
WITHOUT_RUN = {"data", "init", "launch", "compare"}
OF_A_CONFIG = {"config", "data prepare"}
SEVERAL = {"watch", "serve", "translate", "evaluate", "score"}


def printed(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    assert end.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", sorted({*NAMES} - WITHOUT_RUN - OF_A_CONFIG))
def test_every_command_takes_a_run_with_and_without_a_flag(name):
    ahead, behind = AHEAD.get(name, []), BEHIND.get(name, [])
    runs = ["runs/a", "runs/b"] if name in SEVERAL else ["runs/a"]
    expected = tuple(map(Path, runs)) if name in SEVERAL else Path("runs/a")
    lines = (
        [*ahead, *runs, *behind],
        [*ahead, "--workdir", *runs, *behind],
        [*ahead, *behind, "--workdir", *runs],
    )
    found = [entry_command([name, *line]) for line in lines]
    assert [one.workdir for one in found] == [str(expected) if name == "publish" else expected] * 3
    assert found[0] == found[1] == found[2]
    if name not in SEVERAL:
        assert entry_command([name, *ahead, *behind, "--workdir=runs/a"]) == found[0]
    if name != "track":  # where the other word names a tracker
        with pytest.raises(UserError, match="'runs/a' and --workdir both name the run"):
            entry_command([name, *ahead, "runs/a", *behind, "--workdir", "runs/c"])
    with pytest.raises(UserError, match="--workdir is given an empty value"):
        entry_command([name, *ahead, *behind, "--workdir", ""])


def test_the_commands_that_take_no_run_are_known():
    taking = {
        name for name in BUT_LAUNCH if any(one.is_run for one in flags_of(command_class(name)))
    }
    assert {*NAMES} - taking == WITHOUT_RUN


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("figures --workdir runs/a", "DIR is missing; see --help"),
        ("import --workdir runs/a marian", "PATH is missing; see --help"),
        ("evaluate --split test runs/a", "t2t-jax evaluate takes a run, as in t2t-jax evaluate"),
        ("report runs/a runs/b", "Unrecognized options: runs/b"),
        ("evaluate --workdir", "--workdir has no value; name the directory of the run after it"),
        ("evaluate ''", "an argument is empty; is a shell variable unset?"),
        ("--help trian", "t2t-jax has no command 'trian'; did you mean train?"),
        ("init --help modell", "there is no such section or flag; --help has all flags"),
        ("train --help modell", "--help modell: there is no such section or flag; did you mean mo"),
    ],
)
def test_a_run_in_the_wrong_place_is_refused_in_one_line(line, message):
    with refused(message):
        entry_command(shlex.split(line))


def test_common_fields_are_fields_of_the_config():
    assert {*COMMON} <= {*known_fields()}
    assert len(COMMON) == len({*COMMON})


@pytest.mark.parametrize("name", NAMES)
def test_every_help_fits_its_terminal(name, capsys, monkeypatch):
    for columns in 80, 60:
        monkeypatch.setenv("COLUMNS", str(columns))
        short = printed(capsys, name, "--help").splitlines()
        whole = printed(capsys, name, "--help-all").splitlines()
        assert short[0].startswith(f"usage: t2t-jax {name} ")
        for line in short + whole:
            assert len(line) <= columns or len(line.split()) <= 2 or "usage:" in line
        assert "\x1b" not in "".join(short)
        if columns == 80:
            assert len(short) <= 65


def test_the_short_help_of_train_has_the_common_fields_and_the_long_one_all(capsys):
    short, whole = (printed(capsys, "train", flag) for flag in ("--help", "--help-all"))
    flags = {flag: f"  {flag.flag} " in short for flag in flags_of(command_class("train"))}
    in_config = {flag.name: shown for flag, shown in flags.items() if flag.section}
    family = {"model.patch_size"}  # of images
    assert {name for name, shown in in_config.items() if shown} == {*COMMON} - family
    assert "\n  --model.d-ff 2048  " in short
    assert "\n  --write-program " in whole
    assert "\n  --write-program " not in short


def test_help_of_a_section_or_a_flag_has_that_alone(capsys):
    section = printed(capsys, "train", "--config", "configs/quickstart.py", "--help", "checkpoint")
    flags = re.findall(r"^  (--\S+)", section, re.MULTILINE)
    assert flags == [
        f"--{path.replace('_', '-')}" for path in known_fields() if path.startswith("checkpoint.")
    ]
    one = printed(capsys, "translate", "--help", "beam-size")
    assert re.findall(r"^  (--\S+)", one, re.MULTILINE) == ["--beam-size"]
    encoder = printed(capsys, "train", "--config", "configs/vit_digits.py", "--help", "model")
    assert "--model.patch-size" in encoder
    assert "--model.num-decoder-layers" not in encoder


@pytest.mark.parametrize("name", BUT_LAUNCH)
def test_examples_of_a_help_are_command_lines(name, monkeypatch):
    found = {Path("runs/mine"): Config()}  # runs that there are
    for module in "train", "config":
        monkeypatch.setattr(f"t2t_jax.commands.{module}.stored_config", found.get)
    kind = command_class(name)
    assert is_dataclass(kind)
    for example in getattr(kind, "examples", ()):
        assert entry_command([name, *shlex.split(example)])


def test_help_imports_nothing_heavy():
    check = (
        "import sys\n"
        "from t2t_jax.__main__ import main\n"
        f"heavy = {HEAVY}\n"
        f"for name in {NAMES!r}:\n"
        "    try: main([name, '--help'])\n"
        "    except SystemExit as end: assert not end.code\n"
        "    found = heavy & sys.modules.keys()\n"
        "    assert not found, (name, found)\n"
    )
    run_python("-c", check, code=0)
