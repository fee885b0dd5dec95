"""The values of --tune, as a command line gives them."""

from collections.abc import Sequence
from typing import Any

from t2t_jax.commands.vary import values_of
from t2t_jax.config.config import known_fields
from t2t_jax.errors import UserError, did_you_mean
from t2t_jax.sweep.sampling import Range

_EXAMPLE = "--tune training.learning_rate_factor=0.5:2:log5"


def tuned_fields(texts: Sequence[str], *, for_sampler: bool) -> dict[str, list[Any] | Range]:
    """Return the values of each tuned field by its path, or its range for a sampler.

    Raises:
      UserError: a text has another form, or names no field, or one that another text has named.
    """
    found: dict[str, list[Any] | Range] = {}
    for text in texts:
        path, equals, values = text.partition("=")
        known = known_fields()
        if not equals or not values:
            raise UserError(f"--tune {text!r} is not FIELD=values, as in {_EXAMPLE}")
        if path not in known:
            hint = did_you_mean(path, known, f"give a field, as in {_EXAMPLE}")
            raise UserError(f"--tune has the unknown field {path!r}; {hint}")
        if path in found:
            raise UserError(f"--tune has {path} twice; give it once, with all of its values")
        found[path] = _range_of(path, values) if for_sampler else values_of(path, values)
    return found


def _range_of(field: str, text: str) -> Range:
    """Return the range that a text such as `0.5:2:log` describes."""
    low, _, rest = text.partition(":")
    high, _, scale = rest.partition(":")
    kind = int if isinstance(known_fields()[field].default, int) else float
    try:
        found = Range(kind(low), kind(high), scale)
        found.check()
    except ValueError:
        raise UserError(
            f"--tune {field}={text} is no range for a sampler; give two ends and a scale, as "
            "0.5:2:log or 0:0.3:lin"
        ) from None
    return found
