"""Model directories of the library transformers of Hugging Face, as `save_pretrained` writes them.

config.json                                   kind and sizes of the model
model.safetensors, or pytorch_model.bin       its parameters; nothing in them is executed
model.safetensors.index.json                  of a model in several files: the file of each array
tokenizer.json                                how text is split, for the library tokenizers
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
from t2t_jax.extras.interchange.places import Spellings, Tensors, as_written
from t2t_jax.modules.names import Arrays
from t2t_jax.system import records, safetensors_file
from t2t_jax.version import removed_feature

ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu"}
"""The name in transformers of each of our activations."""
_OUR_ACTIVATIONS = {theirs: ours for ours, theirs in ACTIVATIONS.items()} | {"swish": "silu"}
_ALIASES = {"d_model": "hidden_size", "num_heads": "num_attention_heads"}
"""Second names by which transformers reads the fields that stand for ours."""
_INDEX = records.schema({"weight_map": dict[str, str]})


class Counterpart(NamedTuple):
    """What a field of config.json stands for: a field of our section on the model."""

    ours: str
    """The name of our field."""
    kind: Any
    """The type of the values that the field of config.json may have."""
    usual: Any = None
    """The value where config.json does not have the field; None for a field that it must have."""


Counterparts: TypeAlias = Mapping[str, Counterpart]
"""The fields of a config.json that stand for fields of ours, by their names there. The name of an
activation is one of `ACTIVATIONS`."""


def read_pretrained_config(
    path: Path, kind: str, fields: Counterparts, others: Mapping[str, Any], fixed: Mapping[str, Any]
) -> records.Record:
    """Return the fields of config.json, checked.

    Args:
      kind: the `model_type` that the model has to have.
      fields: the fields that stand for fields of ours.
      others: the types of the other fields that are read.
      fixed: options with the only value of each that a model of this package can have.
    """
    file = path / "config.json"
    model_type = model_files.read_json(file, records.schema({"model_type": str}))["model_type"]
    if model_type in formats.REMOVED_FORMATS:
        raise removed_feature(str(file), formats.REMOVED_FORMATS[model_type])
    if model_type != kind:
        raise UserError(
            f"{file} has a model of type {model_type!r:.60}, not {kind!r}; the formats that are "
            f"read are {', '.join(formats.readable())}"
        )
    needed = {name: one.kind for name, one in fields.items() if one.usual is None}
    usual = {name: one.kind for name, one in fields.items() if one.usual is not None}
    theirs = model_files.read_json(file, records.schema({**needed, **others}, usual))
    aliases = {
        _ALIASES[one.ours]: theirs[name] for name, one in fields.items() if one.ours in _ALIASES
    }
    refuse_other_options(file, theirs, {**aliases, **fixed})
    embeddings = theirs.get("resid_pdrop", 0.1)  # our only dropout outside of attention
    training = {"encoder_layerdrop": 0, "decoder_layerdrop": 0, "embd_pdrop": embeddings}
    for name, value in training.items():
        if theirs.get(name, value) != value:
            warn(f"{file} has {name}={theirs[name]!r:.60}, and a training here has {value}")
    return theirs


def encoder_decoder_fields(
    activation: str, *, scaled: bool = False, attention_dropout: float = 0.0
) -> Counterparts:
    """Return the fields of Marian, M2M100, mBART and BART, with values for missing ones."""
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
    path: Path, kind: str, fields: Counterparts, others: Mapping[str, Any], fixed: Mapping[str, Any]
) -> records.Record:
    """Return the fields of config.json, whose decoder has to have the sizes of the encoder.

    The arguments and errors are those of `read_pretrained_config`.
    """
    others = {
        **dict.fromkeys(("decoder_ffn_dim", "vocab_size"), model_files.SIZE),
        "decoder_attention_heads": model_files.DEPTH,
        **dict.fromkeys(("pad_token_id", "eos_token_id"), model_files.ID),
        "tie_word_embeddings": NotRequired[bool],
        "max_position_embeddings": NotRequired[model_files.SIZE],
        **others,
    }
    theirs = read_pretrained_config(path, kind, fields, others, fixed)
    sides = "attention_heads", "ffn_dim"
    wanted = {f"decoder_{name}": theirs[f"encoder_{name}"] for name in sides}
    wanted |= {"is_encoder_decoder": True, "is_decoder": False}
    refuse_other_options(path / "config.json", theirs, wanted)
    return theirs


def refuse_other_options(file: Path, theirs: records.Record, wanted: Mapping[str, object]) -> None:
    """Refuse a model in which an option has another value than the wanted one."""
    for name, value in wanted.items():
        if theirs.get(name, value) != value:
            raise UserError(
                f"{file} has {name}={theirs[name]!r:.60}, which a model of t2t_jax "
                f"cannot have; only {quote(value)}"
            )


def read_tensors(path: Path, spellings: Spellings = as_written) -> Tensors:
    """Read the tensors of a model in a directory, which may lie in several files."""
    readers = {
        "model.safetensors": lambda file: safetensors_file.read_safetensors(file)[0],
        "pytorch_model.bin": model_files.read_torch_file,
    }
    for name, read in readers.items():
        file, index = path / name, path / f"{name}.index.json"
        if file.exists():
            return Tensors(file, read(file), spellings)
        if index.exists():
            return Tensors(index, _in_parts(index, read), spellings)
    raise UserError(f"{path} has neither model.safetensors nor pytorch_model.bin")


def _in_parts(index: Path, read: Callable[[Path], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    places = model_files.read_json(index, _INDEX)["weight_map"]
    found: dict[str, np.ndarray] = {}
    for part in sorted(set(places.values())):
        tensors = read(model_files.sibling_path(index, part))
        names = {name for name, place in places.items() if place == part}
        if other := names ^ tensors.keys():
            raise UserError(
                f"{index} says of the array {min(other)!r:.80} something else than {part} has; "
                "copy the files anew"
            )
        found |= tensors
    return found


def our_config(
    path: Path, theirs: records.Record, fields: Counterparts, others: Mapping[str, object]
) -> Config:
    """Return our config for the fields of a config.json, with other fields of ours besides."""
    found: dict[str, object] = {}
    for name, field in fields.items():
        value = theirs.get(name, field.usual)
        if field.ours == "feed_forward":
            if value not in _OUR_ACTIVATIONS:
                raise UserError(
                    f"{path / 'config.json'} has {name}={value!r:.60}; a model of t2t_jax can have "
                    f"{', '.join(_OUR_ACTIVATIONS)}"
                )
            value = _OUR_ACTIVATIONS[value]
        found[f"model.{field.ours}"] = float(value) if field.kind is model_files.RATE else value
    return model_files.config_of(path / "config.json", found | dict(others))


def their_fields(model: ModelConfig, fields: Counterparts) -> dict[str, object]:
    """Return the fields of config.json that follow from our config."""
    values = {**vars(model), "feed_forward": ACTIVATIONS[model.feed_forward]}
    return {name: values[field.ours] for name, field in fields.items()}


def their_encoder_decoder_fields(model: ModelConfig, fields: Counterparts) -> dict[str, object]:
    """Return `their_fields` of an encoder-decoder, with the sizes of its decoder."""
    return {
        "is_encoder_decoder": True,
        **their_fields(model, fields),
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
    """Write model.safetensors, config.json and README.md as transformers reads them.

    Args:
      model_type: the name of the kind in config.json.
      config: the other fields of config.json.
      arrays: the parameters, named as in transformers.
    """
    contiguous = {name: np.ascontiguousarray(x) for name, x in arrays.items()}
    (directory / "model.safetensors").write_bytes(save(contiguous, {"format": "pt"}))
    kind = {"architectures": [model_class], "model_type": model_type, "dtype": "float32"}
    write_json(directory / "config.json", {**kind, **config})
    (directory / "README.md").write_text(readme, encoding="utf-8")


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write a file of JSON as transformers does, with indented lines."""
    text = json.dumps(content, indent=2, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
