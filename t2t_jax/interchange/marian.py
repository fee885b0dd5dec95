"""A Marian model for the library transformers of Hugging Face: what `save_pretrained` writes.

    OUT/config.json, generation_config.json     sizes, special ids, how translations are searched
    OUT/model.safetensors                       the parameters
    OUT/source.spm, target.spm                  the SentencePiece model that splits text
    OUT/vocab.json, tokenizer_config.json       the id of each subword
    OUT/README.md                               the lines of Python that translate

Two things of that code cannot be chosen, and other parameters make up for them:

- It stores no positions and computes the paper's sinusoids anew, but with all sines first. So the
  channels of the whole model are put into that order, which changes no function.
- Its norms have an epsilon of 1e-5. All between two norms is made larger, so that this is the
  epsilon of the model. Only the first norm of the encoder and that of the decoder differ: by a
  relative 5e-6 and less, where the variance is 1 or more.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32
from safetensors.numpy import save

from t2t_jax.batch import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from t2t_jax.config import Config, ModelConfig
from t2t_jax.interchange.names import Arrays
from t2t_jax.interchange.portable import PortableModel
from t2t_jax.interchange.rewriting import (
    permuted_channels,
    refuse,
    with_norm_epsilon,
    without_residual_scale,
)

DTYPES = ("float32",)

_EPSILON = 1e-5
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu"}
_SUBLAYERS = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}
_PROJECTIONS = {"Q": "q_proj", "K": "k_proj", "V": "v_proj", "O": "out_proj"}
_README = """\
# A Transformer of t2t_jax as a Marian model

    from transformers import AutoTokenizer, MarianMTModel

    tokenizer, model = AutoTokenizer.from_pretrained("."), MarianMTModel.from_pretrained(".")
    found = model.generate(**tokenizer(["Hello, world!"], return_tensors="pt", padding=True))
    print(tokenizer.batch_decode(found, skip_special_tokens=True)[0])

It needs `pip install transformers torch sentencepiece`. transformers divides the log-probability of
a translation by length^alpha, and t2t_jax by ((5 + length) / 6)^alpha (equation 14 of Wu et al.
2016), so the same `length_penalty` above 0 may choose another translation.
"""


def write(model: PortableModel, directory: Path, dtype: str) -> None:
    """Write a model.

    Args:
      model: the model.
      directory: an empty directory.
      dtype: one of `DTYPES`.

    Raises:
      UserError: a Marian model of transformers cannot be such a model.
    """
    del dtype  # there is one
    _check(model.config.model)
    arrays = {name: np.ascontiguousarray(x) for name, x in _their_arrays(model)}
    (directory / "model.safetensors").write_bytes(save(arrays, {"format": "pt"}))
    for name in ("source.spm", "target.spm"):
        (directory / name).write_bytes(model.vocabulary.serialized)
    (pieces,) = model.vocabulary.pieces([range(len(model.vocabulary))])
    described = {
        "config.json": model_config(model.config, len(pieces)),
        "generation_config.json": _generation_config(model.config),
        "tokenizer_config.json": _tokenizer_config(model.config, pieces),
        "vocab.json": {piece: number for number, piece in enumerate(pieces)},
    }
    for name, content in described.items():
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (directory / name).write_text(text + "\n", encoding="utf-8")
    (directory / "README.md").write_text(_README, encoding="utf-8")


def _check(model: ModelConfig) -> None:
    refuse(
        "A Marian model of transformers",
        {
            "position='sinusoidal_t2t', other frequencies than it computes": model.position
            == "sinusoidal_t2t",
            f"position={model.position!r}": not model.position.startswith("sinusoidal"),
            "norm_order='pre'": model.norm_order == "pre",
            f"norm={model.norm!r}": model.norm != "layer",
            f"feed_forward={model.feed_forward!r}": model.feed_forward not in _ACTIVATIONS,
            f"score_function={model.score_function!r}": model.score_function
            != "scaled_dot_product",
            f"num_kv_heads={model.num_kv_heads}": model.attention.groups != model.num_heads,
            "heads of other widths than d_model / num_heads": {model.key_size, model.value_size}
            != {model.d_model / model.num_heads},
            "a window of attention": model.attention_window is not None,
            "normalised queries and keys": model.query_key_norm,
            "a norm of the embeddings": model.embedding_norm,
            "an output projection of its own": "output_projection" in model.embeddings.values(),
        },
    )


def _their_arrays(model: PortableModel) -> Iterator[tuple[str, Float32[np.ndarray, "..."]]]:
    """The parameters under the names, and in the layout, of `MarianMTModel`."""
    network = model.config.model
    width = np.arange(network.d_model)
    sines_first = np.concatenate([width[::2], width[1::2]])
    arrays = without_residual_scale(model.arrays, network)
    arrays = permuted_channels(with_norm_epsilon(arrays, network, _EPSILON), sines_first)
    if network.share_embeddings:
        yield "model.shared.weight", arrays["embedding"]
    else:
        yield "model.encoder.embed_tokens.weight", arrays["source_embedding"]
        yield "model.decoder.embed_tokens.weight", arrays["target_embedding"]
    nothing = np.zeros(len(model.vocabulary), np.float32)
    yield "final_logits_bias", arrays.get("output_bias", nothing)[None]
    for name in ("encoder", "decoder"):
        depth = getattr(network, f"num_{name}_layers")
        for number in range(depth):
            ours = f"{name}.layers.{number}."
            for theirs, array in _their_layer(arrays, ours):
                yield f"model.{ours}{theirs}", array


def _their_layer(arrays: Arrays, prefix: str) -> Iterator[tuple[str, Float32[np.ndarray, "..."]]]:
    for ours, theirs in _SUBLAYERS.items():
        place = f"{prefix}{ours}."
        if f"{place}W_Q" in arrays:
            for letter, name in _PROJECTIONS.items():
                matrix = arrays[f"{place}W_{letter}"]
                yield f"{theirs}.{name}.weight", matrix.T
                nothing = np.zeros(matrix.shape[1], np.float32)
                yield f"{theirs}.{name}.bias", arrays.get(f"{place}b_{letter}", nothing)
            yield f"{theirs}_layer_norm.weight", arrays[f"{place}norm.scale"]
            yield f"{theirs}_layer_norm.bias", arrays[f"{place}norm.bias"]
    place = f"{prefix}feed_forward."
    for number in (1, 2):
        yield f"fc{number}.weight", arrays[f"{place}W_{number}"].T
        yield f"fc{number}.bias", arrays[f"{place}b_{number}"]
    yield "final_layer_norm.weight", arrays[f"{place}norm.scale"]
    yield "final_layer_norm.bias", arrays[f"{place}norm.bias"]


def model_config(config: Config, vocab_size: int) -> dict[str, Any]:
    """The fields of a `MarianConfig`, for a model of the same sizes.

    Args:
      config: the config of the model.
      vocab_size: entries of its vocabulary.
    """
    model = config.model
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "dtype": "float32",
        "is_encoder_decoder": True,
        "vocab_size": vocab_size,
        "decoder_vocab_size": vocab_size,
        "d_model": model.d_model,
        "encoder_layers": model.num_encoder_layers,
        "decoder_layers": model.num_decoder_layers,
        "encoder_attention_heads": model.num_heads,
        "decoder_attention_heads": model.num_heads,
        "encoder_ffn_dim": model.d_ff,
        "decoder_ffn_dim": model.d_ff,
        "activation_function": _ACTIVATIONS[model.feed_forward],
        "dropout": model.dropout_rate,
        "attention_dropout": model.attention_dropout_rate,
        "activation_dropout": model.activation_dropout_rate,
        "scale_embedding": model.scale_embeddings,
        "max_position_embeddings": _longest(config),
        "share_encoder_decoder_embeddings": model.share_embeddings,
        "tie_word_embeddings": True,
        **_special_ids(),
    }


def _generation_config(config: Config) -> dict[str, Any]:
    return {
        "num_beams": config.decoding.beam_size,
        "length_penalty": config.decoding.length_penalty,
        "max_length": _longest(config),
        **_special_ids(),
    }


def _special_ids() -> dict[str, int | None]:
    return {
        "pad_token_id": PAD_ID,
        "eos_token_id": EOS_ID,
        "bos_token_id": BOS_ID,
        "decoder_start_token_id": BOS_ID,
        "forced_eos_token_id": None,
    }


def _tokenizer_config(config: Config, pieces: list[str]) -> dict[str, Any]:
    return {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": config.data.source_language,
        "target_lang": config.data.target_language,
        "separate_vocabs": False,
        "model_max_length": config.decoding.max_source_length,
        "pad_token": pieces[PAD_ID],
        "eos_token": pieces[EOS_ID],
        "unk_token": pieces[UNK_ID],
    }


def _longest(config: Config) -> int:
    return config.decoding.max_source_length + config.decoding.max_extra_length
