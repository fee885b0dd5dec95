"""Every benchmark understands its commands in the documents, and begins without its extras."""

import argparse
import importlib
import os
import re
import shlex
import sys

import pytest

from t2t_jax.config.file import load_grid
from t2t_jax.errors import UserError
from tests.programs import ROOT, run_python

PROGRAMS = sorted(
    path.stem
    for path in (ROOT / "benchmarks").glob("*.py")
    if "__main__" in path.read_text(encoding="utf-8")
)
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")),
    *(path for path in (ROOT / "docs").rglob("*.md") if "/docs/_" not in str(path)),
]


def _commands():
    """Yield the calls of benchmarks in the documents, in blocks of code and within sentences."""
    for path in DOCUMENTS:
        text = re.sub(r"\\\n\s+", "", path.read_text(encoding="utf-8"))
        for name, arguments in re.findall(r"python benchmarks/([a-z]\w*)\.py([^`\n#]*)", text):
            words = shlex.split(arguments)
            yield pytest.param(name, words, id=f"{path.name}: {name} {' '.join(words)}")


COMMANDS = list(_commands())


class _ParsedError(Exception):
    """The end of a program that has parsed its command line."""


def _only_parse(monkeypatch, program):
    """Have a program end when it has parsed its command line."""

    def ending(parse):
        def parsed(*arguments, **settings):
            parse(*arguments, **settings)
            raise _ParsedError

        return parsed

    for module in (program, importlib.import_module("command_line")):
        if hasattr(module, "parse_flags"):
            monkeypatch.setattr(module, "parse_flags", ending(module.parse_flags))
    argparser = argparse.ArgumentParser
    monkeypatch.setattr(argparser, "parse_args", ending(argparser.parse_args))


@pytest.mark.parametrize(("name", "arguments"), COMMANDS)
def test_a_command_of_the_documents_is_understood(module, monkeypatch, name, arguments):
    program = module(name)
    _only_parse(monkeypatch, program)
    monkeypatch.chdir(ROOT)
    with pytest.raises(_ParsedError):
        program.main(arguments)


def test_every_benchmark_has_a_command_in_its_readme():
    text = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")
    assert [name for name in PROGRAMS if f"benchmarks/{name}.py" not in text] == []


@pytest.mark.thorough
def test_no_program_needs_an_extra_to_begin():
    """What a program needs of an extra it asks for in one line, and not by a traceback."""
    absent = ("matplotlib", "plotext", "torch", "transformers", "ctranslate2", "libtpu", "scipy")
    code = f"import sys\nsys.modules.update(dict.fromkeys({absent}))\n"
    code += "".join(f"import {name}\n" for name in PROGRAMS)
    folders = os.pathsep.join([str(ROOT / "benchmarks"), str(ROOT)])
    run_python("-c", code, code=0, PYTHONPATH=folders)


def test_a_missing_library_of_pictures_is_one_line(module, monkeypatch, tmp_path):
    (tmp_path / "table.csv").write_text("variant,perplexity_mean\n")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "t2t_jax.system.drawing", raising=False)
    with pytest.raises(UserError, match=r"needs matplotlib.*plots"):
        module("mup").main([str(tmp_path), str(tmp_path)])


def test_the_page_of_rates_has_the_best_of_each_width(module, tmp_path):
    pytest.importorskip("matplotlib")
    variants = load_grid(str(ROOT / "configs/mup_small.py")).variants
    rows = [f"{name},{10 + number}" for number, name in enumerate(variants)]
    (tmp_path / "table.csv").write_text("\n".join(["variant,perplexity_mean", *rows]))
    assert module("mup").main([str(tmp_path), str(tmp_path), "--note", "somewhere"]) == 0
    page = (tmp_path / "mup_small.md").read_text()
    assert "| mup | 512 |" in page
    assert (tmp_path / "mup_small.png").read_bytes().startswith(b"\x89PNG")
