"""Export and import of GPT-2 models of Hugging Face's transformers (`GPT2LMHeadModel`).

The vocabulary of GPT-2 has one special entry, which ends a text and begins one. Ours has padding as
well, which a bias of the output keeps from ever being chosen.
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
_OTHERS = {
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
_NEVER = -1e9
"""The output bias of padding, which is thus never chosen."""
_MASKS: places.Constants = {
    r"(transformer\.)?h\.\d+\.attn\.bias": [
        lambda *shape: np.arange(shape[-2])[:, None] >= np.arange(shape[-1])
    ],
    r"(transformer\.)?h\.\d+\.attn\.masked_bias": [lambda *_: -1e4],
}
"""The mask of causal attention, and the score of a masked position, which earlier releases of
transformers kept beside the parameters."""
_README = """\
# A language model of t2t_jax as a GPT-2

    from transformers import AutoTokenizer, GPT2LMHeadModel

    tokenizer, model = AutoTokenizer.from_pretrained("."), GPT2LMHeadModel.from_pretrained(".")
    ids = tokenizer("<|endoftext|>The file", return_tensors="pt")
    print(tokenizer.decode(model.generate(**ids, max_new_tokens=20)[0]))

It needs `pip install transformers torch`.
"""


def _places(model: ModelConfig) -> Iterator[places.Place]:
    """Yield the places of all parameters but the embedding and the joined Q, K and V."""
    yield places.Place("target_position", "transformer.wpe.weight")
    for number in range(model.stacks[0].num_layers):
        ours, theirs = f"decoder.layers.{number}", f"transformer.h.{number}"
        attention, network = f"{ours}.self_attention", f"{ours}.feed_forward"
        yield from places.linear_places(attention, "O", f"{theirs}.attn.c_proj", False)
        yield from places.norm_places(f"{attention}.norm", f"{theirs}.ln_1")
        yield from places.linear_places(network, "1", f"{theirs}.mlp.c_fc", False)
        yield from places.linear_places(network, "2", f"{theirs}.mlp.c_proj", False)
        yield from places.norm_places(f"{network}.norm", f"{theirs}.ln_2")
    yield from places.norm_places("decoder.norm", "transformer.ln_f")


def read(path: Path) -> portable.PortableModel:
    """Read a GPT-2 model from what `save_pretrained` wrote, with tokenizer.json beside it."""
    theirs = pretrained.read_pretrained_config(path, "gpt2", _FIELDS, _OTHERS, _FIXED)
    vocabulary = _read_vocabulary(path, theirs)
    config = _our_config(path, theirs, vocabulary)
    tensors = pretrained.read_tensors(path, _spellings)
    arrays = dict(_our_arrays(tensors, config.model, vocabulary))
    return portable.PortableModel(config, vocabulary, arrays, ())


def _spellings(name: str) -> tuple[str, ...]:
    return name, name.removeprefix("transformer.")


def _read_vocabulary(path: Path, theirs: Record) -> PretrainedVocabulary:
    """Read tokenizer.json, with an entry for padding before those of the file.

    Args:
      theirs: the fields of config.json.
    """
    file, size, end = path / "tokenizer.json", theirs["vocab_size"], theirs.get("eos_token_id")
    if not file.exists():
        raise UserError(
            f"{file} is missing; make it with transformers: "
            f"AutoTokenizer.from_pretrained({str(path)!r}).save_pretrained({str(path)!r})"
        )
    ids, _ = model_files.read_tokenizer(file)
    if end is None or end not in ids.values():
        raise UserError(f"{file} has no entry that ends a text")
    _, order = places.new_order(model_files.pieces_by_id(file, ids, size), [places.NONE, end])
    with model_files.vocabulary_of(file):
        return pretrained_vocabulary(model_files.read_text(file), order.tolist(), unknown=1)


def _our_config(path: Path, theirs: Record, vocabulary: Vocabulary) -> Config:
    length = theirs["n_positions"]
    steps = "data.source_tokens_per_step", "data.target_tokens_per_step"
    changes = {
        "model.architecture": "decoder_only",
        "model.d_ff": theirs.get("n_inner") or 4 * theirs["n_embd"],
        "model.attention_bias": True,
        "model.output_bias": True,
        "model.norm_order": "pre",
        "model.position": "learned",
        "model.scale_embeddings": False,
        "model.start_token": "end",
        "data.task": "language_modelling",
        "data.vocab_size": len(vocabulary),
        "data.max_length": length,
        **dict.fromkeys(steps, max(25_000, length + 8)),
        "training.label_smoothing": 0.0,
        "training.freeze": ("output_bias",),
    }
    return pretrained.our_config(path, theirs, _FIELDS, changes)


def _our_arrays(
    tensors: places.Tensors, model: ModelConfig, vocabulary: PretrainedVocabulary
) -> places.NamedArrays:
    order, width = np.array(vocabulary.order), model.d_model
    yield "embedding", tensors.rows("transformer.wte.weight", order, width)
    yield "output_bias", np.where(order != places.NONE, np.float32(0), np.float32(_NEVER))
    for number in range(model.stacks[0].num_layers):
        for kind, name, *rows in (("W", "weight", width), ("b", "bias")):
            whole = f"transformer.h.{number}.attn.c_attn.{name}"
            parts = np.split(tensors.take(whole, *rows, 3 * width), 3, axis=-1)
            for letter, part in zip("QKV", parts, strict=True):
                yield f"decoder.layers.{number}.self_attention.{kind}_{letter}", part.copy()
    for place in _places(model):
        yield place.ours, place.array(tensors)
    tensors.take_copy("lm_head.weight", tensors.take("transformer.wte.weight"))
    tensors.finish(_MASKS)


def carried(config: Config) -> Carried:
    """Return the fields of a config that the format can hold; see `interchange.carried`."""
    return {
        **fields_of_transformers(config.model),
        "model.architecture": ("decoder_only",),
        "model.attention_bias": (True,),
        "model.position": ("learned",),
        "model.max_positions": ANY,
        "model.norm_order": ("pre",),
        "model.scale_embeddings": (False,),
        "model.start_token": ("end",),
        "model.output_bias": ANY,  # `write` refuses one that is not 0 beside that of padding
        "data.task": ("language_modelling",),
        "decoding": ANY,  # the files have no settings of a search
    }


def write(model: portable.PortableModel, directory: Path) -> None:
    """Write a model as a GPT-2 model of transformers."""
    network, vocabulary = model.config.model, model.vocabulary
    assert isinstance(vocabulary, PretrainedVocabulary)
    order = np.array(vocabulary.order)
    if model.arrays.get("output_bias", order * 0.0)[order != places.NONE].any():
        raise UserError(
            "gpt2 cannot have this model, whose output_bias is not 0; export it --to safetensors, "
            "or train one with training.freeze=output_bias, which keeps it 0"
        )
    arrays = dict(_their_arrays(model.arrays, network, order))
    config = {
        "vocab_size": len(arrays["transformer.wte.weight"]),
        **pretrained.their_fields(network, _FIELDS),
        "n_inner": network.d_ff,
        "embd_pdrop": network.dropout_rate,
        **dict.fromkeys(("bos_token_id", "eos_token_id"), int(order[EOS_ID])),
    }
    pretrained.write_files(directory, "GPT2LMHeadModel", "gpt2", config, arrays, _README)
    (directory / "tokenizer.json").write_bytes(vocabulary.files["tokenizer.json"])


def _their_arrays(arrays: Arrays, model: ModelConfig, order: np.ndarray) -> places.NamedArrays:
    rows = np.argsort(order)[np.count_nonzero(order == places.NONE) :]
    yield "transformer.wte.weight", arrays["embedding"][rows]
    for number in range(model.stacks[0].num_layers):
        ours = f"decoder.layers.{number}.self_attention"
        for kind, name in (("W", "weight"), ("b", "bias")):
            joined = np.concatenate([arrays[f"{ours}.{kind}_{one}"] for one in "QKV"], axis=-1)
            yield f"transformer.h.{number}.attn.c_attn.{name}", joined
    for place in _places(model):
        yield place.theirs, arrays[place.ours]
