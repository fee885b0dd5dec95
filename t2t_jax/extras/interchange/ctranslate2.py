"""The format of CTranslate2, a fast engine for decoding on CPUs and GPUs: a directory.

    OUT/model.bin               the parameters, as `ctranslate2.specs` lays them out
    OUT/config.json             special tokens, and the epsilon of the norms
    OUT/shared_vocabulary.json  the subword of each id
    OUT/vocabulary.model        the SentencePiece model that splits text into them (or source.spm
                                and target.spm)
    OUT/README.md               the lines of Python that translate

ALiBi and the learned bias of T5 are both written as the bias of T5, which CTranslate2 has in
encoders too: with a bucket for each distance, that bias can be any function of the distance.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from flax.traverse_util import unflatten_dict

from t2t_jax.batch import EOS_ID
from t2t_jax.config import Config, ModelConfig, registry, tables
from t2t_jax.config.model import Stack
from t2t_jax.data.vocabularies.shared import SharedVocabulary
from t2t_jax.errors import needs_extra
from t2t_jax.extras.interchange import rewriting
from t2t_jax.extras.interchange.carried import SEARCH, Carried, any_value
from t2t_jax.extras.interchange.portable import PortableModel
from t2t_jax.extras.interchange.vocabularies.paired import PairedVocabulary
from t2t_jax.functional.position import alibi_slopes
from t2t_jax.modules.models import start_id
from t2t_jax.modules.names import Arrays

_Tree: TypeAlias = Mapping[str, Any]
"""Parameters in nested dictionaries, by the parts of their names in `modules.names`."""

VOCABULARIES = SharedVocabulary, PairedVocabulary

_ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_tanh": "GELUTanh",
    "silu": "SWISH",
    "glu": "Sigmoid",
    "reglu": "RELU",
    "geglu": "GELU",
    "geglu_tanh": "GELUTanh",
    "swiglu": "SWISH",
}
_POSITIONS = 2048  # CTranslate2's usual limits: 1024 subwords of a source, 256 of a target
_T5_DISTANCE = 128  # the default of `relative_position_buckets`
_README = """\
# A Transformer of t2t_jax for CTranslate2

    import ctranslate2, sentencepiece

    split, join = (sentencepiece.SentencePieceProcessor(model_file=name) for name in {splitters})
    translator = ctranslate2.Translator(".")
    sources = [split.encode(line, out_type=str) for line in ["Hello, world!"]]
    found = translator.translate_batch(sources, {settings})
    print(*(join.decode(one.hypotheses[0]) for one in found), sep="\\n")

It needs `pip install ctranslate2 sentencepiece`. With `beam_size=1`, greedy search, it translates
as t2t_jax does with `--beam-size 1`. With a beam, the two may choose different translations.
CTranslate2 divides the log-probability of a translation by length^alpha, and t2t_jax by
((5 + length) / 6)^alpha (equation 14 of Wu et al. 2016). In each step CTranslate2 takes an end of
sentence only from among as many continuations as the beam has hypotheses, and t2t_jax from among
twice as many. In both, `decoding.beam_rule=transformers` does what CTranslate2 does. With a length
penalty, CTranslate2 ends a search as soon as `beam_size` hypotheses have ended. Where subwords are
forbidden, it normalises the probabilities of the others. CTranslate2 cuts sources at
`max_input_length=1024` subwords and translations at `max_decoding_length=256`, and t2t_jax writes
up to {extra} subwords more than the source has.
"""


def carried(config: Config) -> Carried:
    """Return the fields of a config that the format can hold; see `interchange.carried`."""
    model = config.model
    one_width = model.key_size == model.value_size
    return {
        **any_value(
            "model",
            *("d_model", "num_heads", "d_k", "num_kv_heads", "d_ff", "norm_epsilon"),
            *("encoder_heads", "decoder_heads", "cross_heads"),
            *("num_encoder_layers", "num_decoder_layers", "attention_bias", "output_bias"),
            *("share_embeddings", "share_target_embedding", "share_source_embedding"),
            *("source_vocab_size", "scale_embeddings", "embedding_norm", "first_position"),
            *("max_positions", "rotary_base", "rotary_scale"),
        ),
        **SEARCH,
        "model.architecture": ("encoder_decoder",),
        "model.d_v": (model.d_v if one_width else model.key_size,),
        "model.score_function": ("scaled_dot_product", "dot_product"),
        "model.feed_forward": tuple(_ACTIVATIONS),
        "model.norm": ("layer", "rms"),
        "model.norm_order": ("post", "pre", "deep"),
        "model.position": (
            *("sinusoidal", "sinusoidal_t2t", "learned", "none"),
            *("rotary", "alibi", "relative_bias"),
        ),
        "model.rotary_scaling": ("linear", "ntk"),
        "model.start_token": ("begin", "end", "padding"),
    }


def write(model: PortableModel, directory: Path, dtype: str) -> None:
    """Write a model in the format of CTranslate2."""
    spec = _specification(model)
    spec.validate()
    spec.optimize(quantization=dtype)
    spec.save(str(directory))
    for name, content in model.vocabulary.files.items():
        (directory / name).write_bytes(content)
    readme = _README.format(
        splitters=(min(model.vocabulary.files), max(model.vocabulary.files)),
        settings=", ".join(f"{name}={value!r}" for name, value in _search(model).items()),
        extra=model.config.decoding.max_extra_length,
    )
    (directory / "README.md").write_text(readme, encoding="utf-8")


def _search(model: PortableModel) -> dict[str, object]:
    """Return the arguments of `translate_batch`."""
    decoding = model.config.decoding
    (forbidden,) = model.vocabulary.target_pieces([decoding.forbidden_ids])
    draws = decoding.temperature > 0
    given: dict[str, object] = {
        "beam_size": 1 if draws else decoding.beam_size,
        "length_penalty": decoding.length_penalty,
        "min_decoding_length": decoding.min_length,
    }
    if decoding.no_repeat_ngram_size:
        given["no_repeat_ngram_size"] = decoding.no_repeat_ngram_size
    if forbidden:
        given["suppress_sequences"] = [[piece] for piece in forbidden]
    if draws:
        given |= {"sampling_temperature": decoding.temperature, "sampling_topk": decoding.top_k}
        given["sampling_topp"] = decoding.top_p
    return given


def _specification(model: PortableModel) -> Any:
    with needs_extra("ctranslate2", "the format ctranslate2"):
        from ctranslate2.specs import TransformerSpec
    network = model.config.model
    arrays = rewriting.with_all_heads(model.arrays, network)
    arrays = rewriting.as_post_norm(arrays, network, network.norm_epsilon)
    spec = TransformerSpec(*(_stack_specification(network, stack) for stack in network.stacks))
    vocabulary = model.vocabulary
    (source_pieces,) = vocabulary.pieces([range(vocabulary.source_size)])
    (pieces,) = vocabulary.target_pieces([range(len(vocabulary))])
    spec.config.unk_token = pieces[vocabulary.unk_id]
    spec.config.bos_token = spec.config.decoder_start_token = pieces[start_id(network)]
    spec.config.eos_token = pieces[EOS_ID]
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = network.norm_epsilon
    spec.register_source_vocabulary(source_pieces)
    spec.register_target_vocabulary(pieces)
    names = network.embeddings
    spec.encoder.embeddings[0].weight = arrays[names["source"]]
    spec.decoder.embeddings.weight = arrays[names["target"]]
    spec.decoder.projection.weight = arrays[names["output"]]
    if network.output_bias:
        spec.decoder.projection.bias = arrays["output_bias"]
    tree = unflatten_dict(arrays, sep=".")
    _fill_stack(spec.encoder, tree, "encoder", "source", network)
    _fill_stack(spec.decoder, tree, "decoder", "target", network)
    return spec


def _stack_specification(model: ModelConfig, stack: Stack) -> Any:
    from ctranslate2.specs import attention_spec, common_spec, transformer_spec

    kind = transformer_spec.TransformerEncoderSpec
    if stack.attends_to_source:
        kind = transformer_spec.TransformerDecoderSpec
    options: dict[str, Any] = {}
    if model.position == "rotary":
        base = model.rotary_base
        if model.rotary_scaling == "ntk":  # see `functional.position.rotary_frequencies`
            base *= model.rotary_scale ** (model.key_size / max(model.key_size - 2, 1))
        options = {"rotary_dim": 0, "rotary_base": base}
        if model.rotary_scaling == "linear" and model.rotary_scale != 1:
            options["rotary_scaling_type"] = attention_spec.RotaryScalingType.Linear
            options["rotary_scaling_factor"] = model.rotary_scale
    groups = model.attention.groups
    spec = kind(
        stack.num_layers,
        model.num_heads,
        pre_norm=model.norm_order == "pre",
        activation=getattr(common_spec.Activation, _ACTIVATIONS[model.feed_forward]),
        layernorm_embedding=model.embedding_norm,
        relative_attention_bias=model.position in ("alibi", "relative_bias"),
        ffn_glu=model.is_gated,
        rms_norm=model.norm == "rms",
        num_heads_kv=groups if groups != model.num_heads else None,
        head_dim=model.key_size if model.key_size * model.num_heads != model.d_model else None,
        **options,
    )
    spec.scale_embeddings = model.embedding_scale != 1
    return spec


def _fill_stack(spec: Any, tree: _Tree, name: str, side: str, model: ModelConfig) -> None:
    biases = _distance_biases(model, tree, side)
    for number, layer in enumerate(spec.layer):
        own = tree[name]["layers"][str(number)]
        _fill_attention(layer.self_attention, own["self_attention"], model, "QKV", "O")
        for option, value in biases.items():
            setattr(layer.self_attention, option, value)
        if hasattr(layer, "attention"):
            _fill_attention(layer.attention, own["cross_attention"], model, "Q", "KV", "O")
        _fill_feed_forward(layer.ffn, own["feed_forward"])
    if hasattr(spec, "layer_norm"):
        _fill_norm(spec.layer_norm, tree[name]["norm"])
    if model.embedding_norm:
        _fill_norm(spec.layernorm_embedding, tree[f"{side}_embedding_norm"])
    if place := model.positions.sinusoids:
        first, width = model.first_position, model.d_model
        table = np.asarray(registry.load_named(place)(first + _POSITIONS, width))[first:]
        spec.position_encodings.encodings = table
    elif model.position == "learned":
        spec.position_encodings.encodings = tree[f"{side}_position"]
    elif model.position == "none":  # CTranslate2 would add its own sinusoids
        spec.position_encodings.encodings = np.zeros((_POSITIONS, model.d_model), np.float32)


def _fill_attention(spec: Any, part: _Tree, model: ModelConfig, *joined: str) -> None:
    """Fill an attention.

    Args:
      joined: the letters of the matrices that each of its projections has side by side.
    """
    for linear, letters in zip(spec.linear, joined, strict=True):
        _fill_linear(linear, part, *letters)
    _fill_norm(spec.layer_norm, part["norm"])
    if model.score_function == "dot_product":
        spec.queries_scale = np.float32(1)


def _fill_feed_forward(spec: Any, part: _Tree) -> None:
    _fill_norm(spec.layer_norm, part["norm"])
    _fill_linear(spec.linear_1, part, "2")
    if "W_gate" in part:
        _fill_linear(spec.linear_0, part, "gate")
        _fill_linear(spec.linear_0_noact, part, "1")
    else:
        _fill_linear(spec.linear_0, part, "1")


def _fill_linear(spec: Any, part: _Tree, *letters: str) -> None:
    """Fill a projection with one matrix, or several side by side; CTranslate2 computes x W^T."""
    matrices = np.hstack([part[f"W_{letter}"] for letter in letters])
    spec.weight = np.ascontiguousarray(matrices.T)
    if f"b_{letters[0]}" in part:
        spec.bias = np.concatenate([part[f"b_{letter}"] for letter in letters])


def _fill_norm(spec: Any, part: Arrays) -> None:
    spec.gamma = part["scale"]
    if "bias" in part:
        spec.beta = part["bias"]


def _distance_biases(model: ModelConfig, tree: _Tree, side: str) -> Mapping[str, object]:
    """Return the biases by distance of self-attention in the form of T5, if any."""
    if model.position == "relative_bias":
        table, distance = tree[f"{side}_position"], _T5_DISTANCE
        assert len(table) == tables.RELATIVE_BUCKETS
    elif model.position == "alibi":
        # The first half of the buckets of each direction has one distance each.
        distances = np.arange(2 * _POSITIONS)
        one_way = -distances[:, None].astype(np.float32) * np.asarray(alibi_slopes(model.num_heads))
        table, distance = np.vstack([one_way] * (2 if side == "source" else 1)), 2 * _POSITIONS
    else:
        return {}
    return {
        "relative_attention_bias": np.ascontiguousarray(table),
        "relative_attention_max_distance": np.dtype("int32").type(distance),
    }
