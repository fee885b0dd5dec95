"""The arrays of a model that comes from elsewhere: each is taken by its name, and none is left."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int
from safetensors import safe_open

from t2t_jax.errors import UserError
from t2t_jax.interchange.numbering import NONE, rows_in
from t2t_jax.system.regular_file import regular

_WEIGHTS = ("float64", "float32", "float16", "bfloat16")
_INTEGERS = {f"{kind}{bits}" for kind in "IU" for bits in (8, 16, 32, 64)}
_READABLE = {"F64", "F32", "F16", "BF16", "BOOL", *_INTEGERS}  # buffers may be integers


class Tensors:
    """The arrays of a file, each of which is taken by its name; what is left is unknown."""

    def __init__(
        self,
        file: Path,
        arrays: Mapping[str, np.ndarray],
        spellings: Callable[[str], Iterable[str]] = lambda name: (name,),
    ) -> None:
        """Wrap the arrays of a file.

        Args:
          file: the file, for errors.
          arrays: the arrays, by their names there.
          spellings: the names that an array of a name may have there.
        """
        self.file = file
        self._arrays = arrays
        self._left = set(arrays)
        self._spellings = spellings

    def __contains__(self, name: str) -> bool:
        """Whether there is an array of this name."""
        return any(one in self._arrays for one in self._spellings(name))

    def take(self, name: str, *shape: int | None) -> Float32[np.ndarray, "..."]:
        """An array, in float32.

        Args:
          name: its name.
          shape: the length of each axis, None for any; () for what is checked elsewhere.

        Raises:
          UserError: there is none, or it has another shape, or other than finite numbers.
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
        if shape and not _fits(array.shape, shape):
            wanted = ", ".join("any" if length is None else f"{length:,}" for length in shape)
            raise UserError(
                f"{self.file} has the array {name} of shape {array.shape}, and the options of the "
                f"model ask for ({wanted}); they are of another model"
            )
        with np.errstate(over="ignore"):  # what becomes infinite is refused
            array = np.asarray(array, np.float32)
        if not np.isfinite(array).all():
            raise UserError(
                f"{self.file} has NaN or infinity in the array {name}; choose a checkpoint from "
                "before the training diverged"
            )
        return array

    def take_copy(self, name: str, of: Float32[np.ndarray, "..."]) -> None:
        """Take what is another array once more, and may be left out.

        Raises:
          UserError: it is not the same.
        """
        if name in self and not np.array_equal(self.take(name), of):
            raise UserError(
                f"{self.file} has another array {name} than the one that it is shared with; it is "
                "damaged, or its options are of another model"
            )

    def rows(
        self, name: str, order: Int[np.ndarray, " entries"], *width: int
    ) -> Float32[np.ndarray, "..."]:
        """An array with a row for each entry of a vocabulary, in our order.

        Args:
          name: its name.
          order: the number of each of our entries there; see `numbering.new_order`.
          width: the length of a row; nothing for what has a number for each entry.
        """
        array = self.take(name)
        array = array.ravel() if array.shape[:1] == (1,) else array  # a bias has an axis more
        entries = int(np.count_nonzero(order != NONE))
        if array.shape != (entries, *width):
            raise UserError(
                f"{self.file} has the array {name} of shape {array.shape}, and the options of the "
                f"model ask for {(entries, *width)}; they are of another model"
            )
        return rows_in(array, order)

    def finish(self, without: str = "") -> None:
        """Refuse a file with an array that nobody has taken.

        Args:
          without: a regular expression of names that make no difference to the model.

        Raises:
          UserError: there is one.
        """
        if left := [name for name in self._left if not re.fullmatch(without, name)]:
            raise UserError(
                f"{self.file} has the array {ascii(min(left))[1:-1]:.80}, which no model of "
                "t2t_jax with its options has; choose a checkpoint without"
            )


def _fits(found: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(found) == len(wanted) and all(
        there and length in (None, there) for there, length in zip(found, wanted, strict=True)
    )


def read_safetensors(file: Path) -> tuple[dict[str, np.ndarray], Mapping[str, str]]:
    """The arrays of a file of safetensors, and what else is said there.

    Raises:
      UserError: it is missing or damaged, or has numbers that NumPy has not.
    """
    try:
        with safe_open(regular(file), framework="numpy") as opened:
            names = opened.keys()
            for name in names:
                if (dtype := opened.get_slice(name).get_dtype()) not in _READABLE:
                    raise UserError(
                        f"{file} has numbers of the kind {dtype} in the array {name!r:.80}; import "
                        "the model in float32, float16 or bfloat16"
                    )
            return {name: opened.get_tensor(name) for name in names}, opened.metadata() or {}
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # the library raises a class of its own, and those of NumPy
        why = " ".join(str(error).split())
        raise UserError(f"{file} is damaged, or no file of safetensors: {why:.200}") from error
