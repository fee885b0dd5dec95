"""The rules of CONTRIBUTING that no linter knows, held for every file of the package."""

import ast
import importlib
import importlib.util
from pathlib import Path

import t2t_jax

PACKAGE = Path(t2t_jax.__file__).parent
TREES = {
    path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted(PACKAGE.rglob("*.py"))
}
MOST_LINES_OF_A_FUNCTION, MOST_LINES_OF_A_FILE = 80, 600


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
    missing, found = [], 0
    for path in sorted((PACKAGE.parent / "benchmarks").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("t2t_jax"):
                module = importlib.import_module(node.module)
                for name in (alias.name for alias in node.names):
                    found += 1
                    if not hasattr(module, name) and not importlib.util.find_spec(
                        f"{node.module}.{name}"
                    ):
                        missing.append(f"{path.name}: from {node.module} import {name}")
    assert found > 100
    assert missing == []
