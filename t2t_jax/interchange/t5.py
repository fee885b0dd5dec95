"""Export and import of T5 models of transformers (`T5ForConditionalGeneration`), flan-T5 included.

T5 1.0 has one matrix for embeddings and output. It does not scale the embeddings, and multiplies
the last layer's output by d_model^-0.5: with the matrix times d_model^-0.5, this is the network of
section 3.4, which multiplies embeddings by sqrt(d_model). T5 1.1 and flan-T5 have an output matrix
of their own, scale nothing, and have a gate in the feed-forward network. In all of them scores are
not divided by sqrt(d_k), and no layer has a bias: where ours has one it is 0, and stays frozen.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
from jaxtyping import Float32, Int

from t2t_jax.batch import EOS_ID, PAD_ID
from t2t_jax.config import Config, EncoderDecoderConfig
from t2t_jax.data.vocabularies.framed import FramedVocabulary, framed_vocabulary
from t2t_jax.errors import UserError
from t2t_jax.interchange import marian, pretrained
from t2t_jax.interchange.carried import (
    ANY,
    Carried,
    any_value,
    common_search,
    sizes_of_transformers,
)
from t2t_jax.interchange.generation import with_their_search, write_search
from t2t_jax.interchange.model_files import DEPTH, ID, RATE, SIZE
from t2t_jax.interchange.numbering import new_order, rows_in
from t2t_jax.interchange.places import Place
from t2t_jax.interchange.portable import PortableModel
from t2t_jax.interchange.pretrained import Counterpart
from t2t_jax.interchange.seq2seq.entries import SETTINGS, TOKENIZER, read_entries
from t2t_jax.interchange.tensors import Tensors
from t2t_jax.modules.models import start_id
from t2t_jax.modules.names import Arrays
from t2t_jax.system.records import Record, Schema

VOCABULARIES = FramedVocabulary, *marian.VOCABULARIES

_FIELDS = {
    "d_model": Counterpart("d_model", SIZE),
    "d_kv": Counterpart("d_k", SIZE),
    "d_ff": Counterpart("d_ff", SIZE),
    "num_layers": Counterpart("num_encoder_layers", DEPTH),
    "num_heads": Counterpart("num_heads", DEPTH),
    "dropout_rate": Counterpart("dropout_rate", RATE, 0.1),
    "layer_norm_epsilon": Counterpart("norm_epsilon", RATE, 1e-6),
}
_START, _TIED, _SCALED = "decoder_start_token_id", "tie_word_embeddings", "scale_decoder_outputs"
_OTHERS = Schema(
    {"vocab_size": SIZE, "pad_token_id": ID, "eos_token_id": ID},
    {
        _START: (ID, NoneType),
        "num_decoder_layers": (DEPTH, NoneType),
        "feed_forward_proj": str,
        _TIED: bool,
        _SCALED: bool,
        "relative_attention_num_buckets": int,
        "relative_attention_max_distance": int,
    },
)
_FIXED = {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128}
_GATED = {"geglu_tanh": "gated-gelu", "reglu": "gated-relu", "swiglu": "gated-silu"}
_FEED_FORWARDS = pretrained.ACTIVATIONS | _GATED
"""The value of `feed_forward_proj` for each of ours. T5's gated-gelu is the one by tanh."""
_BIASES = "*/bias_1", "*/bias_2"
"""The parameters that T5 does not have, as `training.freeze` names them."""
_SHARED, _OUTPUT = "shared.weight", "lm_head.weight"
_COPIES = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
_WITHOUT = r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"
"""The name of a parameter that early releases kept, and that no score has ever depended on."""
_BLOCKS = {
    "encoder": {"self_attention": "SelfAttention", "feed_forward": "DenseReluDense"},
    "decoder": {
        "self_attention": "SelfAttention",
        "cross_attention": "EncDecAttention",
        "feed_forward": "DenseReluDense",
    },
}
_README = """\
# A Transformer of t2t_jax as a T5

    from transformers import AutoTokenizer, T5ForConditionalGeneration

    tokenizer = AutoTokenizer.from_pretrained(".")
    model = T5ForConditionalGeneration.from_pretrained(".")
    found = model.generate(**tokenizer(["Hello, world!"], return_tensors="pt", padding=True))
    print(tokenizer.batch_decode(found, skip_special_tokens=True)[0])

It needs `pip install transformers torch sentencepiece`.
"""


def _places(model: EncoderDecoderConfig) -> Iterator[Place]:
    """Yield the places of all parameters but embeddings, output and biases."""
    names = {letter: letter[-1].lower() for letter in ("W_Q", "W_K", "W_V", "W_O")}
    inner = {"W_gate": "wi_0", "W_1": "wi_1"} if model.is_gated else {"W_1": "wi"}
    for (stack, sublayers), facts in zip(_BLOCKS.items(), model.stacks, strict=True):
        first = f"{stack}.block.0.layer.0.SelfAttention"
        side = "source" if facts.reads_source else "target"
        yield Place(f"{side}_position", f"{first}.relative_attention_bias.weight")
        yield Place(f"{stack}.norm.scale", f"{stack}.final_layer_norm.weight")
        for number in range(facts.num_layers):
            for place, (ours, theirs) in enumerate(sublayers.items()):
                own = f"{stack}.layers.{number}.{ours}"
                block = f"{stack}.block.{number}.layer.{place}"
                yield Place(f"{own}.norm.scale", f"{block}.layer_norm.weight")
                matrices = {**inner, "W_2": "wo"} if ours == "feed_forward" else names
                for matrix, name in matrices.items():
                    yield Place(f"{own}.{matrix}", f"{block}.{theirs}.{name}.weight", True)


def _zero_biases(model: EncoderDecoderConfig) -> dict[str, Float32[np.ndarray, " width"]]:
    """Return zeros for the biases of the feed-forward networks, if these have biases here."""
    sizes = {} if model.is_gated else {"b_1": model.d_ff, "b_2": model.d_model}
    return {
        f"{stack}.layers.{number}.feed_forward.{name}": np.zeros(size, np.float32)
        for stack, facts in zip(_BLOCKS, model.stacks, strict=True)
        for number in range(facts.num_layers)
        for name, size in sizes.items()
    }


def read(path: Path) -> PortableModel:
    """Read a T5 model from what `save_pretrained` wrote, with tokenizer.json beside it.

    Raises:
      UserError: a file is missing or damaged, or is of another kind of model.
    """
    theirs = pretrained.read_pretrained_config(path, "t5", _FIELDS, _OTHERS, _FIXED)
    vocabulary, order = _vocabulary(path, theirs)
    tensors = pretrained.read_tensors(path)
    factor = theirs["d_model"] ** -0.5 if theirs.get(_SCALED, theirs.get(_TIED, True)) else 1.0
    matrices = _matrices(tensors, theirs, order, factor)
    config = _config(path, theirs, vocabulary, is_tied=len(matrices) == 1, is_scaled=factor != 1)
    arrays = {place.ours: place.array(tensors) for place in _places(_network(config))}
    arrays |= {**matrices, **_zero_biases(_network(config))}
    tensors.finish(_WITHOUT)
    config, _ = with_their_search(config, path, theirs, order.tolist(), (_START,))
    return PortableModel(config, vocabulary, arrays, ())


def _network(config: Config) -> EncoderDecoderConfig:
    assert isinstance(config.model, EncoderDecoderConfig)
    return config.model


def _vocabulary(path: Path, theirs: Record) -> tuple[FramedVocabulary, Int[np.ndarray, " entries"]]:
    """Return the vocabulary, and the model's id of each of its entries."""
    pretrained.check_tokenizer(path)
    entries = read_entries(path, theirs["vocab_size"])
    first = [theirs["pad_token_id"], theirs["eos_token_id"]]
    start = _start_of(theirs)
    first += [] if start in first else [start]
    text, order = entries.vocabulary(first)
    silent = [place for place, number in enumerate(order.tolist()) if number in entries.added]
    framed = framed_vocabulary(text, source=((), (EOS_ID,)), target=(), silent=silent, first=first)
    return framed, order


def _start_of(theirs: Record) -> int:
    """Return their id of what a target begins with, which is padding unless the file says else."""
    given = theirs.get(_START)
    return int(theirs["pad_token_id"] if given is None else given)


def _matrices(
    tensors: Tensors, theirs: Record, order: Int[np.ndarray, " entries"], factor: float
) -> dict[str, Float32[np.ndarray, "entries d_model"]]:
    """Return the embedding, and the output projection if the file has another matrix for it.

    Args:
      factor: the number that their logits are multiplied by.
    """
    shape = theirs["vocab_size"], theirs["d_model"]
    shared = tensors.take(_SHARED, *shape)
    for name in _COPIES:
        tensors.take_copy(name, shared)
    output = tensors.take(_OUTPUT, *shape) if _OUTPUT in tensors else shared
    scaled = rows_in(output * np.float32(factor), order)
    if np.array_equal(output, shared):
        return {"embedding": scaled}
    return {"embedding": rows_in(shared, order), "output_projection": scaled}


def _config(
    path: Path, theirs: Record, vocabulary: FramedVocabulary, *, is_tied: bool, is_scaled: bool
) -> Config:
    """Return our config, but for the search."""
    ours = {name: kind for kind, name in _FEED_FORWARDS.items()}
    kind = theirs.get("feed_forward_proj", "relu")
    if kind not in ours:
        raise UserError(
            f"{path / 'config.json'} has feed_forward_proj={kind!r:.60}; a model of t2t_jax can "
            f"have {', '.join(ours)}"
        )
    starts = {theirs["pad_token_id"]: "padding", theirs["eos_token_id"]: "end"}
    dropout = float(theirs.get("dropout_rate", 0.1))
    changes: Mapping[str, Any] = {
        "model.d_v": theirs["d_kv"],
        "model.num_decoder_layers": theirs.get("num_decoder_layers") or theirs["num_layers"],
        "model.attention_dropout_rate": dropout,
        "model.activation_dropout_rate": dropout,
        "model.feed_forward": ours[kind],
        "model.norm": "rms",
        "model.norm_order": "pre",
        "model.position": "relative_bias",
        "model.score_function": "dot_product",
        "model.share_embeddings": is_tied,
        "model.share_source_embedding": not is_tied,
        "model.scale_embeddings": is_tied and is_scaled,
        "model.start_token": starts.get(_start_of(theirs), "begin"),
        "data.vocab_size": len(vocabulary),
        "training.freeze": () if ours[kind] in _GATED else _BIASES,
    }
    return pretrained.our_config(path, theirs, _FIELDS, changes)


def carried(config: Config) -> Carried:
    """Return the fields of a config that the format can hold, each with its possible values."""
    model = config.model
    one_width, is_tied = model.key_size == model.value_size, len({*model.embeddings.values()}) == 1
    return {
        **sizes_of_transformers(model),
        **common_search(),
        **any_value("model", "d_k", "share_embeddings", "share_target_embedding"),
        "model.d_v": (model.d_v if one_width else model.key_size,),
        "model.architecture": ("encoder_decoder",),
        "model.feed_forward": tuple(_FEED_FORWARDS),
        "model.norm": ("rms",),
        "model.norm_order": ("pre",),
        "model.position": ("relative_bias",),
        "model.score_function": ("scaled_dot_product", "dot_product"),
        "model.share_source_embedding": ANY if is_tied else (True,),
        "model.scale_embeddings": ANY,
        "model.start_token": ("begin", "end", "padding"),
    }


def write(model: PortableModel, directory: Path) -> None:
    """Write a model as a T5 model of transformers.

    Raises:
      UserError: the feed-forward networks have biases that are not 0.
    """
    config, network, vocabulary = model.config, _network(model.config), model.vocabulary
    if any(model.arrays[name].any() for name in _zero_biases(network)):
        raise UserError(
            "t5 cannot have this model, whose feed-forward networks have biases that are not 0; "
            "export it --to safetensors, or train one with --training.freeze "
            f"{' '.join(map(repr, _BIASES))}, which keeps them 0, or with a gate"
        )
    first = [PAD_ID, EOS_ID]
    if isinstance(vocabulary, FramedVocabulary):
        first = vocabulary.first
    _, order = new_order([""] * len(vocabulary), first)
    ids = {"pad_token_id": PAD_ID, "eos_token_id": EOS_ID, _START: start_id(network)}
    special = {name: int(order[number]) for name, number in ids.items()}
    settings = {
        "is_encoder_decoder": True,
        "vocab_size": len(vocabulary),
        **pretrained.their_fields(network, _FIELDS),
        "d_kv": network.key_size,
        "num_decoder_layers": network.num_decoder_layers,
        "feed_forward_proj": _FEED_FORWARDS[network.feed_forward],
        _TIED: network.share_embeddings and network.scale_embeddings,  # also: outputs are scaled
        **_FIXED,
        **special,
    }
    arrays = dict(_their_arrays(model.arrays, network, np.argsort(order)))
    kind = "T5ForConditionalGeneration", "t5"
    pretrained.write_files(directory, *kind, settings, arrays, _README)
    write_search(directory, config, special, order)
    if isinstance(vocabulary, FramedVocabulary):
        (directory / TOKENIZER).write_bytes(vocabulary.files[TOKENIZER])
        pretrained.write_json(directory / SETTINGS, {"tokenizer_class": "T5Tokenizer"})
    else:
        marian.write_tokenizer(model, directory, 0)


def _their_arrays(
    arrays: Arrays, model: EncoderDecoderConfig, back: Int[np.ndarray, " entries"]
) -> Iterator[tuple[str, Float32[np.ndarray, "..."]]]:
    """Yield the parameters under the names, and in the layout, of transformers.

    Args:
      back: our id of each of their entries.
    """
    yield _SHARED, arrays["embedding"][back] * np.float32(model.embedding_scale)
    if not (model.share_embeddings and model.scale_embeddings):
        yield _OUTPUT, arrays[model.embeddings["output"]][back]
    factor = np.float32(model.attention.query_factor / model.key_size**0.5)
    for place in _places(model):
        array = place.theirs_of(arrays)
        yield place.theirs, array * factor if place.ours.endswith("W_Q") else array
