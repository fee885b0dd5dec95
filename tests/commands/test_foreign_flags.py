"""The flags of other programs, with the meanings that their own documents and sources give them."""

import pytest

from t2t_jax import Config, UserError
from t2t_jax.commands.entry import command_class, entry_command
from t2t_jax.commands.flag_table import flags_of
from t2t_jax.commands.foreign_flags import _BY_FLAG, _FLAGS_IN_HINT, ALIASES
from t2t_jax.commands.groups import all_commands
from t2t_jax.commands.train import train_command
from tests.refusals import refused

SAME = [(own, alias) for own, names in ALIASES.items() if "." in own for alias in names]
"""Flags of a training and their names elsewhere."""
OTHER = {hint: flag for flag, hint in _BY_FLAG.items()}
"""A flag with each hint: it does another thing, or counts in another unit."""
FRACTIONS = "training.ema_decay", "training.clip_gradient_norm", "training.peak_learning_rate"


def known_flags(command: str) -> set[str]:
    return {flag.flag for flag in flags_of(command_class(command))} | {"--workdir"}


def another_value(path: str) -> object:
    """Return a value of a field that is not its default."""
    default = Config().value(path)
    if isinstance(default, str):
        return "fr"
    if isinstance(default, float) or path in FRACTIONS:
        return ((default or 0.0) + 1) / 2
    return (default or 0) + 8


@pytest.mark.parametrize(("own", "alias"), SAME)
def test_a_flag_that_does_the_same_elsewhere_is_an_alias(own, alias):
    path = own.removeprefix("--").replace("-", "_")
    value = another_value(path)
    by_alias, by_name = (
        train_command(["--config", "base", "w", flag, str(value)])
        for flag in (alias.replace("-", "_").replace("__", "--", 1), own)
    )
    assert by_alias == by_name
    assert by_alias.fields.value(path) == value


@pytest.mark.parametrize(("hint", "flag"), OTHER.items(), ids=OTHER.values())
def test_a_flag_that_does_another_thing_elsewhere_is_refused_with_a_way_out(hint, flag):
    spelt = flag.replace("-", "_").replace("__", "--", 1)  # as Python's argparse has them
    is_for_training = {*_FLAGS_IN_HINT.findall(hint)} <= known_flags("train")
    with refused(hint if is_for_training else "see --help-all") as refusal:
        train_command(["--config", "base", "w", spelt, "1"])
    assert str(refusal.value).startswith(f"unknown flag {spelt}; ")


@pytest.mark.parametrize("line", ["--beam 3", "--num_beams 3"])
def test_the_flags_of_a_search_have_aliases_too(line):
    assert entry_command(["translate", "w", *line.split()]).decoding.beam_size == 3


@pytest.mark.parametrize("flag", ["--data", "--batch-size", "--epochs"])
def test_a_hint_for_training_is_not_given_to_a_translation(flag):
    with pytest.raises(UserError, match=f"unknown flag {flag}; see --help-all for all flags"):
        entry_command(["translate", "w", flag, "1"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--lr 1 --training.peak-learning-rate 2", "is given twice, first as --lr; give it once"),
        ("--lr 1 --lr=2", "--lr is given twice; give it once"),
        ("--lr=", "--training.peak-learning-rate is given an empty value"),
    ],
)
def test_an_alias_is_the_flag_itself(line, message):
    with pytest.raises(UserError, match=message):
        train_command(["--config", "base", "w", *line.split()])


def test_no_alias_is_a_flag_of_a_command_that_has_both():
    for command in (
        name for names in all_commands().values() for name in names if name != "launch"
    ):
        known = known_flags(command)
        assert not known & {name for flag in known for name in ALIASES.get(flag, ())}


def test_every_hint_names_flags_of_a_command():
    known = known_flags("train"), known_flags("translate")
    for hint in _BY_FLAG.values():
        assert any({*_FLAGS_IN_HINT.findall(hint)} <= flags for flags in known), hint
    assert not {*_BY_FLAG} & {name for names in ALIASES.values() for name in names}


def test_help_finds_a_flag_by_an_alias(capsys):
    with pytest.raises(SystemExit):
        entry_command(["train", "--help", "lr"])
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("--training.peak-learning-rate FLOAT|None")
    assert "Also --lr." in shown
