"""Directories of the library transformers of Hugging Face: what `save_pretrained` writes.

config.json                                   kind and sizes of the model
model.safetensors, or pytorch_model.bin       its parameters; nothing in them is executed
model.safetensors.index.json                  in place of it, the file that has each parameter
tokenizer.json                                how text is split, for the library tokenizers
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32
from safetensors.numpy import save

from t2t_jax.config import Config, ModelConfig
from t2t_jax.data.vocabularies.pretrained import PretrainedVocabulary, pretrained_vocabulary
from t2t_jax.errors import UserError
from t2t_jax.interchange.carried import ANY, Carried, sizes_of_transformers
from t2t_jax.interchange.model_files import DEPTH, ID, RATE, SIZE, beside, read_bytes, read_json
from t2t_jax.interchange.names import Arrays
from t2t_jax.interchange.numbering import new_order
from t2t_jax.interchange.tensors import Tensors, read_safetensors
from t2t_jax.interchange.torch_file import read_torch_file, tensors_of
from t2t_jax.system.records import Each, Record, Schema

ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu"}
"""Their name of each activation."""
_INDEX = Schema({"weight_map": Each(dict, str)})
_TOKENIZER = Schema(
    {"model": Schema({"vocab": Each(dict, ID)}, {"continuing_subword_prefix": (str, NoneType)})},
    {"added_tokens": Each(list, Schema({"content": str, "id": ID}))},
)
_PREFIXES = "transformer.", "bert.", "vit."
_OLD_NAMES = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}


def read_pretrained_config(
    path: Path, kind: str, schema: Schema, fixed: Mapping[str, Any]
) -> Record:
    """The fields of config.json.

    Args:
      path: the directory of the model.
      kind: the `model_type` of such models.
      schema: the fields.
      fixed: the value that an option has to have, where it is given.

    Raises:
      UserError: the file is missing or damaged, is of another kind, or has an option that a model
        of ours cannot have.
    """
    file = path / "config.json"
    _refused(file, read_json(file, Schema({"model_type": str})), {"model_type": kind})
    theirs = read_json(file, schema)
    _refused(file, theirs, fixed)
    return theirs


def _spellings(name: str) -> Iterator[str]:
    """The names that releases of the library have given an array."""
    yield name
    yield from (name.removeprefix(prefix) for prefix in _PREFIXES)
    for new, old in _OLD_NAMES.items():
        if name.endswith(new):
            yield f"{name.removesuffix(new)}{old}"


def read_tensors(path: Path) -> Tensors:
    """The tensors of a model, which may lie in several files.

    Args:
      path: its directory.

    Raises:
      UserError: they are missing or damaged.
    """
    for name, read in {"model.safetensors": _safetensors, "pytorch_model.bin": _pytorch}.items():
        file, index = path / name, path / f"{name}.index.json"
        if file.exists():
            return Tensors(file, read(file), _spellings)
        if index.exists():
            return Tensors(index, _in_parts(index, read), _spellings)
    raise UserError(f"{path} has neither model.safetensors nor pytorch_model.bin")


def _safetensors(file: Path) -> dict[str, np.ndarray]:
    return read_safetensors(file)[0]


def _pytorch(file: Path) -> dict[str, np.ndarray]:
    return tensors_of(read_torch_file(file), file)


def _in_parts(index: Path, read: Callable[[Path], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The tensors of the files that an index names."""
    places = read_json(index, _INDEX)["weight_map"]
    found: dict[str, np.ndarray] = {}
    for part in sorted(set(places.values())):
        tensors = read(beside(index, part))
        names = {name for name, place in places.items() if place == part}
        if other := names ^ tensors.keys():
            raise UserError(
                f"{index} says of the array {min(other)!r:.80} something else than {part} has; "
                "copy the files anew"
            )
        found |= tensors
    return found


class Place(NamedTuple):
    """Where a model of another library has one of our parameters."""

    ours: str
    """Our name of it."""
    theirs: str
    """Their name."""
    transposed: bool = False
    """Whether theirs is the transpose of ours."""

    def array(self, tensors: Tensors) -> Float32[np.ndarray, "..."]:
        """Our parameter, of their tensors."""
        found = tensors.take(self.theirs)
        return np.ascontiguousarray(found.T) if self.transposed else found

    def theirs_of(self, arrays: Arrays) -> Float32[np.ndarray, "..."]:
        """Their parameter, of ours."""
        found = arrays[self.ours]
        return found.T if self.transposed else found


def written(directory: Path, config: Mapping[str, Any], arrays: Arrays, readme: str) -> None:
    """Write a model.

    Args:
      directory: an empty directory.
      config: the fields of config.json.
      arrays: the parameters under their names there.
      readme: how the model is used.
    """
    contiguous = {name: np.ascontiguousarray(x) for name, x in arrays.items()}
    (directory / "model.safetensors").write_bytes(save(contiguous, {"format": "pt"}))
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (directory / "README.md").write_text(readme, encoding="utf-8")


def _refused(file: Path, theirs: Record, wanted: Mapping[str, Any]) -> None:
    """Refuse a model that has another value of an option than the one wanted."""
    for name, value in wanted.items():
        if theirs.get(name, value) != value:
            raise UserError(
                f"{file} has {name}={theirs[name]!r:.60}, which a model of t2t_jax "
                f"cannot have; only {value!r}"
            )


def config_of(path: Path, changes: Mapping[str, Any]) -> Config:
    """The config with some changes, which follow from a file.

    Raises:
      UserError: they are refused.
    """
    try:
        return Config().replace(changes)
    except UserError as error:
        raise UserError(f"{path / 'config.json'}: {error}") from error


def read_pretrained_vocabulary(
    path: Path, size: int, special: Callable[[Mapping[str, int]], Sequence[int]], unknown: int
) -> PretrainedVocabulary:
    """The vocabulary of a model.

    Args:
      path: its directory.
      size: number of entries, as config.json has it.
      special: gives the ids of the entries that come first, of the ids of all; see `new_order`.
      unknown: which of these stands for text that the vocabulary cannot spell.

    Raises:
      UserError: tokenizer.json is missing or damaged, or has other entries.
    """
    file = path / "tokenizer.json"
    if not file.exists():
        raise UserError(
            f"{file} is missing; make it with transformers: "
            f"AutoTokenizer.from_pretrained({str(path)!r}).save_pretrained({str(path)!r})"
        )
    content = read_json(file, _TOKENIZER)
    model = content["model"]
    ids = {
        **model["vocab"],
        **{token["content"]: token["id"] for token in content.get("added_tokens", [])},
    }
    first = special(ids)
    if sorted(ids.values()) != list(range(size)):
        raise UserError(
            f"{file} does not give each of {size:,} entries an id of its own, as config.json has it"
        )
    if model.get("merges") and model.get("continuing_subword_prefix"):  # the library panics
        raise UserError(
            f"{file} has a continuing_subword_prefix together with merges, which no GPT-2 has"
        )
    _, order = new_order(sorted(ids, key=lambda piece: ids[piece]), first)
    try:
        return pretrained_vocabulary(read_bytes(file).decode(), order.tolist(), unknown)
    except ValueError as error:
        raise UserError(f"{file} is {error}; copy it anew") from error


def activation(path: Path, theirs: Record, field: str, usual: str) -> str:
    """Our name of the activation that a model has.

    Args:
      path: its directory.
      theirs: the fields of its config.json.
      field: the one that names the activation.
      usual: what it is where the field is not given.

    Raises:
      UserError: there is none of this name.
    """
    ours = {name: one for one, name in ACTIVATIONS.items()}
    name = theirs.get(field, usual)
    if name not in ours:
        raise UserError(
            f"{path / 'config.json'} has {field}={name!r:.60}; a model of t2t_jax can have "
            f"{', '.join(ours)}"
        )
    return ours[name]


ENCODER = Schema(
    {
        "hidden_size": SIZE,
        "num_hidden_layers": DEPTH,
        "num_attention_heads": DEPTH,
        "intermediate_size": SIZE,
    },
    {
        "hidden_act": str,
        "layer_norm_eps": RATE,
        "hidden_dropout_prob": RATE,
        "attention_probs_dropout_prob": RATE,
    },
)
"""The fields of config.json that BERT and ViT share."""


def our_encoder(path: Path, theirs: Record, dropout_rate: float) -> dict[str, Any]:
    """Fields of the config that follow from config.json in the same way for BERT and ViT.

    Args:
      path: the directory of the model.
      theirs: the fields of its config.json.
      dropout_rate: the rate of dropout where it is not given.

    Raises:
      UserError: the activation has no name here.
    """
    attention_dropout = theirs.get("attention_probs_dropout_prob", dropout_rate)
    return {
        "model.architecture": "encoder_only",
        "model.d_model": theirs["hidden_size"],
        "model.num_heads": theirs["num_attention_heads"],
        "model.d_ff": theirs["intermediate_size"],
        "model.num_encoder_layers": theirs["num_hidden_layers"],
        "model.feed_forward": activation(path, theirs, "hidden_act", "gelu"),
        "model.attention_bias": True,
        "model.output_bias": True,
        "model.norm_epsilon": float(theirs.get("layer_norm_eps", 1e-12)),
        "model.position": "learned",
        "model.dropout_rate": float(theirs.get("hidden_dropout_prob", dropout_rate)),
        "model.attention_dropout_rate": float(attention_dropout),
    }


def their_encoder(model: ModelConfig) -> dict[str, Any]:
    """The fields of config.json that follow from the config in the same way for BERT and ViT."""
    return {
        "dtype": "float32",
        "hidden_size": model.d_model,
        "num_hidden_layers": model.num_encoder_layers,
        "num_attention_heads": model.num_heads,
        "intermediate_size": model.d_ff,
        "hidden_act": ACTIVATIONS[model.feed_forward],
        "layer_norm_eps": model.norm_epsilon,
        "hidden_dropout_prob": model.dropout_rate,
        "attention_probs_dropout_prob": model.attention_dropout_rate,
    }


def encoder_places(
    model: ModelConfig, theirs: str, attention: str, norms: tuple[str, str]
) -> Iterator[Place]:
    """Where the encoders of BERT and ViT have the parameters of their layers.

    Args:
      model: sizes and options of the network.
      theirs: their name of the stack of layers.
      attention: their name of the module that projects queries, keys and values.
      norms: their names of the norms around self-attention and feed-forward network.
    """
    for number in range(model.num_encoder_layers):
        ours, layer = f"encoder.layers.{number}", f"{theirs}.{number}"
        names = {
            f"{ours}.self_attention.{{}}_Q": f"{attention}.query",
            f"{ours}.self_attention.{{}}_K": f"{attention}.key",
            f"{ours}.self_attention.{{}}_V": f"{attention}.value",
            f"{ours}.self_attention.{{}}_O": "attention.output.dense",
            f"{ours}.feed_forward.{{}}_1": "intermediate.dense",
            f"{ours}.feed_forward.{{}}_2": "output.dense",
        }
        for name, module in names.items():
            yield Place(name.format("W"), f"{layer}.{module}.weight", transposed=True)
            yield Place(name.format("b"), f"{layer}.{module}.bias")
        for sublayer, norm in zip(("self_attention", "feed_forward"), norms, strict=True):
            yield Place(f"{ours}.{sublayer}.norm.scale", f"{layer}.{norm}.weight")
            yield Place(f"{ours}.{sublayer}.norm.bias", f"{layer}.{norm}.bias")


def carried_by_all(model: ModelConfig) -> Carried:
    """What of a config GPT-2, BERT and ViT of transformers carry alike.

    Args:
      model: the config of a model.
    """
    return {
        **sizes_of_transformers(model),
        "model.attention_bias": (True,),
        "model.feed_forward": tuple(ACTIVATIONS),
        "model.position": ("learned",),
        "model.max_positions": ANY,
        "decoding": ANY,  # what is written says nothing of a search
    }
