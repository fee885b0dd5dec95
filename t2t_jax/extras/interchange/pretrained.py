"""Read and write model directories of Hugging Face transformers, as `save_pretrained` does.

config.json                                   kind and sizes of the model
model.safetensors, or pytorch_model.bin       parameters
model.safetensors.index.json                  file of each array, for several files
tokenizer.json                                tokenizer, for the library tokenizers
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypeAlias

import numpy as np
from safetensors.numpy import save

from t2t_jax.config import Config, ModelConfig
from t2t_jax.errors import UserError, quote, warn
from t2t_jax.extras.interchange import formats, model_files
from t2t_jax.extras.interchange.places import Tensors
from t2t_jax.modules.names import Arrays
from t2t_jax.system import safetensors_file
from t2t_jax.system.records import Record, schema
from t2t_jax.version import removed_feature

ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu"}
"""The transformers name of each activation, by t2t_jax name."""
_FROM_HF = {hf_name: name for name, hf_name in ACTIVATIONS.items()} | {"swish": "silu"}
_ALIASES = {
    "hidden_size": "d_model",
    **dict.fromkeys(("num_attention_heads", "decoder_attention_heads"), "num_heads"),
    "decoder_ffn_dim": "d_ff",
}
"""The t2t_jax field of other transformers names, which must have the value of the field."""
_INDEX = schema({"weight_map": dict[str, str]})


class Counterpart(NamedTuple):
    """The t2t_jax counterpart of a field in config.json of transformers."""

    field: str
    """The name of the field in our section `model`."""
    kind: Any
    """The type of the field in config.json."""
    default: Any = None
    """The value if config.json lacks the field; None if the field is required."""


Counterparts: TypeAlias = Mapping[str, Counterpart]
"""The counterparts of fields in config.json, by the transformers name."""


def read_pretrained_config(
    path: Path, kind: str, fields: Counterparts, types: Mapping[str, Any], fixed: Mapping[str, Any]
) -> Record:
    """Read config.json in a directory, and check its fields.

    Args:
      kind: required `model_type`.
      fields: fields with a counterpart in t2t_jax.
      types: types of other fields.
      fixed: the only supported value of some options.
    """
    file = path / "config.json"
    model_type = model_files.read_json(file, schema({"model_type": str}))["model_type"]
    if model_type in formats.REMOVED_FORMATS:
        raise removed_feature(str(file), formats.REMOVED_FORMATS[model_type])
    if model_type != kind:
        raise UserError(
            f"{file} has a model of type {model_type!r:.60}, not {kind!r}; t2t-jax import reads "
            f"the formats {', '.join(formats.readable())}"
        )
    required = {name: spec.kind for name, spec in fields.items() if spec.default is None}
    optional = {name: spec.kind for name, spec in fields.items() if spec.default is not None}
    hf_config = model_files.read_json(file, schema({**required, **types}, optional))
    values_by_field = {spec.field: hf_config.get(name) for name, spec in fields.items()}
    aliases = {hf_name: values_by_field.get(name) for hf_name, name in _ALIASES.items()}
    refuse_other_options(file, hf_config, {**aliases, **fixed})
    # t2t_jax has one dropout rate outside of attention, for embeddings and sub-layers.
    dropout = hf_config.get("resid_pdrop", 0.1)
    training_values = {"encoder_layerdrop": 0, "decoder_layerdrop": 0, "embd_pdrop": dropout}
    for name, value in training_values.items():
        if hf_config.get(name, value) != value:
            warn(f"{file} has {name}={hf_config[name]!r:.60}; training in t2t_jax uses {value}")
    return hf_config


def encoder_decoder_fields(
    activation: str, *, scaled: bool = False, attention_dropout: float = 0.0
) -> Counterparts:
    """Map config.json fields of Marian, M2M100, mBART and BART to their t2t_jax counterparts.

    The arguments are values for a config.json without `activation_function`, `scale_embedding` or
    `attention_dropout`.
    """
    return {
        "d_model": Counterpart("d_model", model_files.SIZE),
        "encoder_layers": Counterpart("num_encoder_layers", model_files.DEPTH),
        "decoder_layers": Counterpart("num_decoder_layers", model_files.DEPTH),
        "encoder_attention_heads": Counterpart("num_heads", model_files.DEPTH),
        "encoder_ffn_dim": Counterpart("d_ff", model_files.SIZE),
        "activation_function": Counterpart("feed_forward", str, activation),
        "dropout": Counterpart("dropout_rate", model_files.RATE, 0.1),
        "attention_dropout": Counterpart(
            "attention_dropout_rate", model_files.RATE, attention_dropout
        ),
        "activation_dropout": Counterpart("activation_dropout_rate", model_files.RATE, 0.0),
        "scale_embedding": Counterpart("scale_embeddings", bool, scaled),
    }


def read_encoder_decoder_config(
    path: Path, kind: str, fields: Counterparts, types: Mapping[str, Any], fixed: Mapping[str, Any]
) -> Record:
    """Read config.json of an encoder-decoder, whose two stacks must have equal sizes.

    `read_pretrained_config` documents the arguments.
    """
    types = {
        **dict.fromkeys(("decoder_ffn_dim", "vocab_size"), model_files.SIZE),
        "decoder_attention_heads": model_files.DEPTH,
        **dict.fromkeys(("pad_token_id", "eos_token_id"), model_files.ID),
        "tie_word_embeddings": NotRequired[bool],
        "max_position_embeddings": NotRequired[model_files.SIZE],
        **types,
    }
    fixed = {"is_encoder_decoder": True, "is_decoder": False, **fixed}
    return read_pretrained_config(path, kind, fields, types, fixed)


def refuse_other_options(file: Path, hf_config: Record, expected: Mapping[str, object]) -> None:
    """Raise a `UserError` if config.json sets an option to another value than the expected one."""
    for name, value in expected.items():
        if hf_config.get(name, value) != value:
            raise UserError(
                f"{file} has {name}={hf_config[name]!r:.60}, but t2t_jax supports only "
                f"{quote(value)}"
            )


def read_tensors(path: Path) -> Tensors:
    """Read the tensors in a model directory, from one file or several shards."""
    readers = {
        "model.safetensors": lambda file: safetensors_file.read_safetensors(file)[0],
        "pytorch_model.bin": model_files.read_torch_file,
    }
    for name, read in readers.items():
        file, index = path / name, path / f"{name}.index.json"
        if file.exists():
            return Tensors(file, read(file))
        if index.exists():
            return Tensors(index, _unshard(index, read))
    raise UserError(f"{path} has neither model.safetensors nor pytorch_model.bin")


def _unshard(index: Path, read: Callable[[Path], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    shard_by_name = model_files.read_json(index, _INDEX)["weight_map"]
    arrays: dict[str, np.ndarray] = {}
    for file in sorted(set(shard_by_name.values())):
        tensors = read(model_files.sibling_path(index, file))
        names = {name for name, shard in shard_by_name.items() if shard == file}
        if mismatches := names ^ tensors.keys():
            raise UserError(
                f"{index} and {file} disagree on the array {min(mismatches)!r:.80}; copy both again"
            )
        arrays |= tensors
    return arrays


def config_from_hf(
    path: Path, hf_config: Record, fields: Counterparts, changes: Mapping[str, object]
) -> Config:
    """Convert config.json to a t2t_jax config.

    Args:
      changes: further t2t_jax fields, by path.
    """
    values: dict[str, object] = {}
    for name, spec in fields.items():
        value = hf_config.get(name, spec.default)
        if spec.field == "feed_forward":
            if value not in _FROM_HF:
                raise UserError(
                    f"{path / 'config.json'} has {name}={value!r:.60}; t2t_jax supports "
                    f"{', '.join(_FROM_HF)}"
                )
            value = _FROM_HF[value]
        # JSON may store a rate as an integer.
        values[f"model.{spec.field}"] = float(value) if spec.kind is model_files.RATE else value
    return model_files.config_of(path / "config.json", values | dict(changes))


def hf_fields(model: ModelConfig, fields: Counterparts) -> dict[str, object]:
    """Convert a model config to the fields of config.json that have a counterpart."""
    values = {**vars(model), "feed_forward": ACTIVATIONS[model.feed_forward]}
    return {name: values[spec.field] for name, spec in fields.items()}


def hf_encoder_decoder_fields(model: ModelConfig, fields: Counterparts) -> dict[str, object]:
    """Return the fields of config.json for an encoder-decoder, with the sizes of its decoder."""
    return {
        "is_encoder_decoder": True,
        **hf_fields(model, fields),
        "decoder_attention_heads": model.num_heads,
        "decoder_ffn_dim": model.d_ff,
    }


def write_files(
    directory: Path,
    model_class: str,
    model_type: str,
    config: Mapping[str, object],
    arrays: Arrays,
    readme: str,
) -> None:
    """Write model.safetensors, config.json and README.md for transformers.

    Args:
      config: fields of config.json, without class, type and dtype.
      arrays: parameters under their transformers names.
    """
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    (directory / "model.safetensors").write_bytes(save(contiguous, {"format": "pt"}))
    kind_fields = {"architectures": [model_class], "model_type": model_type, "dtype": "float32"}
    write_json(directory / "config.json", {**kind_fields, **config})
    (directory / "README.md").write_text(readme, encoding="utf-8")


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write a JSON file with the indentation of transformers."""
    text = json.dumps(content, indent=2, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
