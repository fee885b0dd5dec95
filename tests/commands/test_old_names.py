"""Commands under the names of 0.2.0: the same output as by the new name, with one warning."""

import json
import re

import pytest

from t2t_jax.__main__ import main
from t2t_jax.version import RENAMED
from tests.selection import thorough_after

TREES = ["--gold", "FOLDER/test.mrg", "--predicted", "FOLDER/dev.mrg", "FOLDER/test.mrg"]
LINES = [
    ("bleu", "translator", ["--workdir", "RUN", "--before-averaging", "--num-sentences", "2"]),
    ("parseval", "parser", ["RUN", "--beam-size", "1", "--json"]),
    ("perplexity", "language model", ["RUN", "--json"]),
    ("accuracy", "image classifier", ["RUN", "--split", "dev"]),
    ("compare-trees", "parser", TREES),
    ("parse", "parser", ["RUN", "--input", "FOLDER/test.en"]),
    ("goodput", "translator", ["RUN"]),
]


def without_times(text):
    """The output of a command without what differs between two calls of it."""
    return re.sub(r'("seconds": |seconds +)[\d.]+ *', r"\1", text)


@pytest.mark.parametrize("line", thorough_after(2, LINES), ids=lambda line: line[0])
def test_an_old_command_line_gives_the_same_with_one_warning(line, corpora, runs, capfd):
    name, family, flags = line
    places = {"RUN": str(runs[family]), "FOLDER": str(corpora)}
    flags = [re.sub("RUN|FOLDER", lambda match: places[match[0]], flag) for flag in flags]
    new_name = RENAMED[f"t2t-jax {name}"].name.removeprefix("t2t-jax ")
    new_flags = [RENAMED[flag].name if flag in RENAMED else flag for flag in flags]
    assert main([new_name, *new_flags]) == 0
    new = capfd.readouterr()
    assert main([name, *flags]) == 0
    old = capfd.readouterr()
    assert new.out
    assert without_times(old.out) == without_times(new.out)
    warning = (
        f"warning: t2t-jax {name} is now called t2t-jax {new_name}, and later versions refuse the "
        "old name\n"
    )
    assert old.err == warning + new.err


def test_the_lines_name_every_old_command():
    old = {name.removeprefix("t2t-jax ") for name in RENAMED if name.startswith("t2t-jax ")}
    assert {name for name, *_ in LINES} == old


def test_an_old_flag_of_a_new_command_warns_as_well(corpora, capfd):
    files = ["--references", str(corpora / "test.mrg"), "--predicted", str(corpora / "dev.mrg")]
    assert main(["compare", *files]) == 0
    assert capfd.readouterr().err.startswith("warning: --predicted is now called --hypotheses, ")


def test_the_help_of_an_old_command_is_that_of_the_new_one(capfd):
    with pytest.raises(SystemExit):
        main(["bleu", "--help"])
    printed = capfd.readouterr()
    assert printed.out.startswith("usage: t2t-jax evaluate RUN ")
    assert json.dumps(printed.err).count("\\n") == 1
