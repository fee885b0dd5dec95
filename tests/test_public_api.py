"""The names that `import t2t_jax` offers."""

import inspect
from operator import attrgetter
from pathlib import Path

import pytest

import t2t_jax
from t2t_jax.plugins import rows
from tests.programs import run_python

_TEACHING = [f"teaching.{name}" for name in vars(t2t_jax.teaching) if not name.startswith("_")]


@pytest.mark.parametrize("name", [*t2t_jax.__all__, *rows("names"), *_TEACHING])
def test_every_public_name_is_there_with_a_docstring_that_names_its_arguments(name):
    value = attrgetter(name)(t2t_jax)
    assert value.__name__.rpartition(".")[2] == name.rpartition(".")[2]
    text = inspect.getdoc(value)
    assert text.split("\n")[0].endswith(".")
    if inspect.isfunction(value):
        assert value.__module__.startswith("t2t_jax.")
        arguments = text.partition("Args:\n")[2]
        assert "Raises:" in text
        for argument, about in inspect.signature(value).parameters.items():
            assert f"{argument}: " in arguments or about.kind is about.VAR_KEYWORD


def test_the_names_are_listed():
    assert {*t2t_jax.__all__, "explore"} <= set(dir(t2t_jax))
    assert sorted(t2t_jax.__all__) == t2t_jax.__all__
    with pytest.raises(AttributeError, match="has no attribute 'transformer'"):
        t2t_jax.transformer  # noqa: B018


def test_a_name_stays_what_it_is_whatever_is_imported():
    """A module of the same name would take its place, as soon as it is imported."""
    folder = Path(t2t_jax.__file__).parent
    modules = {path.stem for path in folder.iterdir()}
    assert modules.isdisjoint(t2t_jax.__all__)


def test_importing_the_package_imports_nothing_else():
    check = """
import importlib, sys, typing
before = set(sys.modules)
import t2t_jax
new = {name for name in sys.modules.keys() - before if "." not in name}
assert new == {"t2t_jax"}, new
"""
    run_python("-c", check, code=0)
