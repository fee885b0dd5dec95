"""Model directories of the library transformers of Hugging Face, as `save_pretrained` writes them.

config.json                                   kind and sizes of the model
model.safetensors, or pytorch_model.bin       its parameters; nothing in them is executed
model.safetensors.index.json                  of a model in several files: the file of each array
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
"""The name in transformers of each of our activations."""
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
    """Return the fields of config.json, checked.

    Args:
      path: the directory of the model.
      kind: the `model_type` that the model has to have.
      schema: the fields and their types.
      fixed: options with the only value of each that a model of this package can have.

    Raises:
      UserError: the file is missing or damaged, is of another kind, or has an option that a model
        of this package cannot have.
    """
    file = path / "config.json"
    _refused(file, read_json(file, Schema({"model_type": str})), {"model_type": kind})
    theirs = read_json(file, schema)
    _refused(file, theirs, fixed)
    return theirs


def _spellings(name: str) -> Iterator[str]:
    """Yield the names that releases of transformers have given an array."""
    yield name
    yield from (name.removeprefix(prefix) for prefix in _PREFIXES)
    for new, old in _OLD_NAMES.items():
        if name.endswith(new):
            yield f"{name.removesuffix(new)}{old}"


def read_tensors(path: Path) -> Tensors:
    """Read the tensors of a model, which may lie in several files.

    Args:
      path: the directory of the model.

    Raises:
      UserError: a file is missing or damaged.
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
    """Read the tensors of the files that an index names."""
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


def written(directory: Path, config: Mapping[str, Any], arrays: Arrays, readme: str) -> None:
    """Write a model: model.safetensors, config.json and README.md.

    Args:
      directory: an empty directory.
      config: the fields of config.json.
      arrays: the parameters under their names in transformers.
      readme: the text of README.md.
    """
    contiguous = {name: np.ascontiguousarray(x) for name, x in arrays.items()}
    (directory / "model.safetensors").write_bytes(save(contiguous, {"format": "pt"}))
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (directory / "README.md").write_text(readme, encoding="utf-8")


def _refused(file: Path, theirs: Record, wanted: Mapping[str, Any]) -> None:
    """Refuse a model in which an option has another value than the wanted one."""
    for name, value in wanted.items():
        if theirs.get(name, value) != value:
            raise UserError(
                f"{file} has {name}={theirs[name]!r:.60}, which a model of t2t_jax "
                f"cannot have; only {value!r}"
            )


def config_of(path: Path, changes: Mapping[str, Any]) -> Config:
    """Return the default config with the changes that follow from a config.json.

    Raises:
      UserError: the config refuses them.
    """
    try:
        return Config().replace(changes)
    except UserError as error:
        raise UserError(f"{path / 'config.json'}: {error}") from error


def read_pretrained_vocabulary(
    path: Path, size: int, special: Callable[[Mapping[str, int]], Sequence[int]], unknown: int
) -> PretrainedVocabulary:
    """Read the vocabulary of a model.

    Args:
      path: the directory of the model.
      size: the number of entries in config.json.
      special: takes the id of every entry, and gives those that come first; see `new_order`.
      unknown: the index among those of the entry for text that the vocabulary cannot spell.

    Raises:
      UserError: tokenizer.json is missing or damaged, or has not `size` entries.
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
    """Return our name of a model's activation.

    Args:
      path: the directory of the model.
      theirs: the fields of its config.json.
      field: the name of the field with the activation.
      usual: the name in transformers of the activation where the field is not given.

    Raises:
      UserError: this package has no such activation.
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
    """Return the fields of our config that follow from config.json alike for BERT and ViT.

    Args:
      path: the directory of the model.
      theirs: the fields of its config.json.
      dropout_rate: the rate of dropout where config.json has none.

    Raises:
      UserError: this package does not have the activation.
    """
    attention_dropout = theirs.get("attention_probs_dropout_prob", dropout_rate)
    return {
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
    """Return the fields of config.json that follow from our config alike for BERT and ViT."""
    return {
        "dtype": "float32",
        "hidden_size": model.d_model,
        "num_hidden_layers": model.stacks[0].num_layers,
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
    """Yield the places of the parameters of the layers in the encoders of BERT and ViT.

    Args:
      model: sizes and options of the network.
      theirs: the name of the stack of layers in transformers.
      attention: the name of the module that projects queries, keys and values.
      norms: the names of the norms of self-attention and of the feed-forward network.
    """
    for number in range(model.stacks[0].num_layers):
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
    """Return the fields of a config that GPT-2, BERT and ViT of transformers can all hold.

    Args:
      model: the config of a model.
    """
    return {
        **sizes_of_transformers(model),
        "model.attention_bias": (True,),
        "model.feed_forward": tuple(ACTIVATIONS),
        "model.position": ("learned",),
        "model.max_positions": ANY,
        "decoding": ANY,  # the files have no settings of a search
    }
