"""Read the arrays of an imported model, and map names of transformers to names of t2t_jax.

`Tensors.finish` refuses unread arrays. Some files also store constants, such as sinusoids or causal
masks. t2t_jax computes these constants itself, so `finish` refuses constants with other values.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float32, Int

from t2t_jax.config import ModelConfig
from t2t_jax.errors import UserError
from t2t_jax.modules.names import Arrays

PAD, END, BEGIN, UNKNOWN = "<pad>", "</s>", "<s>", "<unk>"
"""The texts of special vocabulary entries."""

FIRST_ENTRIES = BEGIN, PAD, END, UNKNOWN
"""The entries with the ids 0 to 3 in M2M100, mBART and BART."""

Order: TypeAlias = Int[np.ndarray, " _"]
"""The original id of each vocabulary entry, by t2t_jax id."""

NONE = -1
"""The value in an `Order` for an entry that the original vocabulary lacks."""

NamedArrays: TypeAlias = Iterator[tuple[str, Float32[np.ndarray, "..."]]]
"""An iterator over pairs of a name and an array."""


def new_order(pieces: Sequence[str], first_ids: Sequence[int]) -> tuple[list[str], Order]:
    """Return the text and the original id of each vocabulary entry, by t2t_jax id.

    Args:
      pieces: text of each entry, by original id.
      first_ids: original ids of padding, end of sentence and other special entries that come first;
        `NONE` adds an entry that the original vocabulary lacks.
    """
    old_ids = [*first_ids, *(old_id for old_id in range(len(pieces)) if old_id not in first_ids)]
    texts = [PAD, END, *(pieces[old_id] for old_id in old_ids[2:])]
    return texts, np.array(old_ids)


def reorder_rows(array: Float32[np.ndarray, "..."], old_ids: Order) -> Float32[np.ndarray, "..."]:
    """Reorder the rows of an array from original ids to t2t_jax ids, with zeros for `NONE`."""
    # `array` has the shape [original vocabulary, ...], and the result [vocabulary, ...].
    has_row = (old_ids != NONE).reshape(-1, *[1] * (array.ndim - 1))
    return np.where(has_row, array[old_ids], np.float32(0)).astype(np.float32)


_DTYPES = ("float64", "float32", "float16", "bfloat16")

Constants: TypeAlias = Mapping[str, Sequence[Callable[..., Any]]]
"""The constants that a file may store. A key is a pattern of array names; the values are the
formulas that such an array may follow. A formula maps the lengths of the axes to an array."""


class Tensors:
    """The arrays of a model file. An import takes each array by name, then calls `finish`."""

    def __init__(self, file: Path, arrays: Mapping[str, np.ndarray]) -> None:
        """Wrap the arrays of a file, by name."""
        self.file = file
        self._arrays = arrays
        self._unread = set(arrays)

    def __contains__(self, name: str) -> bool:
        """Return whether the file has an array."""
        return name in self._arrays

    def prefix(self, optional: str) -> str:
        """Return an optional prefix of names if the file uses it, or else ""."""
        return optional if any(name.startswith(optional) for name in self._arrays) else ""

    def take(self, name: str, *shape: int | None) -> Float32[np.ndarray, "..."]:
        """Return an array in float32, and mark it as read.

        Args:
          shape: expected length of each axis, or None for any; no arguments skip the check.

        Raises:
          UserError: the array is missing, not finite, or has another shape or kind of dtype.
        """
        if name not in self:
            raise UserError(
                f"{self.file} has no array {name}, but its options require the array; the file is "
                "damaged, or belongs to another kind of model"
            )
        self._unread.discard(name)
        array = self._arrays[name]
        if array.dtype.name not in _DTYPES:
            raise UserError(
                f"{self.file} has the dtype {array.dtype} in the array {name}; import the "
                "unquantized model in float32, float16 or bfloat16"
            )
        if shape and (
            array.ndim != len(shape)
            or any(length not in (None, n) for n, length in zip(array.shape, shape, strict=True))
        ):
            lengths = ", ".join("any" if length is None else f"{length:,}" for length in shape)
            raise UserError(
                f"{self.file} has the array {name} of shape {array.shape}, but the options of the "
                f"model require ({lengths}); the options belong to another model"
            )
        with np.errstate(over="ignore"):  # the next check refuses infinity
            array = np.asarray(array, np.float32)
        if not np.isfinite(array).all():
            raise UserError(
                f"{self.file} has NaN or infinity in the array {name}; choose a checkpoint from "
                "before training diverged"
            )
        return array

    def take_copy(self, name: str, original: Float32[np.ndarray, "..."]) -> None:
        """Read the array `name`, if present; raise a `UserError` if it differs from `original`."""
        if name in self and not np.array_equal(self.take(name), original):
            raise UserError(
                f"{self.file} has an array {name} that differs from the shared embedding matrix; "
                "the file is damaged, or its options belong to another model"
            )

    def take_rows(self, name: str, old_ids: Order, *width: int) -> Float32[np.ndarray, "..."]:
        """Take an array with a row per vocabulary entry, and reorder its rows to t2t_jax ids.

        Args:
          width: length of a row; no argument if the array has one value per entry.
        """
        num_entries = int(np.count_nonzero(old_ids != NONE))
        return reorder_rows(self.take(name, num_entries, *width), old_ids)

    def finish(self, constants: Constants) -> None:
        """Raise a `UserError` if an unread array does not equal a formula in `constants`."""
        for name in sorted(self._unread):
            subject = f"{self.file} has the array {ascii(name)[1:-1]:.80}"
            formulas = next((f for key, f in constants.items() if re.fullmatch(key, name)), ())
            if not formulas:
                raise UserError(
                    f"{subject}, which no t2t_jax model with these options has; choose a "
                    "checkpoint without it"
                )
            array = self._arrays[name]
            difference = min(_largest_difference(array, formula) for formula in formulas)
            # The tolerances exceed the rounding errors of bfloat16, and of float16 and float32.
            tolerance = 4e-3 if array.dtype.name == "bfloat16" else 1e-3
            # `not <` also refuses a difference of NaN.
            if not difference < tolerance * max(1, np.abs(array.astype(np.float64)).max(initial=0)):
                raise UserError(
                    f"{subject}, which differs by up to {difference:.3g} from the formula by which "
                    "t2t_jax computes it; choose a checkpoint without it"
                )


def _largest_difference(array: np.ndarray, formula: Callable[..., Any]) -> float:
    """Return the largest difference from a formula, or infinity if the shapes differ."""
    try:
        expected = np.broadcast_to(formula(*array.shape), array.shape)
    except (IndexError, TypeError, ValueError):
        return np.inf
    return float(np.abs(array.astype(np.float64) - expected).max(initial=0))


class NamePair(NamedTuple):
    """The names of one parameter in t2t_jax and in transformers."""

    name: str
    """The name of the parameter in t2t_jax."""
    hf_name: str
    """The name of the array in transformers."""
    transposed: bool = False
    """Whether transformers stores the transpose of the array in t2t_jax."""

    def import_array(self, tensors: Tensors) -> Float32[np.ndarray, "..."]:
        """Take the array from a file, and return it in the layout of t2t_jax."""
        array = tensors.take(self.hf_name)
        return np.ascontiguousarray(array.T) if self.transposed else array

    def export_array(self, arrays: Arrays) -> Float32[np.ndarray, "..."]:
        """Return a parameter of t2t_jax in the layout of transformers."""
        array = arrays[self.name]
        return array.T if self.transposed else array


NamePairs: TypeAlias = Iterator[NamePair]


def norm_pairs(name: str, hf_name: str) -> NamePairs:
    """Yield the t2t_jax and transformers names of the scale and the bias of a norm."""
    yield NamePair(f"{name}.scale", f"{hf_name}.weight")
    yield NamePair(f"{name}.bias", f"{hf_name}.bias")


def linear_pairs(name: str, letter: str, hf_name: str, transposed: bool = True) -> NamePairs:
    """Yield both programs' names of a projection's matrix and bias: W_Q and b_Q for letter "Q".

    Args:
      transposed: whether transformers stores the transposed matrix.
    """
    yield NamePair(f"{name}.W_{letter}", f"{hf_name}.weight", transposed)
    yield NamePair(f"{name}.b_{letter}", f"{hf_name}.bias")


def encoder_decoder_pairs(model: ModelConfig, prefix: str) -> NamePairs:
    """Yield the t2t_jax and transformers names of layers and norms in Marian, M2M100, mBART, BART.

    Args:
      prefix: prefix of all names in transformers.
    """
    names = ("encoder", "source"), ("decoder", "target")
    for (name, side), stack in zip(names, model.stacks, strict=True):
        if model.embedding_norm:
            yield from norm_pairs(f"{side}_embedding_norm", f"{prefix}{name}.layernorm_embedding")
        for layer in range(stack.num_layers):
            yield from _layer_pairs(name, layer, prefix)
        if model.norm_order == "pre":
            yield from norm_pairs(f"{name}.norm", f"{prefix}{name}.layer_norm")


def _layer_pairs(stack: str, layer: int, prefix: str) -> NamePairs:
    """Yield the t2t_jax and transformers names in a layer of the stack "encoder" or "decoder"."""
    name, hf_name = f"{stack}.layers.{layer}", f"{prefix}{stack}.layers.{layer}"
    cross = {"cross_attention": "encoder_attn"} if stack == "decoder" else {}
    projections = {"Q": "q_proj", "K": "k_proj", "V": "v_proj", "O": "out_proj"}
    for sublayer, attention in {"self_attention": "self_attn", **cross}.items():
        for letter, linear in projections.items():
            yield from linear_pairs(f"{name}.{sublayer}", letter, f"{hf_name}.{attention}.{linear}")
        yield from norm_pairs(f"{name}.{sublayer}.norm", f"{hf_name}.{attention}_layer_norm")
    for matrix in ("1", "2"):
        yield from linear_pairs(f"{name}.feed_forward", matrix, f"{hf_name}.fc{matrix}")
    yield from norm_pairs(f"{name}.feed_forward.norm", f"{hf_name}.final_layer_norm")
