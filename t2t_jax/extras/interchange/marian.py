"""The Marian models of Hugging Face's library transformers, such as OPUS-MT's.

    DIR/config.json, generation_config.json     sizes, special ids, how translations are searched
    DIR/model.safetensors                       the parameters, or pytorch_model.bin
    DIR/source.spm, target.spm                  the SentencePiece models that split text
    DIR/vocab.json, tokenizer_config.json       the id of each subword
    DIR/target_vocab.json                       that of targets, if the two sides differ
    DIR/README.md                               written: the lines of Python that translate

When reading: transformers computes the positions of such models by the paper's formula, unless the
file has tables of positions. A file whose tables differ from the formula is refused. OPUS-MT
trained its models with Marian's C++ toolkit, whose positions differ by up to 0.14 at position 100
(`functional.position.tensor2tensor_sinusoids`).

When writing: three things are fixed in transformers, or in programs that read its models. The
parameters are rewritten to make up for them:

- It stores no positions and computes the paper's sinusoids anew, but with all sines first. So the
  channels of the whole model are put into that order, which leaves its outputs the same.
- Its norms have an epsilon of 1e-5. All values between two norms are scaled, so that the outputs
  are those of the model's own epsilon. Only the first norm of the encoder and that of the decoder
  differ: by a relative 5e-6 and less, where the variance is 1 or more.
- Marian's C++ toolkit begins a target with an embedding of zeros. The converter of CTranslate2
  relies on that, and on padding as the last entry. So the embedding of the start is subtracted
  from all, biases of the first layers make up for it, and the entries get other ids.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NotRequired, TypeAlias

import numpy as np
from jaxtyping import Int

from t2t_jax.batch import EOS_ID, PAD_ID
from t2t_jax.config import Config, EncoderDecoderConfig, ModelConfig
from t2t_jax.config.model import PARTS
from t2t_jax.data.vocabularies.shared import SharedVocabulary
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.errors import UserError
from t2t_jax.extras.interchange import (
    generation,
    model_files,
    places,
    portable,
    pretrained,
    rewriting,
)
from t2t_jax.extras.interchange.carried import SEARCH, Carried, any_value, fields_of_transformers
from t2t_jax.extras.interchange.vocabularies.paired import PairedVocabulary, paired_vocabulary
from t2t_jax.functional.position import sinusoidal_positions, tensor2tensor_sinusoids
from t2t_jax.modules.models import start_id
from t2t_jax.modules.names import Arrays
from t2t_jax.system.records import Record

VOCABULARIES = SharedVocabulary, PairedVocabulary

Positions: TypeAlias = Literal["huggingface", "marian"]
"""The sinusoids of the imported model: those of transformers, or those of Marian's C++ toolkit."""

_FIELDS = pretrained.encoder_decoder_fields("gelu")
"""The fields of config.json that stand for fields of ours."""
_EPSILON = 1e-5
"""The epsilon that the norms of `MarianMTModel` add to the variance."""
_SHARED, _TIED = "share_encoder_decoder_embeddings", "tie_word_embeddings"
_OTHERS = {
    "decoder_start_token_id": model_files.ID,
    _SHARED: NotRequired[bool],
    "decoder_vocab_size": NotRequired[model_files.SIZE | None],
}
_SPLITTERS = "source.spm", "target.spm"
_COPIES = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"
"""The names under which a file may repeat the shared embedding matrix."""


def read(path: Path, *, positions: Positions = "huggingface") -> portable.PortableModel:
    """Read a Marian model.

    Args:
      positions: the sinusoids that the model is to have.
    """
    given = pretrained.read_encoder_decoder_config(path, "marian", _FIELDS, _OTHERS, {})
    theirs = {_SHARED: True, _TIED: True, **given}
    vocabulary, orders = _read_vocabulary(path, theirs)
    config = _our_config(path, theirs, vocabulary, positions)
    tensors = pretrained.read_tensors(path)
    arrays: Arrays = dict(_our_arrays(tensors, theirs, config.model, orders))
    if positions == "huggingface":
        try:
            in_turn = np.argsort(_sines_first(theirs["d_model"]))
            arrays = rewriting.permuted_channels(arrays, in_turn)
        except IndexError as error:
            raise UserError(
                f"{tensors.file} has tensors of other sizes than config.json has: {error}"
            ) from error
    model = portable.PortableModel(config, vocabulary, arrays, ())
    return generation.with_their_search(model, path, theirs, orders[1].tolist())


def _read_vocabulary(path: Path, theirs: Record) -> tuple[PairedVocabulary, list[places.Order]]:
    """Read the vocabulary; also return, for sources and targets, the model's id of each entry."""
    separate = (path / "target_vocab.json").exists()
    names = "vocab.json", "target_vocab.json" if separate else "vocab.json"
    sizes = theirs["vocab_size"], theirs.get("decoder_vocab_size") or theirs["vocab_size"]
    first = [theirs["pad_token_id"], theirs["eos_token_id"]]
    if theirs["decoder_start_token_id"] not in first:
        first.append(theirs["decoder_start_token_id"])
    tables, orders = [], []
    for name, size in zip(names, sizes, strict=True):
        ids = model_files.read_json(path / name, dict[str, model_files.ID])
        pieces = model_files.pieces_by_id(path / name, ids, size)
        if max(first) >= size or (theirs[_SHARED] and sizes[0] != sizes[1]):
            raise UserError(f"{path / 'config.json'} has special ids or sizes that do not fit")
        table, order = places.new_order(pieces, first)
        tables.append(table)
        orders.append(order)
    source, target = (model_files.read_bytes(path / name) for name in _SPLITTERS)
    with model_files.vocabulary_of(f"the vocabulary of {path}"):
        return paired_vocabulary((source, target), (tables[0], tables[1])), orders


def _our_arrays(
    tensors: places.Tensors, theirs: Record, model: ModelConfig, orders: list[places.Order]
) -> places.NamedArrays:
    """Yield the parameters under our names and with our ids, but with channels in the old order."""
    of_sources, of_targets, width = *orders, theirs["d_model"]
    whole = "model.shared.weight" if theirs[_SHARED] else _COPIES[1]
    copies = _COPIES if theirs[_SHARED] else _COPIES[-1:] if theirs[_TIED] else ()
    if theirs[_SHARED]:
        yield "embedding", tensors.rows(whole, of_sources, width)
    else:
        yield "source_embedding", tensors.rows(_COPIES[0], of_sources, width)
        yield "target_embedding", tensors.rows(_COPIES[1], of_targets, width)
        if not theirs[_TIED]:
            yield "output_projection", tensors.rows("lm_head.weight", of_targets, width)
    bias = tensors.take("final_logits_bias", 1, len(of_targets))[0]
    yield "output_bias", places.rows_in(bias, of_targets)
    for place in places.encoder_decoder_places(model, "model."):
        yield place.ours, place.array(tensors)
    for name in copies:
        tensors.take_copy(name, tensors.take(whole))
    formulas: list[Callable[..., Any]] = [  # an IndexError in a narrower table
        lambda *shape: np.asarray(sinusoidal_positions(*shape))[:, _sines_first(width)]
    ]
    if model.position == "sinusoidal_t2t":  # as asked for, whichever table the file has
        formulas.append(tensor2tensor_sinusoids)
    tensors.finish({r"model\.(encoder|decoder)\.embed_positions\.weight": formulas})


def _sines_first(d_model: int) -> Int[np.ndarray, " d_model"]:
    """Return the order of channels that turns sines and cosines in turn into sines first."""
    return np.r_[0:d_model:2, 1:d_model:2]


def _our_config(
    path: Path, theirs: Record, vocabulary: PairedVocabulary, positions: Positions
) -> Config:
    shared = theirs[_SHARED]
    tokens = {theirs["pad_token_id"]: "padding", theirs["eos_token_id"]: "end"}
    changes = {
        "model.attention_bias": True,
        "model.output_bias": True,
        "model.norm_epsilon": _EPSILON,
        "model.position": "sinusoidal" if positions == "huggingface" else "sinusoidal_t2t",
        "model.share_embeddings": shared,
        "model.share_target_embedding": not shared and theirs[_TIED],
        "model.source_vocab_size": None if shared else vocabulary.source_size,
        "model.start_token": tokens.get(theirs["decoder_start_token_id"], "begin"),
        "data.vocab_size": len(vocabulary),
        "decoding.max_source_length": max(8, theirs.get("max_position_embeddings", 1024)),
        **_languages(path / "tokenizer_config.json"),
    }
    return pretrained.our_config(path, theirs, _FIELDS, changes)


def _languages(file: Path) -> dict[str, str]:
    """Return the two languages in tokenizer_config.json as fields, or {}."""
    if not file.exists():
        return {}
    found = model_files.read_json(file, Record)
    names = [found.get(f"{side}_lang") for side in ("source", "target")]
    if not all(isinstance(name, str) and name for name in names) or names[0] == names[1]:
        return {}
    return {"data.source_language": str(names[0]), "data.target_language": str(names[1])}


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
    """Return the fields of a config that the format can hold; see `interchange.carried`."""
    parts = [f"{part}_heads" for part in PARTS]
    return {
        **fields_of_transformers(config.model),
        **any_value("model", *parts, "attention_bias", "output_bias", "source_vocab_size"),
        **SEARCH,
        "model.architecture": ("encoder_decoder",),
        "model.norm_order": ("post", "deep"),
        "model.position": ("sinusoidal",),  # transformers computes no other frequencies
        "model.start_token": ("begin", "end", "padding"),
    }


def write(model: portable.PortableModel, directory: Path) -> None:
    """Write a model as a Marian model of transformers."""
    config, size = model.config, len(model.vocabulary)
    # transformers has one id of padding, so two vocabularies cannot both have it at the end.
    first = 1 if len(_pieces(model.vocabulary)) == 1 else 0
    settings, arrays = model_config(config, size, first), dict(_their_arrays(model, first))
    pretrained.write_files(directory, "MarianMTModel", "marian", settings, arrays, _README)
    order = (np.arange(size) - first) % size
    generation.write_search(directory, config, generation.special_ids(config.model, order), order)
    _write_tokenizer(model, directory, first)


def model_config(config: Config, vocab_size: int, first: int = 0) -> dict[str, object]:
    """Return the fields of a `MarianConfig` for a model with so many entries of targets.

    Args:
      first: our id of the entry 0 in transformers; our entries before it come last there.
    """
    model = config.model
    assert isinstance(model, EncoderDecoderConfig)
    activation = pretrained.ACTIVATIONS[model.feed_forward]
    return {
        "vocab_size": model.source_vocab_size or vocab_size,
        "decoder_vocab_size": vocab_size,
        **pretrained.their_encoder_decoder_fields(model, _FIELDS),
        "activation_function": "swish" if activation == "silu" else activation,  # as usual
        "max_position_embeddings": generation.num_positions(config),
        "share_encoder_decoder_embeddings": model.share_embeddings,
        "tie_word_embeddings": True,
        **generation.special_ids(model, (np.arange(vocab_size) - first) % vocab_size),
    }


def _write_tokenizer(model: portable.PortableModel, directory: Path, first: int) -> None:
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
    pretrained.write_json(directory / "tokenizer_config.json", settings)
    for name, table, size in zip(names, pieces, sizes, strict=False):
        ids = {piece: (number - first) % size for number, piece in enumerate(table)}
        pretrained.write_json(directory / name, ids)
    files = vocabulary.files
    for name in _SPLITTERS:
        (directory / name).write_bytes(files.get(name) or files["vocabulary.model"])


def _pieces(vocabulary: Vocabulary) -> list[list[str]]:
    """Return the subword of each id: one list, or one for sources and one for targets."""
    (of_sources,) = vocabulary.pieces([range(vocabulary.source_size)])
    (of_targets,) = vocabulary.target_pieces([range(len(vocabulary))])
    return [of_sources] if of_sources == of_targets else [of_sources, of_targets]


def _their_arrays(model: portable.PortableModel, first: int) -> places.NamedArrays:
    """Yield the parameters under the names, and in the layout, of `MarianMTModel`.

    Args:
      first: see `_write_tokenizer`.
    """
    network = model.config.model
    assert isinstance(network, EncoderDecoderConfig)
    arrays = rewriting.with_all_heads(model.arrays, network)
    arrays = rewriting.as_post_norm(arrays, network, _EPSILON)
    arrays = rewriting.with_all_biases(arrays, network)
    arrays = rewriting.with_start_of_zeros(arrays, network, start_id(network))
    arrays = rewriting.permuted_channels(arrays, _sines_first(network.d_model))
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
    for place in places.encoder_decoder_places(network, "model."):
        yield place.theirs, place.theirs_of(arrays)
