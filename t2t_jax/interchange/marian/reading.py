"""A reader of what `save_pretrained` of transformers writes for a `MarianMTModel`, as OPUS-MT's.

The tensors are read from model.safetensors, or else from pytorch_model.bin, of which nothing is
executed. transformers computes the positions of such models by the paper's formula. OPUS-MT trained
its models with Marian's C++ toolkit, whose positions differ by up to 0.14 at position 100
(`functional.position.tensor2tensor_sinusoids`).
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Float32, Int

from t2t_jax.batch import PAD_ID
from t2t_jax.config import Config
from t2t_jax.data.vocabularies.paired import PairedVocabulary, paired_vocabulary
from t2t_jax.errors import UserError
from t2t_jax.interchange import pretrained
from t2t_jax.interchange.generation import with_their_search
from t2t_jax.interchange.model_files import ID, SIZE, read_bytes, read_json, vocabulary_of
from t2t_jax.interchange.numbering import UNKNOWN, new_order, rows_in
from t2t_jax.interchange.places import layer_places
from t2t_jax.interchange.portable import PortableModel
from t2t_jax.interchange.rewriting import permuted_channels
from t2t_jax.interchange.tensors import Tensors
from t2t_jax.modules.names import Arrays
from t2t_jax.system.records import Record, Schema

Positions: TypeAlias = Literal["huggingface", "marian"]
"""The sinusoids of the imported model: those of transformers, or those of Marian's C++ toolkit."""

FIELDS = pretrained.encoder_decoder_fields("gelu")
"""The fields of config.json that stand for fields of ours."""
EPSILON = 1e-5
"""The epsilon that the norms of `MarianMTModel` add to the variance."""
_SHARED, _TIED = "share_encoder_decoder_embeddings", "tie_word_embeddings"
_OTHERS = Schema(
    {"decoder_start_token_id": ID},
    {_SHARED: bool, "decoder_vocab_size": (SIZE, type(None))},
)
_COPIES = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"
"""The names under which a file may repeat the shared embedding matrix."""
_NEVER = -1e4


def read(path: Path, *, positions: Positions = "huggingface") -> PortableModel:
    """Read a Marian model.

    Args:
      positions: the sinusoids that the model is to have.

    Raises:
      UserError: a file is missing or damaged, or is of another kind of model.
    """
    given = pretrained.read_encoder_decoder_config(path, "marian", FIELDS, _OTHERS, {})
    theirs = {_SHARED: True, _TIED: True, **given}
    vocabulary, orders = _read_vocabulary(path, theirs)
    tensors = pretrained.read_tensors(path)
    arrays: Arrays = dict(_our_arrays(tensors, theirs, orders))
    if positions == "huggingface":
        try:
            arrays = permuted_channels(arrays, _interleaved(theirs["d_model"]))
        except IndexError as error:
            raise UserError(
                f"{tensors.file} has tensors of other sizes than config.json has: {error}"
            ) from error
    config = _our_config(path, theirs, vocabulary, orders[1], positions)
    config, renormalises = with_their_search(
        config, path, theirs, orders[1].tolist(), can_renormalize=True
    )
    if renormalises and PAD_ID in config.decoding.forbidden_ids:
        bias = arrays["output_bias"].copy()
        bias[PAD_ID] = _NEVER  # padding has no probability
        arrays = {**arrays, "output_bias": bias}
    return PortableModel(config, vocabulary, arrays, ())


def _read_vocabulary(
    path: Path, theirs: Record
) -> tuple[PairedVocabulary, list[Int[np.ndarray, " _"]]]:
    """Read the vocabulary; also return, for sources and targets, the model's id of each entry."""
    separate = (path / "target_vocab.json").exists()
    names = "vocab.json", "target_vocab.json" if separate else "vocab.json"
    sizes = theirs["vocab_size"], theirs.get("decoder_vocab_size") or theirs["vocab_size"]
    first = [theirs["pad_token_id"], theirs["eos_token_id"]]
    if theirs["decoder_start_token_id"] not in first:
        first.append(theirs["decoder_start_token_id"])
    tables, orders = [], []
    for name, size in zip(names, sizes, strict=True):
        pieces = pretrained.read_pieces(path / name, size, (UNKNOWN,))
        if max(first) >= size or (theirs[_SHARED] and sizes[0] != sizes[1]):
            raise UserError(f"{path / 'config.json'} has special ids or sizes that do not fit")
        table, order = new_order(pieces, first)
        tables.append(table)
        orders.append(order)
    models = read_bytes(path / "source.spm"), read_bytes(path / "target.spm")
    with vocabulary_of(f"the vocabulary of {path}"):
        return paired_vocabulary(models, (tables[0], tables[1])), orders


def _our_arrays(
    tensors: Tensors, theirs: Mapping[str, Any], orders: list[Int[np.ndarray, " _"]]
) -> Iterator[tuple[str, Float32[np.ndarray, "..."]]]:
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
    yield "output_bias", rows_in(bias, of_targets)
    for stack in ("encoder", "decoder"):
        for number in range(theirs[f"{stack}_layers"]):
            for place in layer_places(stack, number, "model."):
                yield place.ours, place.array(tensors)
    for name in copies:
        tensors.take_copy(name, tensors.take(whole))
    tensors.finish(r"model\.(encoder|decoder)\.embed_positions\.weight")


def _interleaved(d_model: int) -> Int[np.ndarray, " d_model"]:
    """Return the order of channels that turns sines first into sines and cosines in turn."""
    sines = np.arange(d_model // 2)
    return np.stack([sines, sines + d_model // 2], axis=1).ravel()


def _our_config(
    path: Path,
    theirs: Record,
    vocabulary: PairedVocabulary,
    order: Int[np.ndarray, " entries"],
    positions: Positions,
) -> Config:
    shared = theirs[_SHARED]
    start = list(order).index(theirs["decoder_start_token_id"])
    changes = {
        "model.attention_bias": True,
        "model.output_bias": True,
        "model.norm_epsilon": EPSILON,
        "model.position": "sinusoidal" if positions == "huggingface" else "sinusoidal_t2t",
        "model.share_embeddings": shared,
        "model.share_target_embedding": not shared and theirs[_TIED],
        "model.source_vocab_size": None if shared else vocabulary.source_size,
        "model.start_token": ("padding", "end", "begin")[start],
        "data.vocab_size": len(vocabulary),
        "decoding.max_source_length": max(8, theirs.get("max_position_embeddings", 1024)),
        **_languages(path / "tokenizer_config.json"),
    }
    return pretrained.our_config(path, theirs, FIELDS, changes)


def _languages(file: Path) -> dict[str, str]:
    """Return the two languages in tokenizer_config.json as fields; {} if it does not have them."""
    if not file.exists():
        return {}
    found = read_json(file, Schema())
    names = [found.get(f"{side}_lang") for side in ("source", "target")]
    if not all(isinstance(name, str) and name for name in names) or names[0] == names[1]:
        return {}
    return {"data.source_language": str(names[0]), "data.target_language": str(names[1])}
