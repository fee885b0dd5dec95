"""Check values of dataclass fields by their annotations."""

import inspect
import math
import types
from typing import Any, Literal, Union, get_args, get_origin

from t2t_jax.errors import UserError, did_you_mean, quote

_PLAIN = (bool, int, float, str, types.NoneType)


def require(condition: bool, message: str) -> None:
    """Raise a `UserError` unless a condition holds."""
    if not condition:
        raise UserError(message)


def check_range(label: str, value: float, low: float, high: float) -> None:
    """Refuse a value outside of [low, high]; `label` is FIELD=VALUE."""
    require(low <= value <= high, f"{label} is outside [{low:g}, {high:g}]")


def check_callable(title: str, part: Any, arguments: str, result: str = "") -> None:
    """Refuse a part that cannot be called with arguments such as "apply, batch, key"."""
    try:
        inspect.signature(part).bind(*arguments.split(", "))
    except TypeError as error:
        raise UserError(
            f"{title} cannot be called with ({arguments}): {error}; give a function of these"
            f"{result}, or a frozen dataclass with such a method __call__"
        ) from error
    except ValueError:  # a built-in function without a signature
        pass


def is_plain(hint: object) -> bool:
    """Return whether values of a type can be written as text and read again."""
    if get_origin(hint) is Literal or hint in _PLAIN:
        return True
    if get_origin(hint) in (types.UnionType, Union):
        return all(map(is_plain, get_args(hint)))
    element, *ends = get_args(hint) or (None,)
    return get_origin(hint) is tuple and ends == [Ellipsis] and element in _PLAIN


def plain_value(name: str, value: Any, hint: Any) -> object:
    """Return a value in the type of a parameter, which `is_plain` accepts; refuse another value.

    A scalar of NumPy or JAX, an int for a float, and a list for a tuple are converted.
    """
    value = value.item() if hasattr(value, "item") else value
    kinds = get_args(hint) if get_origin(hint) in (types.UnionType, Union) else (hint,)
    if isinstance(value, list | tuple):
        sequences = [kind for kind in kinds if get_origin(kind) is tuple]
        require(bool(sequences), f"{name}={quote(value)} is a sequence; give one value")
        element = get_args(sequences[0])[0]
        return tuple(plain_value(f"an item of {name}", item, element) for item in value)
    scalars = tuple(kind for kind in kinds if get_origin(kind) is not tuple)
    check_type(name, value, Union[scalars] if scalars else tuple)  # noqa: UP007
    is_float = float in kinds and int not in kinds and isinstance(value, int)
    return float(value) if is_float and not isinstance(value, bool) else value


def check_type(name: str, value: object, hint: Any) -> None:
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
