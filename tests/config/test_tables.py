"""The functions that a config names, and those that a file registers by a name of its own."""

import json
import os
from typing import get_type_hints

import jax
import pytest

import t2t_jax
from t2t_jax.config import Config, NormConfig, network_config
from t2t_jax.config.definitions import RegisteringFile
from t2t_jax.config.file import checked_grid, load_config, load_grid
from t2t_jax.config.registered import environment_of, registered_parts
from t2t_jax.config.registry import FILES, Parameter
from t2t_jax.config.tables import NAMED
from t2t_jax.plugins import load_named
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("tables")

_REGISTER = (
    "import t2t_jax\n"
    "from t2t_jax import Config\n"
    "def halved(x):\n"
    "    return x / 2\n"
    "t2t_jax.register_activation('halved', halved)\n"
    "get_config = lambda: Config().replace({'model.feed_forward': 'halved'})\n"
)
_GRID = "VARIANTS = {'base': Config(), 'halved': get_config()}\n"


def _write(path, text):
    path.write_text(text)
    return str(path)


def _places(row):
    """The places of functions in a row of any table."""
    values = [row] if isinstance(row, str) else vars(row).values()
    return [value for value in values if isinstance(value, str) and value.count(":") == 1]


@pytest.mark.parametrize("path", NAMED)
def test_every_row_names_functions_that_are_there_and_every_name_is_a_value_of_the_field(path):
    for name in NAMED[path]:
        assert all(load_named(place).__doc__ for place in _places(NAMED[path][name]))
    name, _, field = path.partition(".")
    section = getattr(Config(), name)
    assert getattr(section, field) in (*NAMED[path].names, None)
    hint = get_type_hints(type(section))[field]
    assert hint in (str, NAMED[path].choice, NAMED[path].choice | None)


def test_a_config_file_registers_an_activation_by_a_name(tmp_path):
    path = _write(tmp_path / "own.py", _REGISTER + _GRID)
    config = load_config(path)
    entry = registered_parts(config)["feed_forward"]
    assert entry.part.function(3.0) == 1.5
    assert not config.model.is_gated
    assert entry.source == RegisteringFile(path, _REGISTER + _GRID)
    assert environment_of(config) == {FILES: path}
    assert Config.from_json(config.to_json()) == config
    # The file is run once more, and nothing changes.
    assert registered_parts(load_config(f"{path}:halved"))["feed_forward"].source == entry.source
    assert load_grid(path).variants["halved"] == config
    assert environment_of(Config()) == {}


def test_a_module_that_a_config_file_imports_may_register(tmp_path, monkeypatch):
    _write(tmp_path / "registers_for_a_test.py", _REGISTER)
    monkeypatch.syspath_prepend(tmp_path)
    path = _write(tmp_path / "own.py", "from registers_for_a_test import get_config\n")
    source = registered_parts(load_config(path))["feed_forward"].source
    assert source.path == str(tmp_path / "registers_for_a_test.py")


def test_what_a_function_learns_is_counted_by_its_shape():
    t2t_jax.register_normalization("one_factor", min, lambda width: {"g": Parameter((), 2.0)})
    assert NormConfig("one_factor").num_parameters(64) == 1
    t2t_jax.register_score_function("matrix", min, lambda d_k: {"m": Parameter((d_k, d_k))})
    attention = network_config(attention_kind="matrix").attention
    assert attention.num_parameters == attention.matrix_parameters + 8 * 64 * 64
    t2t_jax.register_activation("gate", jax.nn.relu6, is_gated=True)
    assert network_config(feed_forward="gate").is_gated


@pytest.mark.parametrize("name", ["", "2x", "a b", "a/b", "../a", "a\n", "é", "x" * 65, None, 3])
def test_a_name_that_is_no_word_is_refused(name):
    with refused("cannot be registered; a name has letters"):
        t2t_jax.register_activation(name, jax.nn.relu6)


def test_a_name_stands_for_one_function():
    def make(bound):
        return lambda x: min(x, bound)

    t2t_jax.register_activation("mine", jax.nn.relu6)
    t2t_jax.register_activation("mine", jax.nn.relu6)
    for function, facts in ((jax.nn.relu, {}), (jax.nn.relu6, {"is_gated": True}), (make(6), {})):
        with refused("'mine' is already registered with another definition"):
            t2t_jax.register_activation("mine", function, **facts)
    with refused("activation 'relu' is a built-in name"):
        t2t_jax.register_activation("relu", jax.nn.relu6)
    t2t_jax.register_activation("closure", make(6))
    with refused("already registered"):  # its bound may be another
        t2t_jax.register_activation("closure", make(7))


def test_another_file_cannot_register_a_name_that_is_taken(tmp_path):
    first = _write(tmp_path / "first.py", _REGISTER)
    load_config(first)
    other = _write(tmp_path / "other.py", _REGISTER.replace("x / 2", "x / 3"))
    with refused(match=rf"{other} line 5: .*already registered by {first} with"):
        load_config(other)


@pytest.mark.parametrize(
    ("text", "alike"),
    [("x=1  # one\n", True), ("x = 2\n", False), ("x = = 1\n", False), ("x = 1\n\0", False)],
)
def test_files_are_alike_if_they_are_the_same_program(text, alike):
    assert RegisteringFile("a.py", "x = 1\n").is_alike(text) == alike


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("feed_forward", "relu6", "'swiglu'; did you mean relu? A new name must be"),
        ("norm", "zzz", "'rms'; use one of these. A new name must be registered first"),
        ("norm", "zzz", "t2t_jax.register('normalization', 'zzz') in the config file, in the"),
        ("attention_kind", "zzz", "t2t_jax.register('attention', 'zzz')"),
        ("norm", "", "model.norm='' is not one of"),
        ("norm", "LAYER", "'LAYER' is not one of 'layer', 'rms'"),
    ],
)
def test_a_name_that_nobody_registered_is_refused(field, value, message):
    config = json.loads(Config().to_json())
    config["model"][field] = value
    with refused(message):
        Config.from_json(json.dumps(config))


def test_files_that_the_environment_names_register_what_is_missing(tmp_path, monkeypatch):
    config = Config().to_json().replace('"relu"', '"halved"')
    other = _write(tmp_path / "other.py", "print('run')\n")
    own = _write(tmp_path / "own.py", _REGISTER + "get_config()\n")
    monkeypatch.setenv(FILES, f"{other}{os.pathsep}{own}")
    assert Config.from_json(config).model.feed_forward == "halved"
    # The sweep hands it on to the processes of its cells.
    assert environment_of(Config.from_json(config))[FILES].endswith(own)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("own.py", "1 / 0\n", "own.py line 1: ZeroDivisionError: division by zero"),
        ("own.py", "", "model.feed_forward='halved' is not one of"),
        ("own.txt", "", "own.txt is not a .py file"),
        ("folder/own.py", None, "No such file"),
    ],
)
def test_a_file_of_the_environment_that_fails_is_told(tmp_path, monkeypatch, name, text, message):
    if text is not None:
        _write(tmp_path / name, text)
    monkeypatch.setenv(FILES, str(tmp_path / name))
    with refused(message):
        network_config(feed_forward="halved")


def test_a_grid_refuses_what_the_processes_of_its_cells_cannot_know():
    t2t_jax.register_activation("of_this_process", jax.nn.relu6)
    config = Config().replace({"model.feed_forward": "of_this_process"})
    with refused("'of_this_process', which only this process knows, but"):
        checked_grid({"a": config}, {}, "the grid")
