"""Readers for the settings and vocabularies of an imported model, which trust no file.

They raise a `UserError` that names a file that is missing, damaged or of another kind.
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
"""The range of a width, and of a number of entries or positions."""
DEPTH = Annotated[int, Meta(ge=1, le=10_000)]
"""The range of a number of layers or heads."""
ID = Annotated[int, Meta(ge=0, le=10_000_000)]
"""The range of the id of an entry of a vocabulary."""
RATE = Annotated[float, Meta(ge=0, le=1)]
"""The range of a rate of dropout, and of the epsilon that a norm adds to the variance."""
_MAX_BYTES = 1 << 28


class Token(TypedDict):
    """An entry of a vocabulary beyond its subwords."""

    content: str


class _NumberedToken(Token):
    id: ID


_MODEL = schema(
    {"vocab": dict[str, ID] | list[tuple[str, float]]}, {"continuing_subword_prefix": str | None}
)
_TOKENIZER = schema({"model": _MODEL}, {"added_tokens": list[_NumberedToken]})


def read_bytes(path: Path) -> bytes:
    """Return the contents of a file of settings, or of a vocabulary."""
    try:
        if regular(path).stat().st_size > _MAX_BYTES:
            raise UserError(f"{path} is larger than {_MAX_BYTES >> 20} MB, as no such file is")
        return path.read_bytes()
    except OSError as error:
        why = f"{path} cannot be read ({error.strerror}), which belongs to the model"
        raise UserError(f"{why}; {way_out_of(error)}") from error


def read_text(path: Path) -> str:
    """Return the text of a file of settings, or of a vocabulary."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8; copy it again from where the model was") from error


def read_json(path: Path, schema: Schema) -> Record:
    """Return the fields of a file of JSON, checked against a schema."""
    content = read_bytes(path)
    try:
        return parse_object(content, schema)
    except ValueError as error:
        raise UserError(
            f"{path} is damaged, or of another kind of model: {error}; copy it again from where "
            "the model was"
        ) from error


def read_tokenizer(path: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Return the ids of all entries in a tokenizer.json, and of those beyond the subwords."""
    content = read_json(path, _TOKENIZER)
    model = content["model"]
    if model.get("merges") and model.get("continuing_subword_prefix"):  # the library panics
        raise UserError(
            f"{path} has a continuing_subword_prefix together with merges; copy it anew"
        )
    vocab = model["vocab"]
    if isinstance(vocab, list):  # a unigram model has pairs of a piece and its score
        vocab = {piece: number for number, (piece, *_) in enumerate(vocab)}
    added = {token["content"]: token["id"] for token in content.get("added_tokens", [])}
    return {**vocab, **added}, added


def pieces_by_id(path: Path, ids: Mapping[str, int], size: int) -> list[str]:
    """Return the entry of each id in a file, or refuse the file where ids are missing or shared."""
    pieces = sorted(ids, key=ids.__getitem__)
    if [ids[piece] for piece in pieces] != [*range(size)]:
        raise UserError(
            f"{path} does not give each of {size:,} entries an id of its own, as config.json has it"
        )
    return pieces


def read_splitter(path: Path) -> SentencePieceProcessor:
    """Return the SentencePiece model in a file."""
    try:
        return processor_of(read_bytes(path))
    except RuntimeError as error:
        raise UserError(f"{path} is damaged, or no SentencePiece model; copy it anew") from error


@contextmanager
def vocabulary_of(file: Path | str) -> Iterator[None]:
    """Name a file in the error for a vocabulary that is made of it within the block."""
    try:
        yield
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{file} is {error}; copy it anew") from error


def sibling_path(file: Path, name: str) -> Path:
    """Return the path of a file in the directory of `file`; refuse a name with directories."""
    if PurePosixPath(name).name != name or not name.isprintable():
        raise UserError(
            f"{file} names {name!r:.80}, which is no file beside it, and is not read; put the "
            "file there, and name it without directories"
        )
    return file.parent / name


def config_of(file: Path, changes: Mapping[str, object], base: Config | None = None) -> Config:
    """Return a config, or the default one, with the changes that follow from a file."""
    try:
        return (base or Config()).replace(changes)
    except UserError as error:
        raise UserError(f"{file}: {error}") from error


_OLDEST = 2, 6  # earlier versions may execute code in spite of weights_only (CVE-2025-32434)


def read_torch_file(file: Path) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Read the tensors of a file that `torch.save` wrote. No code in the file is executed."""
    try:
        regular(file)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from error
    try:
        import torch
    except ModuleNotFoundError as error:
        raise UserError(
            f"{file} is read by PyTorch, which is not installed: pip install torch; or load the "
            "model with transformers elsewhere, and save it as model.safetensors: "
            "model.save_pretrained(DIRECTORY, safe_serialization=True)"
        ) from error
    if tuple(map(int, torch.__version__.split(".")[:2])) < _OLDEST:
        raise UserError(
            f"{file}: PyTorch {torch.__version__} may execute code in the file; upgrade it: "
            "pip install 'torch>=2.6'"
        )
    try:
        weights = torch.load(file, map_location="cpu", weights_only=True)
        for name, tensor in weights.items():
            if not (isinstance(name, str) and isinstance(tensor, torch.Tensor)):
                raise TypeError(f"{name!r:.80} is no tensor")
        arrays = {
            # PyTorch makes no bfloat16 of NumPy, and float32 holds each of its values.
            name: tensor.float().detach().numpy().astype(jnp.bfloat16)
            if tensor.dtype is torch.bfloat16
            else tensor.detach().numpy()
            for name, tensor in weights.items()
        }
    except Exception as error:  # a damaged pickle may raise anything
        why = in_one_line(error) or type(error).__name__
        raise UserError(
            f"{file} is damaged, or holds more than weights: {why:.150}; copy it anew"
        ) from error
    if not arrays:
        raise UserError(f"{file} has no dictionary of tensors, which weights are")
    return arrays
