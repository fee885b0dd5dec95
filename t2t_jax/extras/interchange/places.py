"""The arrays of an imported model: each is taken by its name, and an array left over is refused.

Some files also store constants, such as sinusoids or the mask of causal attention. This package
computes them, so a file whose constants have other values is refused.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float32, Int

from t2t_jax.config import ModelConfig
from t2t_jax.errors import UserError
from t2t_jax.modules.names import Arrays

PAD, END, BEGIN, UNKNOWN = "<pad>", "</s>", "<s>", "<unk>"
"""The names of special entries."""

FIRST_ENTRIES = BEGIN, PAD, END, UNKNOWN
"""The entries with the ids 0 to 3 in M2M100, mBART and BART."""

Order: TypeAlias = Int[np.ndarray, " _"]
"""The entries of a vocabulary in the order of this package, by their ids in the original."""

NONE = -1
"""The id in an order that marks an entry which the original vocabulary does not have."""

NamedArrays: TypeAlias = Iterator[tuple[str, Float32[np.ndarray, "..."]]]
"""Arrays that are yielded with their names."""


def new_order(pieces: Sequence[str], first: Sequence[int]) -> tuple[list[str], Order]:
    """Return the entries of a vocabulary in the order of this package.

    Args:
      pieces: the entry of each id, in the original.
      first: the original's ids of the entries that come first: padding, the end of a sentence and
        others with a fixed place; `NONE` for an entry that the original does not have.

    Returns:
      The entries in the new order, with the names `PAD` and `END` for the first two, and the
      original's id of each.
    """
    order = [*first, *(number for number in range(len(pieces)) if number not in first)]
    names = [PAD, END, *(pieces[number] for number in order[2:])]
    return names, np.array(order)


def rows_in(array: Float32[np.ndarray, "..."], order: Order) -> Float32[np.ndarray, "..."]:
    """Return the rows of an array in a new order, with zeros for entries that the original lacks.

    Args:
      array: an array with a row, or a number, for each of the original's entries.
      order: the original's id of each entry; see `new_order`.
    """
    there = (order != NONE).reshape(-1, *[1] * (array.ndim - 1))
    return np.where(there, array[order], np.float32(0)).astype(np.float32)


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
        """Take an array that repeats another one, if the file has it."""
        if name in self and not np.array_equal(self.take(name), of):
            raise UserError(
                f"{self.file} has another array {name} than the one that it is shared with; it is "
                "damaged, or its options are of another model"
            )

    def rows(self, name: str, order: Order, *width: int) -> Float32[np.ndarray, "..."]:
        """Take an array with a row for each entry of a vocabulary, and return it in our order.

        Args:
          order: the row in the file of each of our entries.
          width: the length of a row; nothing for an array with a number for each entry.
        """
        entries = int(np.count_nonzero(order != NONE))
        return rows_in(self.take(name, entries, *width), order)

    def finish(self, constants: Constants) -> None:
        """Refuse a file with an array that was not taken, unless it is a constant."""
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


class Place(NamedTuple):
    """The place of one of our parameters in a model of another library."""

    ours: str
    """The name of the parameter in this package."""
    theirs: str
    """The name of the array in the other library."""
    transposed: bool = False
    """Whether the array of the other library is the transpose of ours."""

    def array(self, tensors: Tensors) -> Float32[np.ndarray, "..."]:
        """Return our parameter, taken from the tensors of the other library."""
        found = tensors.take(self.theirs)
        return np.ascontiguousarray(found.T) if self.transposed else found

    def theirs_of(self, arrays: Arrays) -> Float32[np.ndarray, "..."]:
        """Return the array of the other library, made from our parameters."""
        found = arrays[self.ours]
        return found.T if self.transposed else found


def norm_places(ours: str, theirs: str) -> Iterator[Place]:
    """Yield the places of the scale and the bias of a norm."""
    yield Place(f"{ours}.scale", f"{theirs}.weight")
    yield Place(f"{ours}.bias", f"{theirs}.bias")


def linear_places(ours: str, letter: str, theirs: str, transposed: bool = True) -> Iterator[Place]:
    """Yield the places of a projection's matrix and bias: W_Q and b_Q for the letter "Q"."""
    yield Place(f"{ours}.W_{letter}", f"{theirs}.weight", transposed)
    yield Place(f"{ours}.b_{letter}", f"{theirs}.bias")


def encoder_decoder_places(model: ModelConfig, prefix: str = "") -> Iterator[Place]:
    """Yield the places of all parameters but embeddings, positions and a bias of the output.

    Marian, M2M100, mBART and BART of transformers share these names.

    Args:
      prefix: what the names begin with in the other library.
    """
    names = ("encoder", "source"), ("decoder", "target")
    for (name, side), stack in zip(names, model.stacks, strict=True):
        if model.embedding_norm:
            yield from norm_places(f"{side}_embedding_norm", f"{prefix}{name}.layernorm_embedding")
        for number in range(stack.num_layers):
            yield from _layer_places(name, number, prefix)
        if model.norm_order == "pre":
            yield from norm_places(f"{name}.norm", f"{prefix}{name}.layer_norm")


def _layer_places(stack: str, number: int, prefix: str) -> Iterator[Place]:
    """Yield the places of a layer's parameters in Marian, M2M100, mBART and BART.

    Args:
      stack: "encoder" or "decoder".
      prefix: what the names begin with before the name of the stack.
    """
    ours, theirs = f"{stack}.layers.{number}", f"{prefix}{stack}.layers.{number}"
    attentions = {"self_attention": "self_attn"}
    if stack == "decoder":
        attentions["cross_attention"] = "encoder_attn"
    for sublayer, attention in attentions.items():
        for letter, name in (("Q", "q_proj"), ("K", "k_proj"), ("V", "v_proj"), ("O", "out_proj")):
            yield from linear_places(f"{ours}.{sublayer}", letter, f"{theirs}.{attention}.{name}")
        yield from norm_places(f"{ours}.{sublayer}.norm", f"{theirs}.{attention}_layer_norm")
    for matrix in ("1", "2"):
        yield from linear_places(f"{ours}.feed_forward", matrix, f"{theirs}.fc{matrix}")
    yield from norm_places(f"{ours}.feed_forward.norm", f"{theirs}.final_layer_norm")
