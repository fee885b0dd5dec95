"""Export and import of BERT models of Hugging Face's transformers (`BertForMaskedLM`).

Models of transformers may read two sentences at once, with a vector for each; those of this package
read one sentence, whose vector is added to those of the positions.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from t2t_jax.config import Config, ModelConfig
from t2t_jax.data.vocabularies.pretrained import PretrainedVocabulary
from t2t_jax.errors import UserError
from t2t_jax.interchange import pretrained
from t2t_jax.interchange.carried import Carried, tied_output
from t2t_jax.interchange.model_files import SIZE
from t2t_jax.interchange.places import Place, encoder_places, norm_places
from t2t_jax.interchange.portable import PortableModel
from t2t_jax.interchange.tensors import Tensors
from t2t_jax.system.records import Schema

VOCABULARIES = (PretrainedVocabulary,)

_FIELDS = {
    **pretrained.encoder_fields(dropout_rate=0.1),
    "max_position_embeddings": pretrained.Counterpart("max_positions", SIZE),
}
_FIXED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "tie_word_embeddings": True,
}
_SPECIAL = "[PAD]", "[SEP]", "[CLS]", "[UNK]"
_TYPES = "bert.embeddings.token_type_embeddings.weight"
_WORDS = "bert.embeddings.word_embeddings.weight"
_POSITIONS = "bert.embeddings.position_embeddings.weight"
_WITHOUT = r"(bert\.)?(embeddings\.(position|token_type)_ids|pooler\..*)|cls\.seq_relationship\..*"
"""Names of buffers, and of parameters that predict whether a sentence follows another."""
_README = """\
# An encoder of t2t_jax as a BERT

    from transformers import AutoTokenizer, BertForMaskedLM

    tokenizer, model = AutoTokenizer.from_pretrained("."), BertForMaskedLM.from_pretrained(".")
    ids = tokenizer("[CLS] The file [MASK] not be opened. [SEP]", return_tensors="pt")
    print(tokenizer.decode(model(**ids).logits[0].argmax(-1)))

It needs `pip install transformers torch`.
"""


def _places(model: ModelConfig) -> Iterator[Place]:
    """Yield the places of all parameters but those of entries, sentence types and positions."""
    yield from norm_places("source_embedding_norm", "bert.embeddings.LayerNorm")
    norms, layers = ("attention.output.LayerNorm", "output.LayerNorm"), model.stacks[0].num_layers
    yield from encoder_places(layers, "bert.encoder.layer", "attention.self", norms)
    transform = "cls.predictions.transform"
    yield Place("output_transform.linear.kernel", f"{transform}.dense.weight", transposed=True)
    yield Place("output_transform.linear.bias", f"{transform}.dense.bias")
    yield from norm_places("output_transform.norm", f"{transform}.LayerNorm")


def read(path: Path) -> PortableModel:
    """Read a BERT model from what `save_pretrained` wrote, with tokenizer.json beside it.

    Raises:
      UserError: a file is missing or damaged, or is of another kind of model.
    """
    others = Schema({"vocab_size": SIZE})
    theirs = pretrained.read_pretrained_config(path, "bert", _FIELDS, others, _FIXED)
    special, unknown = partial(_special_ids, path), _SPECIAL.index("[UNK]")
    vocabulary = pretrained.read_pretrained_vocabulary(path, theirs, special, unknown)
    changes = {
        **pretrained.OF_ENCODERS,
        "model.architecture": "encoder_only",
        "model.output_transform": True,
        "model.embedding_norm": True,
        "model.scale_embeddings": False,
        "data.task": "masked_language_modelling",
        "data.vocab_size": len(vocabulary),
        "data.max_length": theirs["max_position_embeddings"],
        "training.label_smoothing": 0.0,
    }
    config = pretrained.our_config(path, theirs, _FIELDS, changes)
    arrays = dict(_our_arrays(pretrained.read_tensors(path), config.model, vocabulary))
    return PortableModel(config, vocabulary, arrays, ())


def _special_ids(path: Path, ids: Mapping[str, int]) -> list[int]:
    for name in (*_SPECIAL, "[MASK]"):
        if name not in ids:
            raise UserError(f"{path / 'tokenizer.json'} has no {name}, which every BERT has")
    return [ids[name] for name in _SPECIAL]


def _our_arrays(
    tensors: Tensors, model: ModelConfig, vocabulary: PretrainedVocabulary
) -> Iterator[tuple[str, Float32[np.ndarray, "..."]]]:
    order, width = np.array(vocabulary.order), model.d_model
    yield "embedding", tensors.rows(_WORDS, order, width)
    yield "output_bias", tensors.rows("cls.predictions.bias", order)
    positions = tensors.take(_POSITIONS, model.num_positions, width)
    yield "source_position", positions + tensors.take(_TYPES, None, width)[0]
    for place in _places(model):
        yield place.ours, place.array(tensors)
    tensors.take_copy("cls.predictions.decoder.weight", tensors.take(_WORDS))
    tensors.take_copy("cls.predictions.decoder.bias", tensors.take("cls.predictions.bias"))
    tensors.finish(_WITHOUT)


def carried(config: Config) -> Carried:
    """Return the fields of a config that the format can hold, each with its possible values."""
    return {
        **pretrained.carried_by_all(config.model),
        **tied_output(config.model),
        "model.architecture": ("encoder_only",),
        "model.norm_order": ("post",),
        "model.scale_embeddings": (False,),
        "model.embedding_norm": (True,),
        "model.output_transform": (True,),
        "model.output_bias": (True,),
        "data.task": ("masked_language_modelling",),
    }


def write(model: PortableModel, directory: Path) -> None:
    """Write a model as a BERT model of transformers."""
    network, vocabulary = model.config.model, model.vocabulary
    assert isinstance(vocabulary, PretrainedVocabulary)
    back = np.argsort(np.array(vocabulary.order))
    arrays = {place.theirs: place.theirs_of(model.arrays) for place in _places(network)}
    arrays[_WORDS] = model.arrays["embedding"][back]
    arrays["cls.predictions.bias"] = model.arrays["output_bias"][back]
    arrays[_POSITIONS] = model.arrays["source_position"]
    arrays[_TYPES] = np.zeros((2, network.d_model), np.float32)
    config = {
        "vocab_size": len(back),
        **pretrained.their_fields(network, _FIELDS),
        "pad_token_id": vocabulary.order[0],
    }
    pretrained.write_files(directory, "BertForMaskedLM", "bert", config, arrays, _README)
    (directory / "tokenizer.json").write_bytes(vocabulary.files["tokenizer.json"])
