import signal
import sys
import warnings
from pathlib import Path

import pytest

from t2t_jax import Config, product
from t2t_jax.config.file import describe_difference, load_config, load_grid
from tests.refusals import refused


def _write(folder, text):
    path = folder / "some.py"
    path.write_text("from t2t_jax.config import Config\n" + text)
    return str(path)


_GRID = "VARIANTS = {f'heads_{h}': Config().replace({'model.num_heads': h}) for h in (1, 4)}\n"


def test_config_file_gives_its_config_and_a_variant_by_name(tmp_path):
    function = "def get_config():\n    return Config().replace({'model.d_ff': 7})\n"
    path = _write(tmp_path, function + _GRID)
    assert load_config(path).model.d_ff == 7
    assert [load_config(f"{path}:heads_{h}").model.num_heads for h in (1, 4)] == [1, 4]


@pytest.mark.parametrize(
    ("text", "suffix", "message"),
    [
        (_GRID, ":head_4", "did you mean heads_4?"),
        (_GRID, ":zzz", "it has: heads_1, heads_4"),
        (_GRID, "", ":NAME (heads_1, heads_4)"),
        ("", "", "defines no get_config()"),
        ("", ":base", "has no variant 'base'"),
        ("def get_config():\n    return {'d_ff': 1}\n", "", "gave a dict, not a t2t_jax.Config"),
        ("VARIANTS = {'a': 3}\n", ":a", "gave a int, not a t2t_jax.Config"),
        ("VARIANTS = ['a']\n", ":a", "is a list; make it a dict of names to configs"),
        ("VARIANTS = {1: Config()}\n", ":base", "has no variant 'base'; it has: 1"),
    ],
)
def test_config_file_without_the_config_asked_for_is_explained(tmp_path, text, suffix, message):
    path = _write(tmp_path, text)
    with refused(message) as error:
        load_config(path + suffix)
    assert path in str(error.value)


_RAISES = """
class Odd(Exception):
    def __str__(self):
        {}
raise Odd
"""
_SUBCLASS = "class Own(Config):\n    {}\nget_config = Own\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def get_config(:\n", " line 2: SyntaxError: invalid syntax; mend the file"),
        ("import nosuchmodule\n", " line 2: ModuleNotFoundError: No module named 'nosuchmodule'; "),
        ("def get_config():\n    return none\n", " line 3: NameError: name 'none' is not defined"),
        (
            "from t2t_jax.config import DecoderOnlyConfig\nDecoderOnlyConfig(dmodel=3)\n",
            " line 3: unknown config field 'model.dmodel'; did you mean model.d_model?",
        ),
        (
            "def get_config(size):\n    return Config()\n",
            ": TypeError: get_config() missing 1 required positional argument: 'size'; mend",
        ),
        (
            "def get_config():\n    return Config().replace(\n        {'model.d_ff': 0})\n",
            " line 3: model.d_ff=0 is outside [1, inf]",
        ),
        ("import json\njson.loads('\\n{')\n", " line 3: JSONDecodeError: Expecting property name"),
        ("raise OSError('two\\nlines')\n", " line 2: OSError: two lines; mend the file"),
        ("import sys\nsys.exit(0)\n", " line 3: SystemExit: 0; mend the file"),
        ("def get_config():\n    exit()\n", " line 3: SystemExit: "),
        ("class E(BaseException): pass\nraise E('x')\n", " line 3: E: x; mend the file"),
        ("def f():\n    f()\nf()\n", " line 3: RecursionError: maximum recursion depth exceeded"),
        (f"x = {'(' * 500}{')' * 500}\n", " line 2: SyntaxError: too many nested parentheses"),
        # Errors that hide what they are.
        (_RAISES.format("raise ValueError('x')"), " line 6: Odd: its text cannot be shown; mend"),
        (_RAISES.format("return 3"), " line 6: Odd: its text cannot be shown; mend"),
        (_RAISES.format("return str(self)"), " line 6: Odd: its text cannot be shown; mend"),
        ("raise OSError('x' * 10**7)\n", "xxx...; mend the file"),
        ("raise SyntaxError(3)\n", "SyntaxError"),
        ("exec(compile('raise OSError(1)', '/dev/zero', 'exec'))\n", " line 2: OSError: 1; mend"),
        (
            "import sys\nclass L(Exception): pass\n"
            "def deep(n):\n    if n: deep(n - 1)\n    sys.setrecursionlimit(1)\ndeep(0)\n",
            "RecursionError: cannot set the recursion limit to 1 at the recursion depth",
        ),
        # What is no config, or was altered.
        (_SUBCLASS.format("pass"), "gave a Own, not a t2t_jax.Config"),
        (_SUBCLASS.format("__post_init__ = lambda self: None"), "gave a Own, not a t2t_jax"),
        ("get_config = lambda: Config\n", "gave a type, not a t2t_jax.Config"),
        (
            "from t2t_jax.config import DecoderOnlyConfig as Base\nclass Own(Base): key_size = 7\n"
            "get_config = lambda: Config(model=Own())\n",
            "the section model of",
        ),
        ("async def get_config(): pass\ncoroutine = get_config()\ncoroutine.close()\n"
         "get_config = lambda: coroutine\n", "gave a coroutine, not a t2t_jax.Config"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_config_file_is_one_line_that_says_where(tmp_path, text, message):
    path = _write(tmp_path, text)
    with refused(path * message.startswith((" ", ":")) + message) as error:
        load_config(path)
    assert path in str(error.value)
    assert len(str(error.value)) < 1000


def test_a_config_file_may_print_and_start_with_a_byte_order_mark(tmp_path, capsys):
    path = _write(tmp_path, "print('made')\nget_config = Config\n")
    Path(path).write_bytes(b"\xef\xbb\xbf" + Path(path).read_bytes())
    assert load_config(path) == Config()
    assert capsys.readouterr().out == "made\n"


def test_an_interrupt_of_a_config_file_stays_one(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        load_config(_write(tmp_path, "raise KeyboardInterrupt\n"))


@pytest.mark.parametrize("place", ["a:b.py", "a:b/c.py", "a.py:b.py"])
def test_a_colon_may_be_in_the_path_of_a_config_file(tmp_path, place):
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"from t2t_jax.config import Config\nget_config = Config\n{_GRID}")
    assert load_config(str(path)) == Config()
    assert load_config(f"{path}:heads_1").model.num_heads == 1
    with refused(match=r"no config file .*/a:b/d\.py;"):
        load_config(f"{tmp_path}/a:b/d.py:heads_1")


def test_a_syntax_error_in_an_imported_module_is_told_by_the_line_that_imports_it(
    tmp_path, monkeypatch
):
    (tmp_path / "imported_by_config.py").write_text("\n\n\n=\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = _write(tmp_path, "import imported_by_config\n")
    with refused(f"{path} line 2: SyntaxError"):
        load_config(path)


def test_a_file_that_is_not_python_is_refused(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(Config().to_json())
    with refused("config.json is not a .py file; see configs/"):
        load_config(str(path))


def test_a_product_is_every_combination_under_a_name_that_tells_it():
    grid = product(Config(), {"model.num_heads": [1, 4], "model.d_ff": [1024, 2048]})
    assert {name: (c.model.num_heads, c.model.d_ff) for name, c in grid.items()} == {
        "num_heads=1,d_ff=1024": (1, 1024),
        "num_heads=1,d_ff=2048": (1, 2048),
        "num_heads=4,d_ff=1024": (4, 1024),
        "num_heads=4,d_ff=2048": (4, 2048),
    }
    assert {c.training for c in grid.values()} == {Config().training}
    tokens = product(Config(), {"data.protected_tokens": [("a", "b")]})
    assert [*tokens] == ["protected_tokens=('a','b')"]  # a directory name without spaces


def test_fields_of_the_same_name_are_told_apart_by_their_sections():
    choices = {"evaluation.beam_size": [1], "decoding.beam_size": [4, 8]}
    assert list(product(Config(), choices)) == [
        "evaluation.beam_size=1,decoding.beam_size=4",
        "evaluation.beam_size=1,decoding.beam_size=8",
    ]


@pytest.mark.parametrize(
    ("path", "values", "message"),
    [
        ("model.num_head", [1], r"did you mean model\.num_heads"),
        ("model.dropout_rate", [0.25, 0.25], "two combinations .* name dropout_rate=0.25; remove"),
        ("training.init_from", [None, "None"], "two combinations .* name init_from=None; remove"),
        ("training.learning_rate_factor", [1, 1.0], "factor=1 and .*factor=1.0 .* the same config"),
        ("model.d_ff", [], r"model\.d_ff has the values \[\]; give a list of them"),
        ("training.schedule.decay_fraction", 0.1, r"decay_fraction has the values 0\.1; give a li"),
        (("model.d_k", "model.d_v"), [(1, 2, 3)], r"\(1, 2, 3\) is not a value for each of model"),
    ],
)
def test_a_product_with_an_unknown_field_or_a_combination_twice_is_refused(path, values, message):
    with refused(match=message):
        product(Config(), {path: values})


def test_a_grid_file_gives_its_variants_in_order_and_what_is_published_of_them(tmp_path):
    published = "from t2t_jax.paper import TABLE_3\nPUBLISHED = {'heads_4': TABLE_3['A-h4']}\n"
    grid = load_grid(_write(tmp_path, _GRID + published))
    assert list(grid.variants) == ["heads_1", "heads_4"]
    assert grid.base == "heads_1"
    assert grid.published["heads_4"].dev_bleu == 25.5
    grid = load_grid(_write(tmp_path, "VARIANTS = {'x': Config(), 'base': Config()}\n"))
    assert grid.base == "base"
    assert grid.published == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "defines no VARIANTS; a grid is a dict"),
        ("VARIANTS = {}\n", "defines no VARIANTS"),
        ("VARIANTS = {'a': 3}\n", ":a gave a int, not a t2t_jax.Config"),
        (_GRID + "PUBLISHED = ['heads_4']\n", "is not a dict of names to rows of TABLE_3"),
        (_GRID + "PUBLISHED = {'heads_4': 'A-h4'}\n", "use such rows, or leave it out"),
        ("VARIANTS = {'../a': Config()}\n", "has a variant '../a', which cannot name a directory"),
        ("VARIANTS = {'': Config()}\n", "'', which cannot name a directory"),
        ("VARIANTS = {1: Config()}\n", "has a variant 1, which cannot name a directory"),
    ],
)
def test_a_file_that_is_no_grid_is_explained_in_one_line(tmp_path, text, message):
    path = _write(tmp_path, text)
    with refused(message) as error:
        load_grid(path)
    assert path in str(error.value)


def test_a_difference_is_told_by_the_names_and_values_of_the_fields():
    changed = Config().replace({"model.d_k": 16, "training.label_smoothing": 0.2})
    assert describe_difference(Config(), changed) == "d_k=16 label_smoothing=0.2"
    assert describe_difference(Config(), Config()) == ""
    beams = Config().replace({"evaluation.beam_size": 2, "decoding.beam_size": 8})
    assert describe_difference(Config(), beams) == "evaluation.beam_size=2 decoding.beam_size=8"
    decays = Config().replace({"training.schedule": "wsd(decay_fraction=0.2)"})
    assert describe_difference(Config(), decays) == "schedule=wsd(decay_fraction=0.2)"
    default = Config().replace({"training.schedule": "wsd"})
    assert describe_difference(decays, default) == "decay_fraction=0.1"


def test_the_configs_of_the_package_are_found_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config("configs/quickstart.py").model.d_model == 256
    assert load_config("configs/table3.py:A-h1").model.num_heads == 1
    assert "A-h1" in load_grid("configs/table3.py").variants
    for missing in ("configs/nowhere.py", "elsewhere/quickstart.py", "quickstart.py", tmp_path):
        with refused(match=rf"no config file {missing}; .*configs/base\.py, "):
            load_config(str(missing))


def test_a_config_of_ones_own_goes_before_one_of_the_package_with_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("configs").mkdir()
    Path("configs/quickstart.py").write_text("from t2t_jax import Config\nget_config = Config\n")
    assert load_config("configs/quickstart.py") == Config()


@pytest.mark.parametrize(
    "changes",
    [
        "import sys\nsys.setrecursionlimit(100_000)\n",
        "import inspect, sys\nsys.setrecursionlimit(len(inspect.stack()) + 60)\n",
        "import os\nos.chdir('/')\n",
        "import warnings\nwarnings.simplefilter('error', ImportWarning)\n",
        "import sys\nsys.stdout = sys.stderr = None\n",
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n",
    ],
)
def test_what_a_config_file_changes_of_the_process_is_put_back(tmp_path, changes):
    def state():
        filters = [each for each in warnings.filters if each[0] == "error"]
        handler = signal.getsignal(signal.SIGTERM)
        return sys.getrecursionlimit(), Path.cwd(), filters, sys.stdout, handler

    before = state()
    assert load_config(_write(tmp_path, f"{changes}get_config = Config\n")) == Config()
    with refused("mend the file"):
        load_config(_write(tmp_path, f"{changes}1 / 0\n"))
    assert state() == before
