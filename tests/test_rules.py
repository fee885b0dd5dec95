"""The rules of CONTRIBUTING that no linter knows: sizes that only go down, and names of files."""

import ast
import importlib
import importlib.util
import io
import re
import tokenize
from dataclasses import fields
from pathlib import Path

import t2t_jax
from t2t_jax.commands.groups import all_commands
from t2t_jax.config import Config

PACKAGE = Path(t2t_jax.__file__).parent
ROOT = PACKAGE.parent
TREES = {
    path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(PACKAGE.rglob("*.py"))
}
NODES = [node for tree in TREES.values() for node in ast.walk(tree)]
MOST_LINES_OF_A_FUNCTION, MOST_LINES_OF_A_FILE = 80, 600
MOST = {
    "lines of code of the core": 22_594,
    "lines of code of the extras": 9_120,
    "lines of code of the tests": 36_639,
    "lines of code of tests/against": 1_772,
    "lines of code of the benchmarks": 4_146,
    "lines of code of the examples": 648,
    "words of the documents": 50_892,
    "words of the docstrings": 65_780,
    "config fields": 120,
    "commands": 23,
    "names that are pronouns or participles": 2,  # in checkpoints; an argument of `Translator`
}
"""Upper bounds of the project's size. They only go down: whoever makes room lowers the number."""

_NO_NOUN = re.compile(
    "given|found|made|own|kept|what|how|known|one|each|others?|those|whole|rest|places?|there|told"
    "|wanted|named|asked|said|shown|taken|left|so_far|meant|looking|same"
)
"""Names that do not say what a variable or an argument holds: use a noun of the field."""

_NO_CODE = {
    *(tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}


def lines_of_code(text):
    """Count the lines on which a token starts that is no comment and no docstring."""
    strings = {
        (node.lineno, node.col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)
    }
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return len({t.start[0] for t in tokens if t.type not in _NO_CODE and t.start not in strings})


def _code_in(folder):
    return sum(lines_of_code(path.read_text("utf-8")) for path in (ROOT / folder).rglob("*.py"))


def _words_of_documents():
    """Count the words of all documents outside of code and what it prints, and of builds."""
    pages = [path for path in (ROOT / "docs").rglob("*.md") if "/docs/_" not in path.as_posix()]
    texts = (
        path.read_text("utf-8") for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *pages]
    )
    code = r"^```.*?^```$(?:\n\n(?: {4}[^\n]*\n)+)?|<!--.*?-->"
    return sum(len(re.sub(code, "", text, flags=re.DOTALL | re.M).split()) for text in texts)


def _words_of_docstrings():
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    return sum(
        len((ast.get_docstring(n) or "").split()) for n in NODES if isinstance(n, documented)
    )


def _names_without_a_noun():
    """Return the names of variables and arguments that are pronouns or participles."""
    names = [n.arg for n in NODES if isinstance(n, ast.arg)]
    names += [n.id for n in NODES if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return [name for name in names if _NO_NOUN.fullmatch(name)]


def test_code_is_counted_without_comments_and_docstrings():
    text = '"""Docstring\nof two lines."""\n\n# comment\nx = (\n    1,  # one\n)\n"string"\n'
    assert lines_of_code(text) == 3


def test_the_project_stays_within_its_bounds():
    config = Config()
    sizes = {
        "lines of code of the core": _code_in("t2t_jax") - _code_in("t2t_jax/extras"),
        "lines of code of the extras": _code_in("t2t_jax/extras"),
        "lines of code of the tests": _code_in("tests") - _code_in("tests/against"),
        "lines of code of tests/against": _code_in("tests/against"),
        "lines of code of the benchmarks": _code_in("benchmarks"),
        "lines of code of the examples": _code_in("examples"),
        "words of the documents": _words_of_documents(),
        "words of the docstrings": _words_of_docstrings(),
        "config fields": sum(len(fields(getattr(config, one.name))) for one in fields(config)),
        "commands": sum(map(len, all_commands().values())),
        "names that are pronouns or participles": len(_names_without_a_noun()),
    }
    assert sizes.keys() == MOST.keys()
    assert {name: size for name, size in sizes.items() if size > MOST[name]} == {}


def test_functions_and_files_are_short():
    functions = {
        f"{name}::{node.name}": node.end_lineno - node.lineno + 1
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert len(functions) > 1000
    assert {k: n for k, n in functions.items() if n > MOST_LINES_OF_A_FUNCTION} == {}
    files = {name: len((PACKAGE / name).read_text("utf-8").splitlines()) for name in TREES}
    assert {k: n for k, n in files.items() if n > MOST_LINES_OF_A_FILE} == {}


def test_every_folder_has_tests_and_none_is_a_heap():
    tests = Path(__file__).parent
    folders = {Path(name).parts[0] for name in TREES if "/" in name}
    assert {folder for folder in folders if not list((tests / folder).rglob("test_*.py"))} == set()
    assert [name for name in TREES if Path(name).stem in ("utils", "helpers", "misc")] == []


def test_benchmarks_import_what_there_is():
    """Some of them need libraries that the tests do not have, so that nothing runs them here."""
    imports = [
        (path.name, node.module, alias.name)
        for path in sorted((ROOT / "benchmarks").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("t2t_jax")
        for alias in node.names
    ]
    assert len(imports) > 100
    for file, module, name in imports:
        parent = importlib.import_module(module)
        is_module = hasattr(parent, "__path__") and importlib.util.find_spec(f"{module}.{name}")
        assert hasattr(parent, name) or is_module, f"{file}: from {module} import {name}"
