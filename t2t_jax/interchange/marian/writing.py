"""The Marian format of Hugging Face's library transformers, as `save_pretrained` writes it.

    OUT/config.json, generation_config.json     sizes, special ids, how translations are searched
    OUT/model.safetensors                       the parameters
    OUT/source.spm, target.spm                  the SentencePiece model that splits text
    OUT/vocab.json, tokenizer_config.json       the id of each subword
    OUT/README.md                               the lines of Python that translate

Three things are fixed in that code, or in programs that read its models, and the parameters are
rewritten to make up for them:

- It stores no positions and computes the paper's sinusoids anew, but with all sines first. So the
  channels of the whole model are put into that order, which leaves its outputs the same.
- Its norms have an epsilon of 1e-5. All values between two norms are scaled, so that the outputs
  are those of the model's own epsilon. Only the first norm of the encoder and that of the decoder
  differ: by a relative 5e-6 and less, where the variance is 1 or more.
- Marian's C++ toolkit begins a target with zeros, and the converter of CTranslate2 relies on
  that, and on padding as the last entry. So the embedding of the start is subtracted from all,
  biases of the first layers make up for it, and the entries get other ids.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from t2t_jax.batch import EOS_ID, PAD_ID
from t2t_jax.config import Config, EncoderDecoderConfig, ModelConfig
from t2t_jax.config.model import PARTS
from t2t_jax.data.vocabularies.paired import PairedVocabulary
from t2t_jax.data.vocabularies.shared import SharedVocabulary
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.interchange import rewriting
from t2t_jax.interchange.carried import (
    Carried,
    any_value,
    common_search,
    sizes_of_transformers,
    tied_output,
)
from t2t_jax.interchange.generation import num_positions, write_search
from t2t_jax.interchange.marian.reading import EPSILON, FIELDS
from t2t_jax.interchange.places import layer_places
from t2t_jax.interchange.portable import PortableModel
from t2t_jax.interchange.pretrained import (
    ACTIVATIONS,
    their_encoder_decoder_fields,
    write_files,
    write_json,
)
from t2t_jax.modules.models import start_id

VOCABULARIES = SharedVocabulary, PairedVocabulary

_README = """\
# A Transformer of t2t_jax as a Marian model

    from transformers import AutoTokenizer, MarianMTModel

    tokenizer, model = AutoTokenizer.from_pretrained("."), MarianMTModel.from_pretrained(".")
    found = model.generate(**tokenizer(["Hello, world!"], return_tensors="pt", padding=True))
    print(tokenizer.batch_decode(found, skip_special_tokens=True)[0])

It needs `pip install transformers torch sentencepiece`. With `num_beams=1`, greedy search, it
translates as t2t_jax does with `--beam-size 1`. With a beam, the two choose the same where the run
has `decoding.beam_rule=transformers`, and else they may not: transformers divides the
log-probability of a translation by length^alpha, and t2t_jax by ((5 + length) / 6)^alpha (equation
14 of Wu et al. 2016); and in each step it takes an end of sentence only from among as many
continuations as the beam has hypotheses, and t2t_jax from among twice as many.

`ct2-transformers-converter --model . --output_dir OUT` makes a model for CTranslate2 of it, if
sources and targets have one vocabulary. The subwords that are given to it end with `</s>`.
"""


def carried(config: Config) -> Carried:
    """Return the fields of a config that the format can hold, each with its possible values."""
    heads = (f"{part}_heads" for part in PARTS)
    parts = "attention_bias", "output_bias", "source_vocab_size", "scale_embeddings"
    return {
        **sizes_of_transformers(config.model),
        **tied_output(config.model),
        **any_value("model", *heads, *parts),
        **common_search(),
        "model.architecture": ("encoder_decoder",),
        "model.feed_forward": tuple(ACTIVATIONS),
        "model.norm_order": ("post", "deep"),
        "model.position": ("sinusoidal",),  # transformers computes no other frequencies
        "model.start_token": ("begin", "end", "padding"),
    }


def write(model: PortableModel, directory: Path) -> None:
    """Write a model as a Marian model of transformers."""
    config, size = model.config, len(model.vocabulary)
    # transformers has one id of padding, so two vocabularies cannot both have it at the end.
    first = 1 if len(_pieces(model.vocabulary)) == 1 else 0
    settings, arrays = model_config(config, size, first), dict(_their_arrays(model, first))
    write_files(directory, "MarianMTModel", "marian", settings, arrays, _README)
    special = _special_ids(config.model, size, first)
    write_search(directory, config, special, (np.arange(size) - first) % size)
    write_tokenizer(model, directory, first)


def model_config(config: Config, vocab_size: int, first: int = 0) -> dict[str, Any]:
    """Return the fields of a `MarianConfig` for a model with so many entries of targets.

    Args:
      first: our id of the entry 0 in transformers; our entries before it come last there.
    """
    model = config.model
    assert isinstance(model, EncoderDecoderConfig)
    return {
        "vocab_size": model.source_vocab_size or vocab_size,
        "decoder_vocab_size": vocab_size,
        **their_encoder_decoder_fields(model, FIELDS),
        "activation_function": ACTIVATIONS[model.feed_forward].replace("silu", "swish"),  # as usual
        "max_position_embeddings": num_positions(config),
        "share_encoder_decoder_embeddings": model.share_embeddings,
        "tie_word_embeddings": True,
        **_special_ids(model, vocab_size, first),
    }


def _special_ids(model: ModelConfig, size: int, first: int) -> dict[str, int | None]:
    ids = {
        "pad_token_id": PAD_ID,
        "eos_token_id": EOS_ID,
        "bos_token_id": start_id(model),
        "decoder_start_token_id": start_id(model),
    }
    return {name: (number - first) % size for name, number in ids.items()} | {
        "forced_eos_token_id": None
    }


def write_tokenizer(model: PortableModel, directory: Path, first: int) -> None:
    """Write the files from which `MarianTokenizer` of transformers splits text as the model does.

    Args:
      first: our id of the entry 0 there; our entries before it come last there.
    """
    config, vocabulary, pieces = model.config, model.vocabulary, _pieces(model.vocabulary)
    sizes = vocabulary.source_size, len(vocabulary)
    names = "vocab.json", "target_vocab.json"
    settings = {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": config.data.source_language,
        "target_lang": config.data.target_language,
        "separate_vocabs": len(pieces) > 1,
        "model_max_length": config.decoding.max_source_length,
        "pad_token": pieces[-1][PAD_ID],
        "eos_token": pieces[-1][EOS_ID],
        "unk_token": pieces[-1][vocabulary.unk_id],
    }
    write_json(directory / "tokenizer_config.json", settings)
    for name, table, size in zip(names, pieces, sizes, strict=False):
        ids = {piece: (number - first) % size for number, piece in enumerate(table)}
        write_json(directory / name, ids)
    for name in ("source.spm", "target.spm"):
        files = vocabulary.files
        (directory / name).write_bytes(files.get(name) or files["vocabulary.model"])


def _pieces(vocabulary: Vocabulary) -> list[list[str]]:
    """Return the subword of each id: one list, or one for sources and one for targets."""
    (of_sources,) = vocabulary.pieces([range(vocabulary.source_size)])
    (of_targets,) = vocabulary.target_pieces([range(len(vocabulary))])
    return [of_sources] if of_sources == of_targets else [of_sources, of_targets]


def _their_arrays(
    model: PortableModel, first: int
) -> Iterator[tuple[str, Float32[np.ndarray, "..."]]]:
    """Yield the parameters under the names, and in the layout, of `MarianMTModel`.

    Args:
      first: our id of the entry 0 in transformers; our entries before it come last there.
    """
    network = model.config.model
    assert isinstance(network, EncoderDecoderConfig)
    width = np.arange(network.d_model)
    sines_first = np.concatenate([width[::2], width[1::2]])
    arrays = rewriting.with_all_heads(model.arrays, network)
    arrays = rewriting.without_residual_scale(arrays, network)
    arrays = rewriting.with_all_biases(arrays, network)
    arrays = rewriting.with_start_of_zeros(arrays, network, start_id(network))
    arrays = rewriting.with_norm_epsilon(arrays, network, EPSILON)
    arrays = rewriting.permuted_channels(arrays, sines_first)
    nothing = np.zeros(len(model.vocabulary), np.float32)
    rows = {*network.embeddings.values(), "output_bias"}
    arrays = {"output_bias": nothing, **arrays}
    arrays |= {name: np.roll(arrays[name], -first, axis=0) for name in rows}
    if network.share_embeddings:
        yield "model.shared.weight", arrays["embedding"]
    else:
        yield "model.encoder.embed_tokens.weight", arrays["source_embedding"]
        yield "model.decoder.embed_tokens.weight", arrays["target_embedding"]
    yield "final_logits_bias", arrays["output_bias"][None]
    for stack in ("encoder", "decoder"):
        for number in range(getattr(network, f"num_{stack}_layers")):
            for place in layer_places(stack, number, "model."):
                yield place.theirs, place.theirs_of(arrays)
