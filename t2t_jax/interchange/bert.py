"""BERT models of the library transformers of Hugging Face (`BertForMaskedLM`): out and in.

Theirs may read two sentences at once, with a vector for each; ours read one, and its vector is
added to those of the positions.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from t2t_jax.config import Config, ModelConfig
from t2t_jax.data.vocabularies.pretrained import PretrainedVocabulary, pretrained_vocabulary
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.errors import UserError
from t2t_jax.interchange.numbering import new_order
from t2t_jax.interchange.portable import PortableModel
from t2t_jax.interchange.pretrained import (
    ACTIVATIONS,
    Place,
    Tensors,
    activation,
    config_of,
    encoder_places,
    entry_ids,
    read_json,
    read_tensors,
    refused,
    tokenizer_definition,
    unlike_pretrained,
    written,
)
from t2t_jax.interchange.rewriting import refuse
from t2t_jax.system.records import Record, Schema

DTYPES = ("float32",)

_SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "vocab_size",
)
_CONFIG = Schema({"model_type": str, **dict.fromkeys(_SIZES, int)}, {"hidden_act": str})
_FIXED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "tie_word_embeddings": True,
}
_SPECIAL = "[PAD]", "[SEP]", "[CLS]", "[UNK]"
_TYPES = "bert.embeddings.token_type_embeddings.weight"
_WORDS = "bert.embeddings.word_embeddings.weight"
_POSITIONS = "bert.embeddings.position_embeddings.weight"
_README = """\
# An encoder of t2t_jax as a BERT

    from transformers import AutoTokenizer, BertForMaskedLM

    tokenizer, model = AutoTokenizer.from_pretrained("."), BertForMaskedLM.from_pretrained(".")
    ids = tokenizer("[CLS] The file [MASK] not be opened. [SEP]", return_tensors="pt")
    print(tokenizer.decode(model(**ids).logits[0].argmax(-1)))

It needs `pip install transformers torch`.
"""


def _places(model: ModelConfig) -> Iterator[Place]:
    """Where the parameters are, but for those with a row for each entry, and the positions."""
    embeddings = "bert.embeddings.LayerNorm"
    yield Place("source_embedding_norm.scale", f"{embeddings}.weight")
    yield Place("source_embedding_norm.bias", f"{embeddings}.bias")
    norms = "attention.output.LayerNorm", "output.LayerNorm"
    yield from encoder_places(model, "bert.encoder.layer", "attention.self", norms)
    transform = "cls.predictions.transform"
    yield Place("output_transform.linear.kernel", f"{transform}.dense.weight", transposed=True)
    yield Place("output_transform.linear.bias", f"{transform}.dense.bias")
    yield Place("output_transform.norm.scale", f"{transform}.LayerNorm.weight")
    yield Place("output_transform.norm.bias", f"{transform}.LayerNorm.bias")


def read(path: Path) -> PortableModel:
    """Read a BERT model.

    Args:
      path: the directory that `save_pretrained` has written, with tokenizer.json in it.

    Raises:
      UserError: a file is missing or damaged, or is of another kind of model.
    """
    theirs = read_json(path / "config.json", Schema({"model_type": str}))
    refused(path, theirs, {"model_type": "bert"})
    theirs = read_json(path / "config.json", _CONFIG)
    refused(path, theirs, _FIXED)
    vocabulary = _read_vocabulary(path, theirs)
    config = _our_config(path, theirs, vocabulary)
    arrays = dict(_our_arrays(read_tensors(path), config.model, vocabulary))
    return PortableModel(config, vocabulary, arrays, ())


def _read_vocabulary(path: Path, theirs: Record) -> PretrainedVocabulary:
    file, definition = path / "tokenizer.json", tokenizer_definition(path)
    ids = entry_ids(definition, file)
    missing = [name for name in (*_SPECIAL, "[MASK]") if name not in ids]
    if missing or sorted(ids.values()) != list(range(theirs["vocab_size"])):
        raise UserError(
            f"{file} has no {missing[0]}, which every BERT has"
            if missing
            else f"{file} does not give each of {theirs['vocab_size']:,} entries an id of its own, "
            "as config.json has it"
        )
    pieces = sorted(ids, key=lambda piece: ids[piece])
    _, order = new_order(pieces, [ids[name] for name in _SPECIAL])
    try:
        return pretrained_vocabulary(definition, order.tolist(), _SPECIAL.index("[UNK]"))
    except ValueError as error:
        raise UserError(f"{file} is {error}") from error


def _our_config(path: Path, theirs: Record, vocabulary: Vocabulary) -> Config:
    return config_of(
        path,
        {
            "model.architecture": "encoder_only",
            "model.d_model": theirs["hidden_size"],
            "model.num_heads": theirs["num_attention_heads"],
            "model.d_ff": theirs["intermediate_size"],
            "model.num_encoder_layers": theirs["num_hidden_layers"],
            "model.max_positions": theirs["max_position_embeddings"],
            "model.feed_forward": activation(path, theirs, "hidden_act", "gelu"),
            "model.attention_bias": True,
            "model.output_bias": True,
            "model.output_transform": True,
            "model.embedding_norm": True,
            "model.norm_epsilon": float(theirs.get("layer_norm_eps", 1e-12)),
            "model.position": "learned",
            "model.scale_embeddings": False,
            "model.dropout_rate": float(theirs.get("hidden_dropout_prob", 0.1)),
            "model.attention_dropout_rate": float(theirs.get("attention_probs_dropout_prob", 0.1)),
            "data.task": "masked_language_modelling",
            "data.vocab_size": len(vocabulary),
            "data.max_length": theirs["max_position_embeddings"],
            "training.label_smoothing": 0.0,
        },
    )


def _our_arrays(
    tensors: Tensors, model: ModelConfig, vocabulary: PretrainedVocabulary
) -> Iterator[tuple[str, Float32[np.ndarray, "..."]]]:
    order = np.array(vocabulary.order)
    yield "embedding", tensors.rows(_WORDS, order)
    yield "output_bias", tensors.rows("cls.predictions.bias", order)
    yield "source_position", tensors[_POSITIONS] + tensors[_TYPES][0]
    for place in _places(model):
        yield place.ours, place.array(tensors)


def write(model: PortableModel, directory: Path, dtype: str) -> None:
    """Write a model.

    Args:
      model: the model.
      directory: an empty directory.
      dtype: one of `DTYPES`.

    Raises:
      UserError: a BERT of transformers cannot be such a model.
    """
    del dtype  # there is one
    network, vocabulary = model.config.model, model.vocabulary
    _check(network, vocabulary)
    assert isinstance(vocabulary, PretrainedVocabulary)
    back = np.argsort(np.array(vocabulary.order))
    arrays = {place.theirs: place.theirs_of(model.arrays) for place in _places(network)}
    arrays[_WORDS] = model.arrays["embedding"][back]
    arrays["cls.predictions.bias"] = model.arrays["output_bias"][back]
    arrays[_POSITIONS] = model.arrays["source_position"]
    arrays[_TYPES] = np.zeros((2, network.d_model), np.float32)
    config = {
        "architectures": ["BertForMaskedLM"],
        "model_type": "bert",
        "dtype": "float32",
        "vocab_size": len(back),
        "hidden_size": network.d_model,
        "num_hidden_layers": network.num_encoder_layers,
        "num_attention_heads": network.num_heads,
        "intermediate_size": network.d_ff,
        "max_position_embeddings": network.max_positions,
        "hidden_act": ACTIVATIONS[network.feed_forward],
        "layer_norm_eps": network.norm_epsilon,
        "hidden_dropout_prob": network.dropout_rate,
        "attention_probs_dropout_prob": network.attention_dropout_rate,
        "pad_token_id": vocabulary.order[0],
    }
    written(directory, config, arrays, _README)
    (directory / "tokenizer.json").write_bytes(vocabulary.files["tokenizer.json"])


def _check(model: ModelConfig, vocabulary: Vocabulary) -> None:
    refuse(
        "A BERT of transformers",
        {
            "a vocabulary that no BERT has": not isinstance(vocabulary, PretrainedVocabulary),
            f"norm_order={model.norm_order!r}": model.norm_order != "post",
            "an output projection of its own": "output_projection" in model.embeddings.values(),
            "no norm of the embeddings": not model.embedding_norm,
            "no transform ahead of the output": not model.output_transform,
            "no bias of the output": not model.output_bias,
            **unlike_pretrained(model, "encoder_only", ACTIVATIONS),
        },
    )
