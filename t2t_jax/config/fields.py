"""What a field of a config declares of itself, beside its type and its default."""

from collections.abc import Callable
from typing import Any

MAY_CHANGE = {"may_change": True}
"""Marks a field with another value of which a run may be continued: it changes when and where work
is done, never the recipe."""

NOT_EXPORTED = {"exported": False}
"""Marks a field of the sections `model`, `data` and `decoding` that exported files need not carry:
it is of training alone, or stands in the vocabulary, or says how the work is laid out. Any other
field is refused by every format until the format claims it; see `interchange.carried`."""


def read_where(condition: Callable[[Any], bool]) -> dict[str, Any]:
    """Marks a field that is read only where other fields of its section have certain values.

    Args:
      condition: whether a section reads the field.

    Returns:
      Metadata of the field.
    """
    return {"read_where": condition}


def added_later(before: Any) -> dict[str, Any]:
    """Marks a field that the first release, 0.1.0, does not have, so that older runs stay readable.

    Every field that is added declares this; one that may change needs it only where its default is
    not what older runs did. A field that declares neither is one of 0.1.0, and a config without it
    is damaged.

    Args:
      before: the value with which runs that lack the field were trained.

    Returns:
      Metadata of the field, as in `field(default="new", metadata=added_later(before="old"))`.
    """
    return {"before": before}


def left_open(value: Any) -> dict[str, Any]:
    """Marks a field with a value that leaves the choice to the start of a run.

    A run's own config has what was chosen, and goes on with it: there the value differs from none.

    Args:
      value: the value that leaves it open, such as "auto".

    Returns:
      Metadata of the field.
    """
    return {"left_open": value}
