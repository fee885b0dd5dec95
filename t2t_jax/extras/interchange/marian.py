"""Export and import Marian models of Hugging Face transformers, such as OPUS-MT.

    DIR/config.json, generation_config.json     sizes, special ids, decoding settings
    DIR/model.safetensors                       parameters, or pytorch_model.bin
    DIR/source.spm, target.spm                  SentencePiece models
    DIR/vocab.json, tokenizer_config.json       id of each subword
    DIR/target_vocab.json                       ids of target subwords, if they differ
    DIR/README.md                               example in Python (export only)

transformers computes sinusoidal positions, or reads stored tables. The import refuses tables that
differ from the formula. Marian's C++ toolkit, which trained OPUS-MT, uses other sinusoids
(`functional.position.tensor2tensor_sinusoids`). They differ by up to 0.14 at position 100.
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
from t2t_jax.extras.interchange import generation, model_files, places, pretrained, rewriting
from t2t_jax.extras.interchange.carried import SEARCH, Carried, any_value, fields_of_transformers
from t2t_jax.extras.interchange.portable import PortableModel
from t2t_jax.extras.interchange.vocabularies.paired import PairedVocabulary, paired_vocabulary
from t2t_jax.functional.position import sinusoidal_positions, tensor2tensor_sinusoids
from t2t_jax.modules.models import start_id
from t2t_jax.modules.names import Arrays
from t2t_jax.system.records import Record

VOCABULARIES = SharedVocabulary, PairedVocabulary

Positions: TypeAlias = Literal["huggingface", "marian"]
"""The program whose sinusoids an imported model uses: transformers, or Marian's C++ toolkit."""

_FIELDS = pretrained.encoder_decoder_fields("gelu")
"""The counterparts of fields in config.json."""
_EPSILON = 1e-5
"""The epsilon of the norms in `MarianMTModel`."""
_SHARED, _TIED = "share_encoder_decoder_embeddings", "tie_word_embeddings"
_EXTRA_TYPES = {
    "decoder_start_token_id": model_files.ID,
    _SHARED: NotRequired[bool],
    "decoder_vocab_size": NotRequired[model_files.SIZE | None],
}
_SPLITTERS = "source.spm", "target.spm"
_COPIES = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"
"""The names of optional copies of the shared embedding matrix."""


def read(path: Path, *, positions: Positions = "huggingface") -> PortableModel:
    """Read a Marian model from a directory that `save_pretrained` wrote.

    Args:
      positions: program whose sinusoids the model uses.
    """
    config_file = pretrained.read_encoder_decoder_config(path, "marian", _FIELDS, _EXTRA_TYPES, {})
    hf_config = {_SHARED: True, _TIED: True, **config_file}
    vocabulary, id_tables = _read_vocabulary(path, hf_config)
    config = _convert_config(path, hf_config, vocabulary, positions)
    tensors = pretrained.read_tensors(path)
    arrays: Arrays = dict(_import_arrays(tensors, hf_config, config.model, id_tables))
    if positions == "huggingface":  # t2t_jax interleaves sines and cosines
        try:
            interleaved = np.argsort(_sines_first(hf_config["d_model"]))
            arrays = rewriting.permuted_channels(arrays, interleaved)
        except IndexError as error:
            raise UserError(
                f"{tensors.file} has tensors whose sizes disagree with config.json: {error}"
            ) from error
    model = PortableModel(config, vocabulary, arrays, ())
    return generation.with_hf_search(model, path, hf_config, id_tables[1].tolist())


def _read_vocabulary(path: Path, hf_config: Record) -> tuple[PairedVocabulary, list[places.Order]]:
    """Read the vocabulary, and return it with the file's id of each source and target entry."""
    is_separate = (path / "target_vocab.json").exists()
    names = "vocab.json", "target_vocab.json" if is_separate else "vocab.json"
    sizes = hf_config["vocab_size"], hf_config.get("decoder_vocab_size") or hf_config["vocab_size"]
    first_ids = [hf_config["pad_token_id"], hf_config["eos_token_id"]]
    if hf_config["decoder_start_token_id"] not in first_ids:
        first_ids.append(hf_config["decoder_start_token_id"])
    piece_tables, id_tables = [], []
    for name, size in zip(names, sizes, strict=True):
        ids = model_files.read_json(path / name, dict[str, model_files.ID])
        pieces = model_files.pieces_by_id(path / name, ids, size)
        if max(first_ids) >= size or (hf_config[_SHARED] and sizes[0] != sizes[1]):
            raise UserError(f"{path / 'config.json'} has special ids or sizes that do not fit")
        table, file_ids = places.new_order(pieces, first_ids)
        piece_tables.append(table)
        id_tables.append(file_ids)
    source, target = (model_files.read_bytes(path / name) for name in _SPLITTERS)
    with model_files.naming_file(f"the vocabulary of {path}"):
        return paired_vocabulary((source, target), (piece_tables[0], piece_tables[1])), id_tables


def _import_arrays(
    tensors: places.Tensors, hf_config: Record, model: ModelConfig, id_tables: list[places.Order]
) -> places.NamedArrays:
    """Yield the parameters with t2t_jax's names and token ids.

    Channels keep the order of the file.

    Args:
      id_tables: the file's id of each source token, and of each target token.
    """
    source_ids, target_ids, width = *id_tables, hf_config["d_model"]
    is_shared, is_tied = hf_config[_SHARED], hf_config[_TIED]
    matrix_name = "model.shared.weight" if is_shared else _COPIES[1]
    copy_names = _COPIES if is_shared else _COPIES[-1:] if is_tied else ()
    if is_shared:
        yield "embedding", tensors.take_rows(matrix_name, source_ids, width)
    else:
        yield "source_embedding", tensors.take_rows(_COPIES[0], source_ids, width)
        yield "target_embedding", tensors.take_rows(_COPIES[1], target_ids, width)
        if not is_tied:
            yield "output_projection", tensors.take_rows("lm_head.weight", target_ids, width)
    bias = tensors.take("final_logits_bias", 1, len(target_ids))[0]
    yield "output_bias", places.reorder_rows(bias, target_ids)
    for pair in places.encoder_decoder_pairs(model, "model."):
        yield pair.name, pair.import_array(tensors)
    for name in copy_names:
        tensors.take_copy(name, tensors.take(matrix_name))
    formulas: list[Callable[..., Any]] = [  # raises IndexError for a narrower table
        lambda *shape: np.asarray(sinusoidal_positions(*shape))[:, _sines_first(width)]
    ]
    if model.position == "sinusoidal_t2t":  # the user chose these sinusoids: accept both tables
        formulas.append(tensor2tensor_sinusoids)
    tensors.finish({r"model\.(encoder|decoder)\.embed_positions\.weight": formulas})


def _sines_first(d_model: int) -> Int[np.ndarray, " d_model"]:
    """Return the indices that select all even channels, which are sines, before the cosines."""
    return np.r_[0:d_model:2, 1:d_model:2]


def _convert_config(
    path: Path, hf_config: Record, vocabulary: PairedVocabulary, positions: Positions
) -> Config:
    is_shared = hf_config[_SHARED]
    start_names = {hf_config["pad_token_id"]: "padding", hf_config["eos_token_id"]: "end"}
    changes = {
        "model.attention_bias": True,
        "model.output_bias": True,
        "model.norm_epsilon": _EPSILON,
        "model.position": "sinusoidal" if positions == "huggingface" else "sinusoidal_t2t",
        "model.share_embeddings": is_shared,
        "model.share_target_embedding": not is_shared and hf_config[_TIED],
        "model.source_vocab_size": None if is_shared else vocabulary.source_size,
        "model.start_token": start_names.get(hf_config["decoder_start_token_id"], "begin"),
        "data.vocab_size": len(vocabulary),
        "decoding.max_source_length": max(8, hf_config.get("max_position_embeddings", 1024)),
        **_languages(path / "tokenizer_config.json"),
    }
    return pretrained.config_from_hf(path, hf_config, _FIELDS, changes)


def _languages(file: Path) -> dict[str, Any]:
    """Return the config fields for the two languages in tokenizer_config.json, or {}."""
    if not file.exists():
        return {}
    settings = model_files.read_json(file, Record)
    names = {f"data.{side}_language": settings.get(f"{side}_lang") for side in ("source", "target")}
    is_pair = all(isinstance(name, str) and name for name in names.values())
    return names if is_pair and len({*names.values()}) == 2 else {}


_README = """\
# A Transformer of t2t_jax as a Marian model

    from transformers import AutoTokenizer, MarianMTModel

    tokenizer, model = AutoTokenizer.from_pretrained("."), MarianMTModel.from_pretrained(".")
    tokens = model.generate(**tokenizer(["Hello, world!"], return_tensors="pt", padding=True))
    print(tokenizer.batch_decode(tokens, skip_special_tokens=True)[0])

The example needs `pip install transformers torch sentencepiece`. With `num_beams=1` (greedy
search), the translations are the same as with `--beam-size 1` in t2t_jax. Beam search finds the
same translations if the run has `decoding.beam_rule=transformers`. With the default rule of
t2t_jax, beam search may differ in two ways. transformers divides the log-probability of a
hypothesis by length^alpha, and t2t_jax divides it by ((5 + length) / 6)^alpha (equation 14 of Wu et
al. 2016). In each step, transformers accepts an end-of-sentence token among the best `num_beams`
continuations, and t2t_jax among twice as many.

`ct2-transformers-converter --model . --output_dir OUT` converts the model for CTranslate2, if
sources and targets share one vocabulary. End each list of source subwords with `</s>`.
"""


def carried(config: Config) -> Carried:
    """Return the values that export to Marian allows for config fields, by the path of the field.

    `ANY` allows every value. Other fields must have their defaults.
    """
    head_fields = [f"{part}_heads" for part in PARTS]
    return {
        **fields_of_transformers(config.model),
        **any_value("model", *head_fields, "attention_bias", "output_bias", "source_vocab_size"),
        **SEARCH,
        "model.architecture": ("encoder_decoder",),
        "model.norm_order": ("post", "deep"),
        "model.position": ("sinusoidal",),  # transformers computes only these sinusoids
        "model.start_token": ("begin", "end", "padding"),
    }


def write(model: PortableModel, directory: Path) -> None:
    """Write a model to a directory as a Marian model of transformers."""
    config, size = model.config, len(model.vocabulary)
    # transformers has one padding id, which cannot be the last id of two vocabularies.
    first_id = 1 if len(_pieces(model.vocabulary)) == 1 else 0
    settings, arrays = model_config(config, size, first_id), dict(_export_arrays(model, first_id))
    pretrained.write_files(directory, "MarianMTModel", "marian", settings, arrays, _README)
    hf_ids = (np.arange(size) - first_id) % size
    generation.write_search(directory, config, generation.special_ids(config.model, hf_ids), hf_ids)
    _write_tokenizer(model, directory, first_id)


def model_config(config: Config, vocab_size: int, first_id: int = 0) -> dict[str, object]:
    """Return the fields of a `MarianConfig` for a model.

    Args:
      vocab_size: number of target entries.
      first_id: t2t_jax id of the entry with id 0 in transformers; earlier entries come last.
    """
    model = config.model
    assert isinstance(model, EncoderDecoderConfig)
    activation = pretrained.ACTIVATIONS[model.feed_forward]
    return {
        "vocab_size": model.source_vocab_size or vocab_size,
        "decoder_vocab_size": vocab_size,
        **pretrained.hf_encoder_decoder_fields(model, _FIELDS),
        "activation_function": "swish" if activation == "silu" else activation,  # as in OPUS-MT
        "max_position_embeddings": generation.num_positions(config),
        "share_encoder_decoder_embeddings": model.share_embeddings,
        "tie_word_embeddings": True,
        **generation.special_ids(model, (np.arange(vocab_size) - first_id) % vocab_size),
    }


def _write_tokenizer(model: PortableModel, directory: Path, first_id: int) -> None:
    """Write the files of a `MarianTokenizer` of transformers.

    Args:
      first_id: t2t_jax id of the entry with id 0 in transformers.
    """
    config, vocabulary, pieces = model.config, model.vocabulary, _pieces(model.vocabulary)
    sizes = vocabulary.source_size, len(vocabulary)
    file_names = "vocab.json", "target_vocab.json"
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
    for name, subwords, size in zip(file_names, pieces, sizes, strict=False):
        ids = {piece: (token - first_id) % size for token, piece in enumerate(subwords)}
        pretrained.write_json(directory / name, ids)
    files = vocabulary.files
    for name in _SPLITTERS:
        (directory / name).write_bytes(files.get(name) or files["vocabulary.model"])


def _pieces(vocabulary: Vocabulary) -> list[list[str]]:
    """Return the subwords in id order: one list, or two if sources and targets differ."""
    (sources,) = vocabulary.pieces([range(vocabulary.source_size)])
    (targets,) = vocabulary.target_pieces([range(len(vocabulary))])
    return [sources] if sources == targets else [sources, targets]


def _export_arrays(model: PortableModel, first_id: int) -> places.NamedArrays:
    """Yield the parameters of a `MarianMTModel` of transformers.

    Args:
      first_id: t2t_jax id of the entry with id 0 in transformers.
    """
    network = model.config.model
    assert isinstance(network, EncoderDecoderConfig)
    arrays = rewriting.with_all_heads(model.arrays, network)
    # Scaling the values between norms keeps the outputs with the epsilon of transformers. Only the
    # first norm of each stack differs, by at most 5e-6 (relative) where the variance is 1 or more.
    arrays = rewriting.as_post_norm(arrays, network, _EPSILON)
    # The CTranslate2 converter expects a start embedding of zeros, and padding as the last entry.
    # Biases in the first layers compensate for the shift of all embeddings.
    arrays = rewriting.with_all_biases(arrays, network)
    arrays = rewriting.with_start_of_zeros(arrays, network, start_id(network))
    # transformers computes sinusoids with all sines before all cosines.
    arrays = rewriting.permuted_channels(arrays, _sines_first(network.d_model))
    arrays = {"output_bias": np.zeros(len(model.vocabulary), np.float32), **arrays}
    by_id = {*network.embeddings.values(), "output_bias"}  # arrays with a row per entry
    arrays |= {name: np.roll(arrays[name], -first_id, axis=0) for name in by_id}
    if network.share_embeddings:
        yield "model.shared.weight", arrays["embedding"]
    else:
        yield "model.encoder.embed_tokens.weight", arrays["source_embedding"]
        yield "model.decoder.embed_tokens.weight", arrays["target_embedding"]
    yield "final_logits_bias", arrays["output_bias"][None]
    for pair in places.encoder_decoder_pairs(network, "model."):
        yield pair.hf_name, pair.export_array(arrays)
