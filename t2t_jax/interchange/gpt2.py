"""Export and import of GPT-2 models of Hugging Face's transformers (`GPT2LMHeadModel`).

The vocabulary of GPT-2 has one special entry, which ends a text and begins one. Ours has padding as
well, which a bias of the output keeps from ever being chosen.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import NoneType

import numpy as np
from jaxtyping import Float32

from t2t_jax.config import Config, ModelConfig
from t2t_jax.data.vocabularies.pretrained import PretrainedVocabulary
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.errors import UserError
from t2t_jax.interchange.carried import ANY, Carried, tied_output
from t2t_jax.interchange.model_files import DEPTH, ID, RATE, SIZE
from t2t_jax.interchange.names import Arrays
from t2t_jax.interchange.numbering import NONE
from t2t_jax.interchange.portable import PortableModel
from t2t_jax.interchange.pretrained import (
    ACTIVATIONS,
    Place,
    activation,
    carried_by_all,
    config_of,
    read_pretrained_config,
    read_pretrained_vocabulary,
    read_tensors,
    written,
)
from t2t_jax.interchange.tensors import Tensors
from t2t_jax.system.records import Record, Schema

DTYPES = ("float32",)
VOCABULARIES = (PretrainedVocabulary,)

_CONFIG = Schema(
    {"n_embd": SIZE, "n_layer": DEPTH, "n_head": DEPTH, "n_positions": SIZE, "vocab_size": SIZE},
    {
        "eos_token_id": (ID, NoneType),
        "n_inner": (SIZE, NoneType),
        "activation_function": str,
        "layer_norm_epsilon": RATE,
        "resid_pdrop": RATE,
        "attn_pdrop": RATE,
    },
)
_FIXED = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
_NEVER = -1e9
"""The output bias of padding, which is thus never chosen."""
_WITHOUT = r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias"
"""Names of masks, which earlier releases of transformers kept beside the parameters."""
_README = """\
# A language model of t2t_jax as a GPT-2

    from transformers import AutoTokenizer, GPT2LMHeadModel

    tokenizer, model = AutoTokenizer.from_pretrained("."), GPT2LMHeadModel.from_pretrained(".")
    ids = tokenizer("<|endoftext|>The file", return_tensors="pt")
    print(tokenizer.decode(model.generate(**ids, max_new_tokens=20)[0]))

It needs `pip install transformers torch`.
"""


def _places(model: ModelConfig) -> Iterator[Place]:
    """Yield the places of all parameters but the embedding and the joined Q, K and V."""
    yield Place("target_position", "transformer.wpe.weight")
    for number in range(model.stacks[0].num_layers):
        ours, theirs = f"decoder.layers.{number}", f"transformer.h.{number}"
        yield Place(f"{ours}.self_attention.W_O", f"{theirs}.attn.c_proj.weight")
        yield Place(f"{ours}.self_attention.b_O", f"{theirs}.attn.c_proj.bias")
        for n, name in ((1, "c_fc"), (2, "c_proj")):
            yield Place(f"{ours}.feed_forward.W_{n}", f"{theirs}.mlp.{name}.weight")
            yield Place(f"{ours}.feed_forward.b_{n}", f"{theirs}.mlp.{name}.bias")
        for sublayer, norm in (("self_attention", "ln_1"), ("feed_forward", "ln_2")):
            yield Place(f"{ours}.{sublayer}.norm.scale", f"{theirs}.{norm}.weight")
            yield Place(f"{ours}.{sublayer}.norm.bias", f"{theirs}.{norm}.bias")
    yield Place("decoder.norm.scale", "transformer.ln_f.weight")
    yield Place("decoder.norm.bias", "transformer.ln_f.bias")


def read(path: Path) -> PortableModel:
    """Read a GPT-2 model.

    Args:
      path: the directory that `save_pretrained` has written, with tokenizer.json in it.

    Raises:
      UserError: a file is missing or damaged, or is of another kind of model.
    """
    theirs = read_pretrained_config(path, "gpt2", _CONFIG, _FIXED)
    special = partial(_special_ids, path, theirs.get("eos_token_id"))
    vocabulary = read_pretrained_vocabulary(path, theirs["vocab_size"], special, unknown=1)
    config = _our_config(path, theirs, vocabulary)
    arrays = dict(_our_arrays(read_tensors(path), config.model, vocabulary))
    return PortableModel(config, vocabulary, arrays, ())


def _special_ids(path: Path, end: int | None, ids: Mapping[str, int]) -> list[int]:
    if end is None or end not in ids.values():
        raise UserError(f"{path / 'tokenizer.json'} has no entry that ends a text")
    return [NONE, end]


def _our_config(path: Path, theirs: Record, vocabulary: Vocabulary) -> Config:
    return config_of(
        path,
        {
            "model.architecture": "decoder_only",
            "model.d_model": theirs["n_embd"],
            "model.num_heads": theirs["n_head"],
            "model.d_ff": theirs.get("n_inner") or 4 * theirs["n_embd"],
            "model.num_decoder_layers": theirs["n_layer"],
            "model.max_positions": theirs["n_positions"],
            "model.feed_forward": activation(path, theirs, "activation_function", "gelu_new"),
            "model.attention_bias": True,
            "model.output_bias": True,
            "model.norm_order": "pre",
            "model.norm_epsilon": float(theirs.get("layer_norm_epsilon", 1e-5)),
            "model.position": "learned",
            "model.scale_embeddings": False,
            "model.start_token": "end",
            "model.dropout_rate": float(theirs.get("resid_pdrop", 0.1)),
            "model.attention_dropout_rate": float(theirs.get("attn_pdrop", 0.1)),
            "data.task": "language_modelling",
            "data.vocab_size": len(vocabulary),
            "data.max_length": theirs["n_positions"],
            "data.source_tokens_per_step": max(25_000, theirs["n_positions"] + 8),
            "data.target_tokens_per_step": max(25_000, theirs["n_positions"] + 8),
            "training.label_smoothing": 0.0,
            "training.freeze": ("output_bias",),
        },
    )


def _our_arrays(
    tensors: Tensors, model: ModelConfig, vocabulary: PretrainedVocabulary
) -> Iterator[tuple[str, Float32[np.ndarray, "..."]]]:
    order, width = np.array(vocabulary.order), model.d_model
    yield "embedding", tensors.rows("transformer.wte.weight", order, width)
    yield "output_bias", np.where(order != NONE, np.float32(0), np.float32(_NEVER))
    for number in range(model.stacks[0].num_layers):
        name = f"transformer.h.{number}.attn.c_attn"
        joined = {
            "W": tensors.take(f"{name}.weight", width, 3 * width),
            "b": tensors.take(f"{name}.bias", 3 * width),
        }
        for kind, whole in joined.items():
            for letter, part in zip("QKV", np.split(whole, 3, axis=-1), strict=True):
                yield f"decoder.layers.{number}.self_attention.{kind}_{letter}", part.copy()
    for place in _places(model):
        yield place.ours, place.array(tensors)
    tensors.take_copy("lm_head.weight", tensors.take("transformer.wte.weight"))
    tensors.finish(_WITHOUT)


def carried(config: Config) -> Carried:
    """Return the fields of a config that the format can hold, each with its possible values."""
    return {
        **carried_by_all(config.model),
        **tied_output(config.model),
        "model.architecture": ("decoder_only",),
        "model.norm_order": ("pre",),
        "model.scale_embeddings": (False,),
        "model.start_token": ("end",),
        "model.output_bias": ANY,  # `write` refuses one that is not 0 beside that of padding
        "data.task": ("language_modelling",),
    }


def write(model: PortableModel, directory: Path, dtype: str) -> None:
    """Write a model as a GPT-2 model of transformers.

    Args:
      model: the model.
      directory: an empty directory.
      dtype: one of `DTYPES`.

    Raises:
      UserError: the model has an output bias that is not 0.
    """
    del dtype  # there is only one
    network, vocabulary = model.config.model, model.vocabulary
    assert isinstance(vocabulary, PretrainedVocabulary)
    order = np.array(vocabulary.order)
    if model.arrays.get("output_bias", order * 0.0)[order != NONE].any():
        raise UserError(
            "gpt2 cannot have this model, whose output_bias is not 0; export it --to safetensors, "
            "or train one with training.freeze=output_bias, which keeps it 0"
        )
    arrays = dict(_their_arrays(model.arrays, network, order))
    end = int(order[1])
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "dtype": "float32",
        "vocab_size": len(arrays["transformer.wte.weight"]),
        "n_embd": network.d_model,
        "n_layer": network.stacks[0].num_layers,
        "n_head": network.num_heads,
        "n_inner": network.d_ff,
        "n_positions": network.num_positions,
        "activation_function": ACTIVATIONS[network.feed_forward],
        "layer_norm_epsilon": network.norm_epsilon,
        "attn_pdrop": network.attention_dropout_rate,
        "resid_pdrop": network.dropout_rate,
        "embd_pdrop": network.dropout_rate,
        "bos_token_id": end,
        "eos_token_id": end,
    }
    written(directory, config, arrays, _README)
    (directory / "tokenizer.json").write_bytes(vocabulary.files["tokenizer.json"])


def _their_arrays(
    arrays: Arrays, model: ModelConfig, order: np.ndarray
) -> Iterator[tuple[str, Float32[np.ndarray, "..."]]]:
    there = order != NONE
    embedding = np.zeros((int(there.sum()), model.d_model), np.float32)
    embedding[order[there]] = arrays["embedding"][there]
    yield "transformer.wte.weight", embedding
    for number in range(model.stacks[0].num_layers):
        ours = f"decoder.layers.{number}.self_attention"
        for kind, name in (("W", "weight"), ("b", "bias")):
            joined = np.concatenate([arrays[f"{ours}.{kind}_{one}"] for one in "QKV"], axis=-1)
            yield f"transformer.h.{number}.attn.c_attn.{name}", joined
    for place in _places(model):
        yield place.theirs, arrays[place.ours]
