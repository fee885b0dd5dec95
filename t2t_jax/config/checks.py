"""The metadata of config fields, and the checks of their values.

Each error names the field and the value.
"""

import dataclasses
import math
import types
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from t2t_jax.config.running import run_registering_files
from t2t_jax.config.tables import NAMED
from t2t_jax.errors import UserError, did_you_mean, quote

MAY_CHANGE = {"may_change": True}
"""Marks a field that may have another value when a run is continued: it changes when and where work
is done, never the recipe."""

NOT_EXPORTED = {"exported": False}
"""Marks a field of the sections `model`, `data` and `decoding` that exported files need not carry,
as it concerns training alone, is part of the vocabulary, or says how the work is laid out. Every
format refuses any other field until the format claims it; see `interchange.carried`."""

SIZE = {"is_size": True}
"""Marks a field of type int that is at least 1, and fits into 32 bits."""

INFINITY = float("inf")

# Devices count entries of arrays and steps in integers of 32 bits, and compute in floats of 32
# bits.
_MOST = 2**31 - 1
_LARGEST = 3.4028234e38


def read_where(condition: Callable[[Any], bool]) -> dict[str, Any]:
    """Mark a field that only those sections read for which a condition holds."""
    return {"read_where": condition}


def left_open(value: Any) -> dict[str, Any]:
    """Mark a field with a value that leaves the choice to the start of a run.

    A run keeps a config with the choice in place of this value, which agrees with any choice later.

    Args:
      value: the value that leaves the choice open, such as "auto".
    """
    return {"left_open": value}


def require(condition: bool, message: str) -> None:
    """Raise an error with a message unless a condition holds."""
    if not condition:
        raise UserError(message)


class Section:
    """A section of a config, which is a dataclass: the checks of its fields."""

    def __post_init__(self) -> None:
        """Refuse a value that is not of the type its field declares (an int does for a float).

        A list, as JSON has it, becomes a tuple where the field declares one. A field with the mark
        `SIZE` is checked for its range, too.
        """
        section: Any = type(self)
        for field_name, hint in _field_types(section).items():
            value, name = getattr(self, field_name), self._path(field_name)
            if name in NAMED and isinstance(value, str):
                if value not in NAMED[name]:
                    run_registering_files()
                NAMED[name].check(name, value)
                continue
            if isinstance(value, list) and get_origin(hint) is tuple:
                value = tuple(value)
                object.__setattr__(self, field_name, value)
            _check_type(name, value, hint)
        sizes = [leaf.name for leaf in dataclasses.fields(section) if "is_size" in leaf.metadata]
        self._check_range(1, INFINITY, *sizes)
        self._check_fits(*sizes)

    def _path(self, name: str) -> str:
        """Return the path of a field: the attribute `section`, or the name of the class, and it."""
        by_class = type(self).__name__.removesuffix("Config").lower()
        return f"{getattr(self, 'section', by_class)}.{name}"

    def _labelled(self, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
        """Yield the value of each field of these names, after its path and value for errors."""
        for name in names:
            value = getattr(self, name)
            yield f"{self._path(name)}={quote(value)}", value

    def _check_range(self, low: float, high: float, *names: str) -> None:
        """Refuse a field of these names whose value is neither within `[low, high]` nor None."""
        for label, value in self._labelled(names):
            fits = value is None or low <= value <= high
            require(fits, f"{label} is outside [{low:g}, {high:g}]")

    def _check_fits(self, *names: str) -> None:
        """Refuse a field of these names whose value does not fit into 32 bits.

        Fields that are only compared, such as intervals of steps, need no such check.
        """
        for label, value in self._labelled(names):
            most = _LARGEST if isinstance(value, float) else _MOST
            kind = f"a float of 32 bits, {most:.3g}" if most == _LARGEST else f"2**31 - 1, {most:,}"
            require(value is None or value <= most, f"{label} is more than the largest, {kind}")

    def _check_positive(self, *names: str) -> None:
        """Check that each of these fields is above 0 or None."""
        for label, value in self._labelled(names):
            require(value is None or value > 0, f"{label} is not positive; use None")


@cache
def _field_types(section: Any) -> dict[str, Any]:
    """Return the types of the fields of a section, which take most of a check to find out."""
    return get_type_hints(section)


def _check_type(name: str, value: Any, hint: Any) -> None:
    """Refuse a value that is not of a type, or is no finite number."""
    origin, args = get_origin(hint), get_args(hint)
    kind = type(value).__name__
    if origin is Literal:
        if not any(value == one and type(value) is type(one) for one in args):
            choices = ", ".join(map(repr, args))
            advice = did_you_mean(str(value), map(str, args), "use one of these")
            raise UserError(f"{name}={quote(value)} is not one of {choices}; {advice}")
    elif origin is tuple:
        known = isinstance(value, tuple) and all(_is_one_of(one, args[0]) for one in value)
        expected = f"a tuple of values, each a {args[0].__name__}"
        require(known, f"{name}={quote(value)} is a {kind}, expected {expected}")
    else:
        allowed = args if origin in (types.UnionType, Union) else (hint,)
        expected = " | ".join(map(_type_name, allowed))
        known = _is_one_of(value, *allowed)
        require(known, f"{name}={quote(value)} is a {kind}, expected {expected}")
        finite = not isinstance(value, float) or math.isfinite(value)
        require(finite, f"{name}={quote(value)} is not a finite number")


def _type_name(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " | ".join(map(repr, get_args(kind)))
    return "None" if kind is types.NoneType else kind.__name__


def _is_one_of(value: Any, *kinds: Any) -> bool:
    """Return whether a value has one of the types: an int is a float, but a bool is no number."""
    if any(value in get_args(kind) for kind in kinds if get_origin(kind) is Literal):
        return True
    types = tuple(kind for kind in kinds if get_origin(kind) is not Literal)
    allowed = (*types, int) if float in types else types
    return isinstance(value, allowed) and (not isinstance(value, bool) or bool in allowed)
