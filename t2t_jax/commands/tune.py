"""The values of --tune, as a command line gives them."""

from collections.abc import Sequence
from typing import Any, get_args

from t2t_jax.commands.vary import field_and_values, values_in
from t2t_jax.config.config import known_fields
from t2t_jax.errors import UserError
from t2t_jax.sweep.sampling import Range


def tuned_fields(texts: Sequence[str], *, for_sampler: bool) -> dict[str, list[Any] | Range]:
    """Return the values of each tuned field by its path, or its range for a sampler.

    Raises:
      UserError: a text has another form, or names no field, or one that another text has named, or
        a value is not of its type.
    """
    found: dict[str, list[Any] | Range] = {}
    for text in texts:
        path, values = field_and_values("--tune", text, found)
        found[path] = _range_of(path, values) if for_sampler else values_in("--tune", path, values)
    return found


def _range_of(field: str, text: str) -> Range:
    """Return the range that a text such as `0.5:2:log` describes."""
    hint = known_fields()[field].type
    kind = int if hint is int or int in get_args(hint) else float
    try:
        low, high, scale = text.split(":")
        found = Range(kind(low), kind(high), scale)
        found.check()
    except ValueError:
        raise UserError(
            f"--tune {field}={text} is no range for a sampler; give two ends and a scale, as "
            "0.5:2:log or 0:0.3:lin"
        ) from None
    return found
