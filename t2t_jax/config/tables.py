"""The tables of functions that a config names: activations, normalisations and score functions.

A name stands for an equation and for what the rest of the program asks about it: what it learns,
and so what it costs, and whether a network has a gate. Flags, errors, documents, modules and costs
read these tables alone. A config file adds a name of its own::

    import jax
    import t2t_jax

    t2t_jax.register_activation("relu6", jax.nn.relu6)

    def get_config():
        return t2t_jax.Config().replace({"model.feed_forward": "relu6"})

A run keeps the name, and the file that registered it as a text; see `workdir.claim`. Nothing of a
run is ever executed by itself: a process that loads the run registers the name before, as by a
config file, or by a file that the environment variable T2T_JAX_REGISTER names.
"""

import ast
import contextlib
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from t2t_jax.errors import UserError, did_you_mean

FILES = "T2T_JAX_REGISTER"
"""The environment variable that names files which register functions, separated as in PATH."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_in_file: ContextVar[bool] = ContextVar("in_file", default=False)


class Parameter(NamedTuple):
    """An array of numbers that a named function learns, and the values that it starts with."""

    shape: tuple[int, ...]
    """Sizes of its axes; () is a single number."""
    mean: float = 0.0
    """Value that each number starts with."""
    deviation: float = 0.0
    """Standard deviation of the normal distribution around it; 0 starts with the value itself."""


class Source(NamedTuple):
    """A file that registers functions."""

    path: str
    """The absolute path."""
    text: str
    """What is in it."""

    def is_alike(self, text: str) -> bool:
        """Whether another text is the same program: comments and the layout of lines may differ."""
        try:
            return ast.dump(ast.parse(self.text)) == ast.dump(ast.parse(text))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return self.text == text


def _nothing(size: int) -> Mapping[str, Parameter]:
    return {}


@dataclass(frozen=True)
class Entry:
    """What a name in a table stands for."""

    function: Any
    """The function; of the package's own the place, as MODULE:NAME, so that reading a config
    imports no JAX. None stands for scores that are products of queries and keys."""
    parameters: Callable[[int], Mapping[str, Parameter]] = _nothing
    """What it learns, by name, for vectors of a width."""
    is_gated: bool = False
    """For an activation: whether it is the gate of a network with three matrices, without biases
    (Shazeer 2020)."""
    title: str = field(default="", compare=False)
    """What errors call it, such as `activation 'relu6'`; empty for the package's own."""
    source: Source | None = field(default=None, compare=False)
    """The file that registered it; None for the package's own, and for what a program or a notebook
    registered."""

    def load(self) -> Callable[..., Any]:
        """The function."""
        if not isinstance(self.function, str):
            function: Callable[..., Any] = self.function
            return function
        module, _, name = self.function.partition(":")
        function = getattr(import_module(module), name)
        return function

    def num_parameters(self, width: int) -> int:
        """Numbers that it learns for vectors of a width."""
        return sum(math.prod(each.shape) for each in self.parameters(width).values())


class Table:
    """Named functions of one kind."""

    def __init__(self, kind: str, **entries: Entry) -> None:
        """Begin with the package's own.

        Args:
          kind: what errors call an entry.
          entries: the entries by name.
        """
        self.kind = kind
        self._own = tuple(entries)
        self._entries = entries

    def __iter__(self) -> Iterator[str]:
        """The names, those of the package first."""
        return iter(tuple(self._entries))

    def __getitem__(self, name: str) -> Entry:
        """The entry of a name that `check` has accepted."""
        return self._entries[name]

    def is_own(self, name: str) -> bool:
        """Whether a name is one of the package's own."""
        return name in self._own

    def check(self, label: str, name: str) -> None:
        """Refuse a name that stands for nothing, once the files of T2T_JAX_REGISTER have run.

        Args:
          label: the field of the config that has the name.
          name: the name.

        Raises:
          UserError: nothing of that name is registered.
        """
        if name not in self._entries:
            _run_files()
        if name not in self._entries:
            raise UnregisteredError(self, label, name)

    def register(self, name: str, function: Any, *, caller: int = 2, **facts: Any) -> None:
        """Add an entry.

        Args:
          name: its name.
          function: its function.
          caller: how many calls up the file is that registers.
          facts: further fields of the `Entry`.

        Raises:
          UserError: the name is no word, or the package's own, or stands for something else.
        """
        title = f"{self.kind} {name!r}"
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UserError(
                f"{title} cannot be registered; a name has letters, digits, _ and -, and begins "
                "with a letter"
            )
        if not callable(function):
            raise UserError(f"{title} is a {type(function).__name__}; register a function")
        code = sys._getframe(caller).f_code
        source = _read(code.co_filename) if _in_file.get() else None
        entry = Entry(function, title=title, source=source, **facts)
        if self.is_own(name):
            raise UserError(f"{title} is the package's own; register yours by another name")
        before = self._entries.setdefault(name, entry)
        if not _is_same(before, entry):
            where = f" by {before.source.path}" if before.source else ""
            raise UserError(
                f"{title} is registered already{where}, and stands for one function as long as the "
                "process lives: programs are compiled with it; choose another name, or start again"
            )


class UnregisteredError(UserError):
    """A config names a function that nobody has registered."""

    def __init__(self, table: Table, label: str, name: str) -> None:
        """Say which name, and how to register it.

        Args:
          table: where it is looked up.
          label: the field of the config that has it.
          name: the name.
        """
        hint = did_you_mean(name, table, "use one of these.")
        super().__init__(
            f"{label}={name!r} is not one of {', '.join(map(repr, table))}; {hint} A name of your "
            f"own has to be registered first: t2t_jax.register_{table.kind.replace(' ', '_')}"
            f"({name!r}, ...) in the config file, in the program, or in a file that {FILES} names"
        )
        self.name = name


def _is_same(before: Entry, entry: Entry) -> bool:
    """Whether two entries of a name are one: a file, or a cell of a notebook, is run twice."""
    if before.source and entry.source:
        return before.source == entry.source
    return (
        _is_alike(before.function, entry.function)
        and _is_alike(before.parameters, entry.parameters)
        and before.is_gated == entry.is_gated
    )


def _is_alike(function: Any, other: Any) -> bool:
    """Whether two functions are one, or were made by the same code of the same module."""
    if function is other:
        return True
    code, its = (getattr(each, "__code__", None) for each in (function, other))
    if code is None or code != its or code.co_freevars:
        return False
    same_module = function.__globals__ is other.__globals__
    return same_module and function.__defaults__ == other.__defaults__


def _read(path: str) -> Source | None:
    """The file of a caller; None where the caller is in no file."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return Source(os.path.abspath(path), Path(path).read_text(encoding="utf-8-sig"))
    return None


ACTIVATIONS = Table(
    "activation",
    relu=Entry("jax.nn:relu"),
    gelu=Entry("t2t_jax.functional.feed_forward:gelu"),
    gelu_tanh=Entry("t2t_jax.functional.feed_forward:gelu_tanh"),
    silu=Entry("jax.nn:silu"),
    glu=Entry("jax.nn:sigmoid", is_gated=True),
    reglu=Entry("jax.nn:relu", is_gated=True),
    geglu=Entry("t2t_jax.functional.feed_forward:gelu", is_gated=True),
    swiglu=Entry("jax.nn:silu", is_gated=True),
)
"""The functions of a hidden layer, by the value of `model.feed_forward`; see
`functional.feed_forward` for their formulas."""

NORMALIZATIONS = Table(
    "normalization",
    layer=Entry(
        "t2t_jax.functional.normalization:layer_norm",
        lambda width: {"scale": Parameter((width,), 1.0), "bias": Parameter((width,))},
    ),
    rms=Entry(
        "t2t_jax.functional.normalization:rms_norm",
        lambda width: {"scale": Parameter((width,), 1.0)},
    ),
)
"""The norms, by the value of `model.norm`."""

SCORE_FUNCTIONS = Table(
    "score function",
    scaled_dot_product=Entry(None),
    dot_product=Entry(None),
    additive=Entry(
        "t2t_jax.kernels.attention:additive",
        lambda d_k: {"vector": Parameter((d_k,), deviation=d_k**-0.5)},
    ),
)
"""The scores of queries and keys, by the value of `model.score_function`. What one learns, each
head has of its own."""

TABLES: Mapping[str, Table] = {
    "feed_forward": ACTIVATIONS,
    "norm": NORMALIZATIONS,
    "score_function": SCORE_FUNCTIONS,
}
"""The tables by the field of the config's section `model` that names one of their entries."""


def named_entries(config: Any) -> dict[str, Entry]:
    """What a config uses of functions that were registered, by the field that names it.

    Args:
      config: a `t2t_jax.Config`.
    """
    names = {field: getattr(config.model, field) for field in TABLES}
    return {
        field: TABLES[field][name]
        for field, name in names.items()
        if not TABLES[field].is_own(name)
    }


def environment_of(config: Any) -> dict[str, str]:
    """Variables of the environment with which another process can make a config.

    Args:
      config: a `t2t_jax.Config`.
    """
    sources = (entry.source for entry in named_entries(config).values())
    paths = dict.fromkeys(source.path for source in sources if source)
    given = filter(None, [os.environ.get(FILES), *paths])
    return {FILES: os.pathsep.join(given)} if paths else {}


def register_activation(
    name: str, function: Callable[[Any], Any], *, is_gated: bool = False
) -> None:
    """Add an activation, which `model.feed_forward` then names.

    Args:
      name: its name.
      function: the function of each hidden number, of an array of any shape and float dtype.
      is_gated: whether it is that of a gate: the network is then (f(x W) * x V) W_2 without biases,
        as "GLU Variants Improve Transformer" has it, and not f(x W_1 + b_1) W_2 + b_2.

    Raises:
      UserError: the name is no word, or taken, or the function is none.
    """
    ACTIVATIONS.register(name, function, is_gated=is_gated)


def register_normalization(
    name: str,
    function: Callable[..., Any],
    parameters: Callable[[int], Mapping[str, Parameter]] = _nothing,
) -> None:
    """Add a normalisation, which `model.norm` then names.

    Args:
      name: its name.
      function: `function(x, epsilon=..., **learned)` of vectors `[..., width]`, which it returns
        normalised; `epsilon` is `model.norm_epsilon`, and `learned` has the arrays of `parameters`.
      parameters: what it learns for vectors of a width, by name; nothing by default.

    Raises:
      UserError: the name is no word, or taken, or the function is none.
    """
    NORMALIZATIONS.register(name, function, parameters=parameters)


def register_score_function(
    name: str,
    function: Callable[..., Any],
    parameters: Callable[[int], Mapping[str, Parameter]] = _nothing,
) -> None:
    """Add a score function of attention, which `model.score_function` then names.

    Attention computes with it in the plain form: fused kernels and blocks of long rows are for
    products of queries and keys alone.

    Args:
      name: its name.
      function: `function(query, key, **learned)` of queries `[b, q, h, d_k]` and keys
        `[b, k, h, d_k]`, whose scores `[b, h, q, k]` it returns. It must treat queries, keys and
        heads each by itself, as a cache of decoding has one query and other keys at a time.
      parameters: what each head learns, by name, for queries and keys of a width d_k; `learned` has
        these arrays as `[h, ...]`. Nothing by default.

    Raises:
      UserError: the name is no word, or taken, or the function is none.
    """
    SCORE_FUNCTIONS.register(name, function, parameters=parameters)


@contextlib.contextmanager
def registering() -> Iterator[None]:
    """Note, for what is registered within the block, the file that does it."""
    before = _in_file.set(True)
    try:
        yield
    finally:
        _in_file.reset(before)


_seen: set[str] = set()


def _run_files() -> None:
    """Run the files that the environment names, each once."""
    from t2t_jax.config.running import run_file

    named = os.environ.get(FILES, "")
    for path in filter(None, named.split(os.pathsep)):
        if path not in _seen:
            _seen.add(path)  # before: the file may make configs that name what it registers
            run_file(path)
