"""Export and import GPT-2 models of Hugging Face transformers (`GPT2LMHeadModel`).

GPT-2 has one special token, which begins and ends each text. The import adds a padding token, and
an output bias that prevents its generation.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NotRequired

import numpy as np

from t2t_jax.batch import EOS_ID
from t2t_jax.config import Config, ModelConfig
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.errors import UserError
from t2t_jax.extras.interchange import model_files, places, portable, pretrained
from t2t_jax.extras.interchange.carried import ANY, Carried, fields_of_transformers
from t2t_jax.extras.interchange.vocabularies.pretrained import (
    PretrainedVocabulary,
    pretrained_vocabulary,
)
from t2t_jax.modules.names import Arrays
from t2t_jax.system.records import Record

VOCABULARIES = (PretrainedVocabulary,)

_FIELDS = {
    "n_embd": pretrained.Counterpart("d_model", model_files.SIZE),
    "n_layer": pretrained.Counterpart("num_decoder_layers", model_files.DEPTH),
    "n_head": pretrained.Counterpart("num_heads", model_files.DEPTH),
    "n_positions": pretrained.Counterpart("max_positions", model_files.SIZE),
    "activation_function": pretrained.Counterpart("feed_forward", str, "gelu_new"),
    "layer_norm_epsilon": pretrained.Counterpart("norm_epsilon", model_files.RATE, 1e-5),
    "resid_pdrop": pretrained.Counterpart("dropout_rate", model_files.RATE, 0.1),
    "attn_pdrop": pretrained.Counterpart("attention_dropout_rate", model_files.RATE, 0.1),
}
_EXTRA_TYPES = {
    "vocab_size": model_files.SIZE,
    "eos_token_id": NotRequired[model_files.ID | None],
    "n_inner": NotRequired[model_files.SIZE | None],
}
_FIXED = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
_PADDING_BIAS = -1e9
"""The output bias of padding, which prevents its generation."""
_MASKS: places.Constants = {
    r"(transformer\.)?h\.\d+\.attn\.bias": [
        lambda *shape: np.arange(shape[-2])[:, None] >= np.arange(shape[-1])
    ],
    r"(transformer\.)?h\.\d+\.attn\.masked_bias": [lambda *_: -1e4],
}
"""The causal mask and the score of a masked position, which earlier releases of transformers stored
with the parameters."""
_README = """\
# A language model of t2t_jax as a GPT-2

    from transformers import AutoTokenizer, GPT2LMHeadModel

    tokenizer, model = AutoTokenizer.from_pretrained("."), GPT2LMHeadModel.from_pretrained(".")
    ids = tokenizer("<|endoftext|>The file", return_tensors="pt")
    print(tokenizer.decode(model.generate(**ids, max_new_tokens=20)[0]))

The example needs `pip install transformers torch`.
"""


def _name_pairs(model: ModelConfig, prefix: str) -> Iterator[places.NamePair]:
    """Yield the t2t_jax and GPT-2 names of all parameters except embedding and fused Q, K and V."""
    yield places.NamePair("target_position", f"{prefix}wpe.weight")
    for layer in range(model.stacks[0].num_layers):
        name, hf_name = f"decoder.layers.{layer}", f"{prefix}h.{layer}"
        attention, feed_forward = f"{name}.self_attention", f"{name}.feed_forward"
        # The `Conv1D` layers of GPT-2 store [in, out], as t2t_jax does.
        yield from places.linear_pairs(attention, "O", f"{hf_name}.attn.c_proj", False)
        yield from places.norm_pairs(f"{attention}.norm", f"{hf_name}.ln_1")
        yield from places.linear_pairs(feed_forward, "1", f"{hf_name}.mlp.c_fc", False)
        yield from places.linear_pairs(feed_forward, "2", f"{hf_name}.mlp.c_proj", False)
        yield from places.norm_pairs(f"{feed_forward}.norm", f"{hf_name}.ln_2")
    yield from places.norm_pairs("decoder.norm", f"{prefix}ln_f")


def read(path: Path) -> portable.PortableModel:
    """Read a GPT-2 model from a directory that `save_pretrained` wrote, with tokenizer.json."""
    hf_config = pretrained.read_pretrained_config(path, "gpt2", _FIELDS, _EXTRA_TYPES, _FIXED)
    vocabulary = _read_vocabulary(path, hf_config)
    config = _convert_config(path, hf_config, vocabulary)
    tensors = pretrained.read_tensors(path)
    arrays = dict(_import_arrays(tensors, config.model, vocabulary))
    return portable.PortableModel(config, vocabulary, arrays, ())


def _read_vocabulary(path: Path, hf_config: Record) -> PretrainedVocabulary:
    """Read tokenizer.json, and add a padding token with id 0."""
    file, size = path / "tokenizer.json", hf_config["vocab_size"]
    eos_id = hf_config.get("eos_token_id")
    if not file.exists():
        raise UserError(
            f"{file} is missing; create it with transformers: "
            f"AutoTokenizer.from_pretrained({str(path)!r}).save_pretrained({str(path)!r})"
        )
    ids, _ = model_files.read_tokenizer(file)
    if eos_id is None or eos_id not in ids.values():
        raise UserError(f"{file} has no end-of-text token; set eos_token_id in config.json")
    _, file_ids = places.new_order(model_files.pieces_by_id(file, ids, size), [places.NONE, eos_id])
    with model_files.naming_file(file):
        text = model_files.read_bytes(file).decode()
        return pretrained_vocabulary(text, file_ids.tolist(), unknown=1)


def _convert_config(path: Path, hf_config: Record, vocabulary: Vocabulary) -> Config:
    num_positions = hf_config["n_positions"]
    token_fields = "data.source_tokens_per_step", "data.target_tokens_per_step"
    changes = {
        "model.architecture": "decoder_only",
        "model.d_ff": hf_config.get("n_inner") or 4 * hf_config["n_embd"],
        "model.attention_bias": True,
        "model.output_bias": True,
        "model.norm_order": "pre",
        "model.position": "learned",
        "model.scale_embeddings": False,
        "model.start_token": "end",
        "data.task": "language_modelling",
        "data.vocab_size": len(vocabulary),
        "data.max_length": num_positions,
        **dict.fromkeys(token_fields, max(25_000, num_positions + 8)),
        "training.label_smoothing": 0.0,
        "training.freeze": ("output_bias",),
    }
    return pretrained.config_from_hf(path, hf_config, _FIELDS, changes)


def _import_arrays(
    tensors: places.Tensors, model: ModelConfig, vocabulary: PretrainedVocabulary
) -> places.NamedArrays:
    file_ids, width = np.array(vocabulary.order), model.d_model
    prefix = tensors.prefix("transformer.")
    yield "embedding", tensors.take_rows(f"{prefix}wte.weight", file_ids, width)
    yield "output_bias", np.where(file_ids != places.NONE, np.float32(0), np.float32(_PADDING_BIAS))
    for layer in range(model.stacks[0].num_layers):
        for kind, hf_kind, *in_width in (("W", "weight", width), ("b", "bias")):
            name = f"{prefix}h.{layer}.attn.c_attn.{hf_kind}"
            fused_qkv = tensors.take(name, *in_width, 3 * width)  # Q, K and V side by side
            for letter, array in zip("QKV", np.split(fused_qkv, 3, axis=-1), strict=True):
                yield f"decoder.layers.{layer}.self_attention.{kind}_{letter}", array.copy()
    for pair in _name_pairs(model, prefix):
        yield pair.name, pair.import_array(tensors)
    tensors.take_copy("lm_head.weight", tensors.take(f"{prefix}wte.weight"))
    tensors.finish(_MASKS)


def carried(config: Config) -> Carried:
    """Return the allowed values of each config field that a GPT-2 model can hold."""
    return {
        **fields_of_transformers(config.model),
        "model.architecture": ("decoder_only",),
        "model.attention_bias": (True,),
        "model.position": ("learned",),
        "model.max_positions": ANY,
        "model.norm_order": ("pre",),
        "model.scale_embeddings": (False,),
        "model.start_token": ("end",),
        "model.output_bias": ANY,  # `write` refuses values other than 0, except for padding
        "data.task": ("language_modelling",),
        "decoding": ANY,  # the files have no decoding settings
    }


def write(model: portable.PortableModel, directory: Path) -> None:
    """Write a model to a directory as a GPT-2 model of transformers."""
    network, vocabulary = model.config.model, model.vocabulary
    assert isinstance(vocabulary, PretrainedVocabulary)
    file_ids = np.array(vocabulary.order)
    if model.arrays.get("output_bias", file_ids * 0.0)[file_ids != places.NONE].any():
        raise UserError(
            "gpt2 cannot hold this model, whose output_bias is not 0; export it with --to "
            "safetensors, or train with training.freeze=output_bias, which keeps the bias at 0"
        )
    arrays = dict(_export_arrays(model.arrays, network, file_ids))
    config = {
        "vocab_size": len(arrays["transformer.wte.weight"]),
        **pretrained.hf_fields(network, _FIELDS),
        "n_inner": network.d_ff,
        "embd_pdrop": network.dropout_rate,
        **dict.fromkeys(("bos_token_id", "eos_token_id"), int(file_ids[EOS_ID])),
    }
    pretrained.write_files(directory, "GPT2LMHeadModel", "gpt2", config, arrays, _README)
    (directory / "tokenizer.json").write_bytes(vocabulary.files["tokenizer.json"])


def _export_arrays(arrays: Arrays, model: ModelConfig, file_ids: np.ndarray) -> places.NamedArrays:
    # Sort the rows by transformers id, and drop entries that GPT-2 lacks.
    rows = np.argsort(file_ids)[np.count_nonzero(file_ids == places.NONE) :]
    yield "transformer.wte.weight", arrays["embedding"][rows]
    for layer in range(model.stacks[0].num_layers):
        prefix = f"decoder.layers.{layer}.self_attention"
        for kind, hf_kind in (("W", "weight"), ("b", "bias")):
            matrices = [arrays[f"{prefix}.{kind}_{letter}"] for letter in "QKV"]
            yield f"transformer.h.{layer}.attn.c_attn.{hf_kind}", np.concatenate(matrices, axis=-1)
    for pair in _name_pairs(model, "transformer."):
        yield pair.hf_name, arrays[pair.name]
