"""The arrays of an imported model: each is taken by its name, and an array left over is refused.

Some files also store constants, such as sinusoids or the mask of causal attention. This package
computes them, so a file whose constants have other values is refused.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float32, Int

from t2t_jax.errors import UserError
from t2t_jax.interchange.numbering import NONE, rows_in

_WEIGHTS = ("float64", "float32", "float16", "bfloat16")


Spellings: TypeAlias = Callable[[str], Iterable[str]]
"""A function that returns the names that an array may have in a file, by its name here."""


def as_written(name: str) -> tuple[str, ...]:
    """Return the only name of an array."""
    return (name,)


Constants: TypeAlias = Mapping[str, Sequence[Callable[..., Any]]]
"""The constants that a file may store: for each pattern of names, the formulas that an array may
follow. A formula returns the values by the lengths of the axes."""


class Tensors:
    """The arrays of a file, each of which is taken by its name; `finish` refuses what is left."""

    def __init__(
        self, file: Path, arrays: Mapping[str, np.ndarray], spellings: Spellings = as_written
    ) -> None:
        """Wrap the arrays of a file by their names there; `spellings` are those a name may have."""
        self.file = file
        self._arrays = arrays
        self._left = set(arrays)
        self._spellings = spellings

    def __contains__(self, name: str) -> bool:
        """Return whether the file has an array of this name, in any of its spellings."""
        return any(one in self._arrays for one in self._spellings(name))

    def take(self, name: str, *shape: int | None) -> Float32[np.ndarray, "..."]:
        """Return an array in float32, and count it as taken.

        Args:
          shape: the length of each axis, None for any; () if the caller checks the shape.
        """
        found = next((one for one in self._spellings(name) if one in self._arrays), None)
        if found is None:
            raise UserError(
                f"{self.file} has no array {name}, which a model with its options has; it is "
                "damaged, or of another kind of model"
            )
        self._left.discard(found)
        array = self._arrays[found]
        if array.dtype.name not in _WEIGHTS:
            raise UserError(
                f"{self.file} has numbers of the kind {array.dtype} in the array {name}; import "
                "the model as it was before its weights were made integers"
            )
        if shape and (
            array.ndim != len(shape)
            or any(wanted not in (None, n) for n, wanted in zip(array.shape, shape, strict=True))
        ):
            wanted = ", ".join("any" if length is None else f"{length:,}" for length in shape)
            raise UserError(
                f"{self.file} has the array {name} of shape {array.shape}, and the options of the "
                f"model ask for ({wanted}); they are of another model"
            )
        with np.errstate(over="ignore"):  # an overflow is refused below
            array = np.asarray(array, np.float32)
        if not np.isfinite(array).all():
            raise UserError(
                f"{self.file} has NaN or infinity in the array {name}; choose a checkpoint from "
                "before the training diverged"
            )
        return array

    def take_copy(self, name: str, of: Float32[np.ndarray, "..."]) -> None:
        """Take an array that repeats another one, if the file has it.

        Raises:
          UserError: the two arrays differ.
        """
        if name in self and not np.array_equal(self.take(name), of):
            raise UserError(
                f"{self.file} has another array {name} than the one that it is shared with; it is "
                "damaged, or its options are of another model"
            )

    def rows(
        self, name: str, order: Int[np.ndarray, " entries"], *width: int
    ) -> Float32[np.ndarray, "..."]:
        """Take an array with a row for each entry of a vocabulary, and return it in our order.

        Args:
          order: the row in the file of each of our entries; see `numbering.new_order`.
          width: the length of a row; nothing for an array with a number for each entry.
        """
        entries = int(np.count_nonzero(order != NONE))
        return rows_in(self.take(name, entries, *width), order)

    def finish(self, constants: Constants) -> None:
        """Refuse a file with an array that was not taken, unless it is a constant.

        Raises:
          UserError: the file has such an array, or a constant with other values.
        """
        for name in sorted(self._left):
            shown = f"{self.file} has the array {ascii(name)[1:-1]:.80}"
            formulas = next((f for one, f in constants.items() if re.fullmatch(one, name)), ())
            if not formulas:
                raise UserError(
                    f"{shown}, which no model of t2t_jax with its options has; choose a "
                    "checkpoint without"
                )
            array = self._arrays[name]
            difference = min(_difference(array, formula) for formula in formulas)
            # float16 and float32 round by less; so does bfloat16, with its larger bound.
            bound = 4e-3 if array.dtype.name == "bfloat16" else 1e-3
            if not difference < bound * max(1, np.abs(array.astype(np.float64)).max(initial=0)):
                raise UserError(
                    f"{shown}, which differs by up to {difference:.3g} from the formula by which "
                    "t2t_jax computes it; choose a checkpoint without it"
                )


def _difference(array: np.ndarray, formula: Callable[..., Any]) -> float:
    """Return the largest difference of an array from a formula, or infinity for another shape."""
    try:
        expected = np.broadcast_to(formula(*array.shape), array.shape)
    except (IndexError, TypeError, ValueError):
        return np.inf
    return float(np.abs(array.astype(np.float64) - expected).max(initial=0))
