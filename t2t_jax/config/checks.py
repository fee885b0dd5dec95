"""The metadata of config fields, and the checks of their values."""

import dataclasses
import inspect
import math
import types
from abc import ABCMeta
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from t2t_jax.config.running import run_registering_files
from t2t_jax.config.tables import NAMED
from t2t_jax.errors import UserError, did_you_mean, quote
from t2t_jax.system.context import with_value

MAY_CHANGE = {"may_change": True}
"""Mark a field that a resumed run may change, because the field does not affect the recipe."""

NOT_EXPORTED = {"exported": False}
"""Mark a field of the sections `model`, `data` and `decoding` that exports need not represent: it
affects only training, the vocabulary or the layout of the work. Each export format refuses all
other fields except those that it claims to support; see `interchange.carried`."""

INFINITY = float("inf")

# Devices count array entries and steps in int32, and compute in float32.
_MOST = 2**31 - 1
_LARGEST = 3.4028234e38

FITS = {"fits": True}
"""Mark a field whose value must fit into 32 bits. Fields that the program only compares, such as
step intervals, have no such limit."""

POSITIVE = {"is_positive": True}
"""Mark a field whose value must be positive or None."""


def within(low: float, high: float = INFINITY) -> dict[str, tuple[float, float]]:
    """Mark a field whose value must be within `[low, high]` or None."""
    return {"range": (low, high)}


SIZE = FITS | within(1)
"""Mark a field with a count or a width."""


def read_where(condition: Callable[[Any], bool]) -> dict[str, object]:
    """Mark a field that a section reads only if a condition on the section holds."""
    return {"read_where": condition}


def left_open(value: object) -> dict[str, object]:
    """Return the metadata of a field whose value can be resolved when a run starts.

    The run then keeps the resolved value.

    Args:
      value: the unresolved value, such as "auto", which agrees with any stored value.
    """
    return {"left_open": value}


_is_stored: ContextVar[bool] = ContextVar("is_stored", default=False)


def reading_stored_config() -> AbstractContextManager[None]:
    """Accept unknown names of plugins and registered parts while a stored config is read.

    A run can be used for what does not need these parts, such as translation.
    """
    return with_value(_is_stored, True)


def is_stored_config() -> bool:
    """Return whether the config being made is read from a run, a checkpoint or a sweep."""
    return _is_stored.get()


def require(condition: bool, message: str) -> None:
    """Raise a `UserError` unless a condition holds."""
    if not condition:
        raise UserError(message)


class _Keywords(ABCMeta):
    """Metaclass of config sections, which accepts old field names and refuses unknown ones."""

    if not TYPE_CHECKING:  # type checkers and editors know the keywords of a dataclass

        def __call__(cls, *args, **fields):
            if inspect.isabstract(cls):
                raise UserError(
                    f"{cls.__name__} is an abstract class; use EncoderDecoderConfig or another"
                )
            for name in [name for name in fields if name not in cls.__dataclass_fields__]:
                from t2t_jax.config.config import field_of

                fields[field_of(cls, name)] = fields.pop(name)
            return super().__call__(*args, **fields)

        @property
        def __signature__(cls):  # notebooks would show the signature of __call__
            return inspect.signature(types.MethodType(cls.__init__, cls))


class Section(metaclass=_Keywords):
    """Base class of `Config` and its sections, which checks field values."""

    def __post_init__(self) -> None:
        """Refuse values of a wrong type or out of range.

        A float field accepts an int. A list, as in JSON, becomes a tuple.
        """
        section: Any = type(self)
        for leaf in dataclasses.fields(section):
            value, name = getattr(self, leaf.name), self.path(leaf.name)
            hint = _field_types(section)[leaf.name]
            if name in NAMED and isinstance(value, str):
                if value not in NAMED[name]:
                    run_registering_files()
                NAMED[name].check(name, value)
                continue
            if isinstance(value, list) and get_origin(hint) is tuple:
                value = tuple(value)
                object.__setattr__(self, leaf.name, value)
            _check_type(name, value, hint)
            if isinstance(value, int | float):
                _check_bounds(f"{name}={quote(value)}", value, leaf)

    @classmethod
    def path(cls, name: str) -> str:
        """Return the dotted path of a field, such as `training.seed`."""
        # The section is the attribute of that name, or else the name of the class.
        by_class = cls.__name__.removesuffix("Config").lower()
        return f"{getattr(cls, 'section', by_class)}.{name}".removeprefix(".")


def _check_bounds(label: str, value: float, field: dataclasses.Field[object]) -> None:
    marks = field.metadata
    low, high = marks.get("range", (-INFINITY, INFINITY))
    require(low <= value <= high, f"{label} is outside [{low:g}, {high:g}]")
    most = _LARGEST if isinstance(value, float) else _MOST
    limit = f"a float of 32 bits, {most:.3g}" if most == _LARGEST else f"2**31 - 1, {most:,}"
    require("fits" not in marks or value <= most, f"{label} is more than the largest, {limit}")
    require("is_positive" not in marks or value > 0, f"{label} is not positive; use None")


_field_types = cache(get_type_hints)  # uncached, it would take most of the time


def _check_type(name: str, value: object, hint: type) -> None:
    """Refuse a value of a wrong type, or a float that is not finite."""
    origin, args = get_origin(hint), get_args(hint)
    type_name = type(value).__name__
    if origin is Literal:
        if not any(value == choice and type(value) is type(choice) for choice in args):
            choices = ", ".join(map(repr, args))
            advice = did_you_mean(str(value), map(str, args), "use one of these")
            raise UserError(f"{name}={quote(value)} is not one of {choices}; {advice}")
    elif origin is tuple:
        is_valid = isinstance(value, tuple) and all(_is_one_of(item, args[0]) for item in value)
        expected = f"a tuple of values, each a {args[0].__name__}"
        require(is_valid, f"{name}={quote(value)} is a {type_name}, expected {expected}")
    else:
        allowed = args if origin in (types.UnionType, Union) else (hint,)
        expected = " | ".join(map(_type_name, allowed))
        is_valid = _is_one_of(value, *allowed)
        require(is_valid, f"{name}={quote(value)} is a {type_name}, expected {expected}")
        finite = not isinstance(value, float) or math.isfinite(value)
        require(finite, f"{name}={quote(value)} is not a finite number")


def _type_name(kind: type) -> str:
    if get_origin(kind) is Literal:
        return " | ".join(map(repr, get_args(kind)))
    return "None" if kind is types.NoneType else kind.__name__


def _is_one_of(value: object, *kinds: type) -> bool:
    """Return whether a value has one of the types; an int is a float, a bool is not a number."""
    if any(value in get_args(kind) for kind in kinds if get_origin(kind) is Literal):
        return True
    plain_kinds = tuple(kind for kind in kinds if get_origin(kind) is not Literal)
    allowed = (*plain_kinds, int) if float in plain_kinds else plain_kinds
    return isinstance(value, allowed) and (not isinstance(value, bool) or bool in allowed)
