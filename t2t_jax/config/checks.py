"""The metadata of config fields, and the checks of their values."""

import dataclasses
import inspect
import types
from abc import ABCMeta
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, get_origin, get_type_hints

from t2t_jax.config.field_types import check_range as check_range
from t2t_jax.config.field_types import check_type
from t2t_jax.config.field_types import require as require
from t2t_jax.config.registry import is_stored_config as is_stored_config
from t2t_jax.config.registry import reading_stored_config as reading_stored_config
from t2t_jax.config.tables import NAMED
from t2t_jax.errors import UserError, quote

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
            if name in NAMED and (value is not None or leaf.default is not None):
                object.__setattr__(self, leaf.name, NAMED[name].text(name, value))
                continue
            if isinstance(value, list) and get_origin(hint) is tuple:
                value = tuple(value)
                object.__setattr__(self, leaf.name, value)
            check_type(name, value, hint)
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
    check_range(label, value, low, high)
    most = _LARGEST if isinstance(value, float) else _MOST
    limit = f"a float of 32 bits, {most:.3g}" if most == _LARGEST else f"2**31 - 1, {most:,}"
    require("fits" not in marks or value <= most, f"{label} is more than the largest, {limit}")
    require("is_positive" not in marks or value > 0, f"{label} is not positive; use None")


_field_types = cache(get_type_hints)  # uncached, it would take most of the time
