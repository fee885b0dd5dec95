"""The width of consoles."""

import io

import pytest
from rich.table import Table

from t2t_jax.commands.tables import print_result
from t2t_jax.system.console import ProgressConsole, ResultConsole


@pytest.mark.parametrize("console", [ResultConsole, ProgressConsole])
def test_only_a_terminal_has_a_width(console, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    line = "word " * 100
    for file, num_lines in ((Terminal(), 7), (io.StringIO(), 1)):
        console(file=file, force_terminal=False).print(line)
        assert len(file.getvalue().splitlines()) == num_lines


def test_a_pipe_gets_whole_rows(capsys):
    table = Table(box=None)
    table.add_column("name")
    table.add_row("a-name-of-a-file" * 20)
    print_result(table)
    assert "a-name-of-a-file" * 20 in capsys.readouterr().out
