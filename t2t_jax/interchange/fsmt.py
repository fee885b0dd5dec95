"""Export and import of FSMT of transformers: fairseq's models of WMT 2019, and those like them.

    DIR/config.json, generation_config.json     sizes, special ids, how translations are searched
    DIR/model.safetensors                       the parameters; when reading, or pytorch_model.bin
    DIR/vocab-src.json, vocab-tgt.json          the id of each subword, of sources and of targets
    DIR/merges.txt                              the pairs of subwords that become one, in order
    DIR/tokenizer_config.json, README.md        written: the languages, and lines that translate

Matrices that are equal become one. Where the feed-forward networks of the two stacks have different
widths, the narrower ones get channels of zeros, which change no output.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from t2t_jax.config import Config, EncoderDecoderConfig
from t2t_jax.data.vocabularies.moses import MosesVocabulary, moses_vocabulary
from t2t_jax.errors import UserError
from t2t_jax.functional.position import tensor2tensor_sinusoids
from t2t_jax.interchange import pretrained
from t2t_jax.interchange.carried import Carried, any_value, common_search, sizes_of_transformers
from t2t_jax.interchange.fairseq_arrays import (
    fairseq_model_places,
    orders_of_rows,
    parameters_of_fairseq,
)
from t2t_jax.interchange.generation import num_positions, with_their_search, write_search
from t2t_jax.interchange.model_files import DEPTH, ID, SIZE, read_json, read_text, vocabulary_of
from t2t_jax.interchange.numbering import BEGIN, END, OF_FAIRSEQ, PAD, UNKNOWN, new_order, rows_in
from t2t_jax.interchange.portable import PortableModel
from t2t_jax.interchange.rewriting import with_idle_channels
from t2t_jax.interchange.tensors import Tensors
from t2t_jax.modules.models import start_id
from t2t_jax.system.records import Each, Record, Schema

VOCABULARIES = (MosesVocabulary,)

_FIELDS = pretrained.encoder_decoder_fields("relu", scaled=True)
_TABLES = {"vocab-src.json": "src_vocab_size", "vocab-tgt.json": "tgt_vocab_size"}
_MERGES, _SETTINGS, _LOWERS = "merges.txt", "tokenizer_config.json", "do_lower_case"
_OTHERS = Schema(
    {
        **dict.fromkeys((*_TABLES.values(), "decoder_ffn_dim"), SIZE),
        "decoder_attention_heads": DEPTH,
        **dict.fromkeys(("pad_token_id", "eos_token_id"), ID),
        "langs": Each(list, str),
    },
    {
        "decoder_start_token_id": ID,
        "tie_word_embeddings": bool,
        "max_position_embeddings": SIZE,
    },
)
_OURS = PAD, END, BEGIN, UNKNOWN
"""The entries that come first in a vocabulary of Moses."""
_STARTS = "padding", "end", "begin"
_WORD_END, _CONTINUES = "</w>", "@@"
_SOURCE, _TARGET, _OUTPUT = _MATRICES = (
    "encoder.embed_tokens.weight",
    "decoder.embed_tokens.weight",
    "decoder.output_projection.weight",
)
_STACKS = "encoder", "decoder"
_POSITIONS_DIFFER = 1e-3  # what sinusoids of other programs may differ by, but not trained ones
_FIXED = {
    "model.attention_bias": True,
    "model.norm_epsilon": 1e-5,
    "model.norm_order": "post",
    "model.position": "sinusoidal_t2t",
}
"""The fields of our config that all of these models have alike."""
_README = """\
# A Transformer of t2t_jax as FSMTForConditionalGeneration of transformers

    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(".")
    model = AutoModelForSeq2SeqLM.from_pretrained(".")
    found = model.generate(**tokenizer(["Hello, world!"], return_tensors="pt", padding=True))
    print(tokenizer.batch_decode(found, skip_special_tokens=True)[0])

It needs `pip install transformers torch sacremoses`, and translates from {} to {}.
"""


def read(path: Path) -> PortableModel:
    """Read a model.

    Raises:
      UserError: a file is missing or damaged, or is of another kind of model, or has an option that
        models of this package cannot have.
    """
    theirs = pretrained.read_pretrained_config(path, "fsmt", _FIELDS, _OTHERS, {})
    heads = {"decoder_attention_heads": theirs["encoder_attention_heads"]}
    pretrained.refuse_other_options(path / "config.json", theirs, heads)
    theirs = {"decoder_start_token_id": theirs["eos_token_id"], **theirs}
    tables = [
        pretrained.read_pieces(path / name, theirs[size], _OURS) for name, size in _TABLES.items()
    ]
    firsts = [[table.index(name) for name in _OURS] for table in tables]
    named = [theirs["pad_token_id"], theirs["eos_token_id"]]
    if firsts[0] != firsts[1] or firsts[0][:2] != named:
        raise UserError(
            f"{path / 'config.json'} has {named} as ids of padding and end, and the vocabularies "
            f"beside it have {firsts[0][:2]} and {firsts[1][:2]}; copy the files of one model"
        )
    (sources, source_order), (targets, target_order) = (
        new_order([_our_piece(piece) for piece in table], firsts[0]) for table in tables
    )
    vocabulary = _vocabulary(path, theirs, (sources, targets))
    spellings = partial(_spellings, theirs.get("tie_word_embeddings", False))
    tensors = pretrained.read_tensors(path, spellings)
    config = _config(path, theirs, tensors, tables, firsts[0])
    for stack in _STACKS:
        _check_positions(tensors, f"{stack}.embed_positions.weight", config)
    arrays = parameters_of_fairseq(tensors, config.model, r"(model\.)?(encoder|decoder)\.version")
    orders = orders_of_rows(config.model, source_order, target_order)
    arrays |= {name: rows_in(arrays[name], order) for name, order in orders.items()}
    widths = {stack: theirs[f"{stack}_ffn_dim"] for stack in _STACKS}
    config, _ = with_their_search(config, path, theirs, target_order.tolist())
    return PortableModel(config, vocabulary, with_idle_channels(arrays, widths), ())


def _our_piece(piece: str) -> str:
    """Return a subword as subword-nmt writes it, with a mark where its word goes on."""
    if piece in OF_FAIRSEQ:
        return piece
    return piece.removesuffix(_WORD_END) if piece.endswith(_WORD_END) else f"{piece}{_CONTINUES}"


def _their_piece(piece: str) -> str:
    """Return a subword as FSMT writes it, with a mark where its word ends."""
    if piece in OF_FAIRSEQ:
        return piece
    return piece.removesuffix(_CONTINUES) if piece.endswith(_CONTINUES) else f"{piece}{_WORD_END}"


def _vocabulary(
    path: Path, theirs: Record, pieces: tuple[Sequence[str], Sequence[str]]
) -> MosesVocabulary:
    """Return the vocabulary, which splits text with the merges of a directory."""
    settings = path / _SETTINGS
    if settings.exists():
        found = read_json(settings, Schema({}, {_LOWERS: bool}))
        pretrained.refuse_other_options(settings, found, {_LOWERS: False})
    if len(theirs["langs"]) != len(_TABLES):
        raise UserError(
            f"{path / 'config.json'} has langs={theirs['langs']!r:.60}, which are not two"
        )
    source, target = theirs["langs"]
    file = path / _MERGES
    lines = (line.split()[:2] for line in read_text(file).split("\n"))
    merges = [" ".join(line) for line in lines if line and line[0] != "#version:"]
    codes = "\n".join(["#version: 0.2", *merges, ""])
    parts = {"splits_dashes": True, "escapes": True, "normalizes": True}
    with vocabulary_of(file):
        return moses_vocabulary((source, target), codes, pieces, **parts)


def _spellings(are_all_one: bool, name: str) -> Iterator[str]:
    """Yield the names that an array may have in a file, which leaves out copies of a matrix."""
    copies = _MATRICES if are_all_one else (_TARGET, _OUTPUT)
    for one in (name, *(copies if name in copies else ())):
        yield f"model.{one}"
        yield one


def _config(
    path: Path,
    theirs: Record,
    tensors: Tensors,
    tables: Sequence[Sequence[str]],
    first: Sequence[int],
) -> Config:
    """Return our config, but for the search.

    Args:
      tables: the subword of each id of sources, and of targets.
      first: the model's ids of padding, of the end and of the begin of a sentence.
    """
    sizes = len(tables[0]), len(tables[1])
    source, target, output = (
        tensors.take(name, sizes[name != _SOURCE], theirs["d_model"]) for name in _MATRICES
    )
    is_tied = np.array_equal(target, output)
    is_shared = is_tied and tables[0] == tables[1] and np.array_equal(source, target)
    starts = dict(zip(first, _STARTS, strict=False))
    start = theirs["decoder_start_token_id"]
    if start not in starts:
        raise UserError(
            f"{path / 'config.json'} has decoder_start_token_id={start}, which is neither padding "
            "nor the begin or the end of a sentence"
        )
    changes = {
        **_FIXED,
        "model.d_ff": max(theirs[f"{stack}_ffn_dim"] for stack in _STACKS),
        "model.first_position": theirs["pad_token_id"] + 1,
        "model.start_token": starts[start],
        "model.share_embeddings": is_shared,
        "model.share_target_embedding": is_tied and not is_shared,
        "model.source_vocab_size": None if is_shared else sizes[0],
        "data.vocab_size": sizes[1],
        **dict(zip(("data.source_language", "data.target_language"), theirs["langs"], strict=True)),
        "decoding.max_source_length": max(8, theirs.get("max_position_embeddings", 1024)),
    }
    return pretrained.our_config(path, theirs, _FIELDS, changes)


def _check_positions(tensors: Tensors, name: str, config: Config) -> None:
    """Refuse a table of positions that was trained, in a file that has such tables."""
    if name not in tensors:
        return
    width, first = config.model.d_model, config.model.first_position
    table = tensors.take(name, None, width)[first:]
    sinusoids = np.asarray(tensor2tensor_sinusoids(first + len(table), width))[first:]
    if not np.allclose(table, sinusoids, rtol=0, atol=_POSITIONS_DIFFER):
        raise UserError(
            f"{tensors.file} has an array {name} of other numbers than sinusoids, to which a "
            "training has changed them; train it with fixed positions, as fairseq does"
        )


def carried(config: Config) -> Carried:
    """Return the fields of a config that the format can hold, each with its possible values."""
    parts = "share_embeddings", "share_target_embedding", "source_vocab_size", "scale_embeddings"
    return {
        **sizes_of_transformers(config.model),
        **any_value("model", *parts),
        **common_search(),
        **{name: (value,) for name, value in _FIXED.items()},
        "model.architecture": ("encoder_decoder",),
        "model.feed_forward": tuple(pretrained.ACTIVATIONS),
        "model.first_position": (OF_FAIRSEQ.index(PAD) + 1,),
        "model.start_token": _STARTS,
    }


def write(model: PortableModel, directory: Path) -> None:
    """Write a model as `save_pretrained` does.

    Raises:
      UserError: the vocabulary prepares text in another way than FSMT's tokenizer does.
    """
    vocabulary, config = model.vocabulary, model.config
    assert isinstance(vocabulary, MosesVocabulary)
    assert isinstance(config.model, EncoderDecoderConfig)
    if lacking := [
        name for name in ("splits_dashes", "escapes", "normalizes") if not getattr(vocabulary, name)
    ]:
        raise UserError(
            f"fsmt cannot have this model, whose vocabulary has {lacking[0]}=False: the "
            "tokenizer of FSMT prepares text in one way only; export it --to ctranslate2"
        )
    sizes = vocabulary.source_size, len(vocabulary)
    first = [OF_FAIRSEQ.index(name) for name in _OURS]
    special = {
        "bos_token_id": OF_FAIRSEQ.index(BEGIN),
        "pad_token_id": OF_FAIRSEQ.index(PAD),
        "eos_token_id": OF_FAIRSEQ.index(END),
        "decoder_start_token_id": first[start_id(config.model)],
        "forced_eos_token_id": None,
    }
    settings = {
        "langs": list(vocabulary.languages),
        **dict(zip(_TABLES.values(), sizes, strict=True)),
        **pretrained.their_encoder_decoder_fields(config.model, _FIELDS),
        "max_position_embeddings": num_positions(config),
        "tie_word_embeddings": config.model.share_embeddings,
        **special,
    }
    orders = [new_order([""] * size, first)[1] for size in sizes]
    readme = _README.format(*vocabulary.languages)
    arrays = dict(_their_arrays(model, orders))
    kind = "FSMTForConditionalGeneration", "fsmt"
    pretrained.write_files(directory, *kind, settings, arrays, readme)
    write_search(directory, config, special, orders[1])
    _write_vocabulary(vocabulary, orders, directory)


def _their_arrays(
    model: PortableModel, orders: Sequence[np.ndarray]
) -> Iterator[tuple[str, Float32[np.ndarray, "..."]]]:
    """Yield the parameters under the names, and in the layout, of transformers."""
    network, arrays = model.config.model, model.arrays
    backs = [np.argsort(order) for order in orders]
    for theirs, (side, ours) in zip(_MATRICES, network.embeddings.items(), strict=True):
        if side == "source" or len({*network.embeddings.values()}) > 1:
            yield f"model.{theirs}", arrays[ours][backs[side != "source"]]
    for place in fairseq_model_places(network, "model."):
        yield place.theirs, place.theirs_of(arrays)


def _write_vocabulary(
    vocabulary: MosesVocabulary, orders: Sequence[np.ndarray], directory: Path
) -> None:
    """Write the files of a vocabulary."""
    (sources,) = vocabulary.pieces([range(vocabulary.source_size)])
    (targets,) = vocabulary.target_pieces([range(len(vocabulary))])
    for name, pieces, order in zip(_TABLES, (sources, targets), orders, strict=True):
        ids = {_their_piece(piece): int(n) for piece, n in zip(pieces, order, strict=True)}
        pretrained.write_json(directory / name, ids)
    _, _, merges = vocabulary.files["bpecodes"].partition(b"\n")  # without the version
    (directory / _MERGES).write_bytes(merges)
    settings: Mapping[str, Any] = {
        "tokenizer_class": "FSMTTokenizer",
        "langs": list(vocabulary.languages),
        _LOWERS: False,
    }
    pretrained.write_json(directory / _SETTINGS, settings)
