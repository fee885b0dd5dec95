"""Read settings, vocabularies and tensors of imported models from untrusted files.

All readers raise a `UserError` for a missing or damaged file.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Annotated, TypedDict

import jax.numpy as jnp
import numpy as np
from jaxtyping import Shaped
from msgspec import Meta
from sentencepiece import SentencePieceProcessor

from t2t_jax.config import Config
from t2t_jax.data.vocabularies.shared import processor_of
from t2t_jax.errors import UserError, in_one_line, way_out_of
from t2t_jax.system.records import Record, Schema, parse_object, schema
from t2t_jax.system.regular_file import regular

SIZE = Annotated[int, Meta(ge=1, le=10_000_000)]
"""The allowed range of a width, a vocabulary size or a number of positions."""
DEPTH = Annotated[int, Meta(ge=1, le=10_000)]
"""The allowed range of a number of layers or heads."""
ID = Annotated[int, Meta(ge=0, le=10_000_000)]
"""The allowed range of a vocabulary id."""
RATE = Annotated[float, Meta(ge=0, le=1)]
"""The allowed range of a dropout rate or of the epsilon of a norm."""
_MAX_BYTES = 1 << 28


class Token(TypedDict):
    """A token that a tokenizer adds to its subwords, in JSON."""

    content: str


class _TokenWithId(Token):
    id: ID


_MODEL = schema(
    {"vocab": dict[str, ID] | list[tuple[str, float]]}, {"continuing_subword_prefix": str | None}
)
_TOKENIZER = schema({"model": _MODEL}, {"added_tokens": list[_TokenWithId]})


def read_bytes(path: Path) -> bytes:
    """Return the contents of a settings or vocabulary file."""
    try:
        if regular(path).stat().st_size > _MAX_BYTES:
            raise UserError(f"{path} exceeds {_MAX_BYTES >> 20} MB, the limit for such files")
        return path.read_bytes()
    except OSError as error:
        problem = f"{path} cannot be read ({error.strerror}), but the import needs it"
        raise UserError(f"{problem}; {way_out_of(error)}") from error


def read_json(path: Path, schema: Schema) -> Record:
    """Read a JSON object from a file, and check it against a schema."""
    content = read_bytes(path)
    try:
        return parse_object(content, schema)
    except ValueError as error:
        raise UserError(
            f"{path} is damaged, or belongs to another kind of model: {error}; copy it again from "
            "the original model"
        ) from error


def read_tokenizer(path: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Return the ids of all entries in a tokenizer.json, and the ids of its added tokens."""
    content = read_json(path, _TOKENIZER)
    model = content["model"]
    if model.get("merges") and model.get("continuing_subword_prefix"):  # the library panics
        raise UserError(
            f"{path} has a continuing_subword_prefix together with merges; copy it again"
        )
    vocab = model["vocab"]
    if isinstance(vocab, list):  # a unigram model lists pairs of a piece and its score
        vocab = {piece: index for index, (piece, *_) in enumerate(vocab)}
    added_ids = {token["content"]: token["id"] for token in content.get("added_tokens", [])}
    return {**vocab, **added_ids}, added_ids


def pieces_by_id(path: Path, ids: Mapping[str, int], size: int) -> list[str]:
    """Return vocabulary entries in id order.

    Raises:
      UserError: an id from 0 to `size` - 1 is missing, or entries share an id.
    """
    pieces = sorted(ids, key=ids.__getitem__)
    if [ids[piece] for piece in pieces] != [*range(size)]:
        raise UserError(
            f"{path} does not give each of the {size:,} entries of config.json its own id"
        )
    return pieces


def read_splitter(path: Path) -> SentencePieceProcessor:
    """Load a SentencePiece model from a file."""
    try:
        return processor_of(read_bytes(path))
    except RuntimeError as error:
        raise UserError(f"{path} is not a valid SentencePiece model; copy it again") from error


@contextmanager
def naming_file(file: Path | str) -> Iterator[None]:
    """Turn a `ValueError` in the block into a `UserError` that names a vocabulary file."""
    try:
        yield
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{file} is {error}; copy it again") from error


def sibling_path(file: Path, name: str) -> Path:
    """Return the path of a file in the directory of `file`; refuse a name with directories."""
    if PurePosixPath(name).name != name or not name.isprintable():
        raise UserError(
            f"{file} names {name!r:.80}, which is not a file in the same directory; move the file "
            "there, and name it without directories"
        )
    return file.parent / name


def config_of(file: Path, changes: Mapping[str, object], base: Config | None = None) -> Config:
    """Change fields of a config, or of the default config. Errors name the file of the changes."""
    try:
        return (base or Config()).replace(changes)
    except UserError as error:
        raise UserError(f"{file}: {error}") from error


_MIN_TORCH = 2, 6  # earlier versions may execute code in spite of weights_only (CVE-2025-32434)


def read_torch_file(file: Path) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Read the tensors of a `torch.save` file, without executing any code from the file."""
    try:
        regular(file)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from error
    try:
        import torch
    except ModuleNotFoundError as error:
        raise UserError(
            f"{file} needs PyTorch, which is not installed: pip install torch; or load the model "
            "with transformers elsewhere, and save it as model.safetensors: "
            "model.save_pretrained(DIRECTORY, safe_serialization=True)"
        ) from error
    if tuple(map(int, torch.__version__.split(".")[:2])) < _MIN_TORCH:
        raise UserError(
            f"{file}: PyTorch {torch.__version__} may execute code in the file; upgrade PyTorch: "
            "pip install 'torch>=2.6'"
        )
    try:
        tensors = torch.load(file, map_location="cpu", weights_only=True)
        for name, tensor in tensors.items():
            if not (isinstance(name, str) and isinstance(tensor, torch.Tensor)):
                raise TypeError(f"{name!r:.80} is not a tensor")
        arrays = {
            # PyTorch cannot convert bfloat16 to NumPy. float32 holds every bfloat16 value.
            name: tensor.float().detach().numpy().astype(jnp.bfloat16)
            if tensor.dtype is torch.bfloat16
            else tensor.detach().numpy()
            for name, tensor in tensors.items()
        }
    except Exception as error:  # a damaged pickle may raise anything
        reason = in_one_line(error) or type(error).__name__
        raise UserError(
            f"{file} is damaged, or contains more than weights: {reason:.150}; copy it again"
        ) from error
    if not arrays:
        raise UserError(f"{file} has no dictionary of tensors")
    return arrays
