"""Export models for CTranslate2, a fast engine for decoding on CPUs and GPUs.

    OUT/model.bin               parameters, in the layout of `ctranslate2.specs`
    OUT/config.json             special tokens, and the epsilon of the norms
    OUT/shared_vocabulary.json  subword of each id
    OUT/vocabulary.model        SentencePiece model, or source.spm and target.spm
    OUT/README.md               example in Python

CTranslate2 supports ALiBi only in decoders, so the export stores ALiBi as a relative position bias
of T5 with one bucket per distance.
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
"""Nested dictionaries of parameters, by the parts of their names in `modules.names`."""

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
_POSITIONS = 2048  # CTranslate2 limits sources to 1024 and targets to 256 subwords by default
_T5_DISTANCE = 128  # the default of `relative_position_buckets`
_README = """\
# A Transformer of t2t_jax for CTranslate2

    import ctranslate2, sentencepiece

    split, join = (sentencepiece.SentencePieceProcessor(model_file=name) for name in {splitters})
    translator = ctranslate2.Translator(".")
    sources = [split.encode(line, out_type=str) for line in ["Hello, world!"]]
    results = translator.translate_batch(sources, {settings})
    print(*(join.decode(result.hypotheses[0]) for result in results), sep="\\n")

The example needs `pip install ctranslate2 sentencepiece`. With `beam_size=1` (greedy search), the
translations are the same as with `--beam-size 1` in t2t_jax. Beam search may differ. CTranslate2
divides the log-probability of a hypothesis by length^alpha, and t2t_jax divides it by
((5 + length) / 6)^alpha (equation 14 of Wu et al. 2016). In each step, CTranslate2 accepts an
end-of-sentence token among the best `beam_size` continuations, and t2t_jax among twice as many.
`decoding.beam_rule=transformers` applies both rules of CTranslate2 in t2t_jax. With a length
penalty, CTranslate2 ends a search as soon as `beam_size` hypotheses have ended. If subwords are
forbidden, CTranslate2 normalizes the probabilities of all other subwords. CTranslate2 truncates
sources at `max_input_length=1024` subwords and translations at `max_decoding_length=256`. t2t_jax
generates at most {extra} subwords more than the source has.
"""


def carried(config: Config) -> Carried:
    """Return the allowed values of each config field that a CTranslate2 model can hold."""
    model = config.model
    has_one_width = model.key_size == model.value_size
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
        "model.d_v": (model.d_v if has_one_width else model.key_size,),
        "model.attention_kind": ("scaled_dot_product", "dot_product"),
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
    """Write a model to a directory that CTranslate2 can load.

    Args:
      dtype: type of the stored weights, such as "float32" or "int8_float16".
    """
    spec = _specification(model)
    spec.validate()
    spec.optimize(quantization=dtype)
    spec.save(str(directory))
    for name, content in model.vocabulary.files.items():
        (directory / name).write_bytes(content)
    readme = _README.format(
        splitters=(min(model.vocabulary.files), max(model.vocabulary.files)),
        settings=", ".join(f"{name}={value!r}" for name, value in _decoding_options(model).items()),
        extra=model.config.decoding.max_extra_length,
    )
    (directory / "README.md").write_text(readme, encoding="utf-8")


def _decoding_options(model: PortableModel) -> dict[str, object]:
    decoding = model.config.decoding
    (forbidden_pieces,) = model.vocabulary.target_pieces([decoding.forbidden_ids])
    is_sampled = decoding.temperature > 0
    options: dict[str, object] = {
        "beam_size": 1 if is_sampled else decoding.beam_size,
        "length_penalty": decoding.length_penalty,
        "min_decoding_length": decoding.min_length,
    }
    if decoding.no_repeat_ngram_size:
        options["no_repeat_ngram_size"] = decoding.no_repeat_ngram_size
    if forbidden_pieces:
        options["suppress_sequences"] = [[piece] for piece in forbidden_pieces]
    if is_sampled:
        options |= {"sampling_temperature": decoding.temperature, "sampling_topk": decoding.top_k}
        options["sampling_topp"] = decoding.top_p
    return options


def _specification(model: PortableModel) -> Any:
    with needs_extra("ctranslate2", "the format ctranslate2"):
        from ctranslate2.specs import TransformerSpec
    network = model.config.model
    arrays = rewriting.with_all_heads(model.arrays, network)
    arrays = rewriting.as_post_norm(arrays, network, network.norm_epsilon)
    spec = TransformerSpec(*(_stack_specification(network, stack) for stack in network.stacks))
    vocabulary = model.vocabulary
    (source_pieces,) = vocabulary.pieces([range(vocabulary.source_size)])
    (target_pieces,) = vocabulary.target_pieces([range(len(vocabulary))])
    spec.config.unk_token = target_pieces[vocabulary.unk_id]
    spec.config.bos_token = spec.config.decoder_start_token = target_pieces[start_id(network)]
    spec.config.eos_token = target_pieces[EOS_ID]
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = network.norm_epsilon
    spec.register_source_vocabulary(source_pieces)
    spec.register_target_vocabulary(target_pieces)
    matrix_names = network.embeddings
    spec.encoder.embeddings[0].weight = arrays[matrix_names["source"]]
    spec.decoder.embeddings.weight = arrays[matrix_names["target"]]
    spec.decoder.projection.weight = arrays[matrix_names["output"]]
    if network.output_bias:
        spec.decoder.projection.bias = arrays["output_bias"]
    tree = unflatten_dict(arrays, sep=".")
    _fill_stack(spec.encoder, tree, "encoder", "source", network)
    _fill_stack(spec.decoder, tree, "decoder", "target", network)
    return spec


def _stack_specification(model: ModelConfig, stack: Stack) -> Any:
    from ctranslate2.specs import attention_spec, common_spec, transformer_spec

    spec_class = transformer_spec.TransformerEncoderSpec
    if stack.attends_to_source:
        spec_class = transformer_spec.TransformerDecoderSpec
    options: dict[str, Any] = {}
    if model.position == "rotary":
        rotary_base = model.rotary_base
        # NTK scaling enlarges the base; see `functional.position.rotary_frequencies`.
        if model.rotary_scaling == "ntk":
            rotary_base *= model.rotary_scale ** (model.key_size / max(model.key_size - 2, 1))
        options = {"rotary_dim": 0, "rotary_base": rotary_base}
        if model.rotary_scaling == "linear" and model.rotary_scale != 1:
            options["rotary_scaling_type"] = attention_spec.RotaryScalingType.Linear
            options["rotary_scaling_factor"] = model.rotary_scale
    num_kv_heads = model.attention.groups
    spec = spec_class(
        stack.num_layers,
        model.num_heads,
        pre_norm=model.norm_order == "pre",
        activation=getattr(common_spec.Activation, _ACTIVATIONS[model.feed_forward]),
        layernorm_embedding=model.embedding_norm,
        relative_attention_bias=model.position in ("alibi", "relative_bias"),
        ffn_glu=model.is_gated,
        rms_norm=model.norm == "rms",
        num_heads_kv=num_kv_heads if num_kv_heads != model.num_heads else None,
        head_dim=model.key_size if model.key_size * model.num_heads != model.d_model else None,
        **options,
    )
    spec.scale_embeddings = model.embedding_scale != 1
    return spec


def _fill_stack(spec: Any, tree: _Tree, name: str, side: str, model: ModelConfig) -> None:
    """Copy the encoder or decoder `name`, which reads the `side` text, to CTranslate2's `spec`."""
    bias_options = _distance_biases(model, tree, side)
    for index, layer in enumerate(spec.layer):
        params = tree[name]["layers"][str(index)]
        _fill_attention(layer.self_attention, params["self_attention"], model, "QKV", "O")
        for option, value in bias_options.items():
            setattr(layer.self_attention, option, value)
        if hasattr(layer, "attention"):
            _fill_attention(layer.attention, params["cross_attention"], model, "Q", "KV", "O")
        _fill_feed_forward(layer.ffn, params["feed_forward"])
    if hasattr(spec, "layer_norm"):
        _fill_norm(spec.layer_norm, tree[name]["norm"])
    if model.embedding_norm:
        _fill_norm(spec.layernorm_embedding, tree[f"{side}_embedding_norm"])
    if path := model.positions.sinusoids:
        offset, width = model.first_position, model.d_model
        table = np.asarray(registry.load_named(path)(offset + _POSITIONS, width))[offset:]
        spec.position_encodings.encodings = table
    elif model.position == "learned":
        spec.position_encodings.encodings = tree[f"{side}_position"]
    elif model.position == "none":  # without a table, CTranslate2 adds its own sinusoids
        spec.position_encodings.encodings = np.zeros((_POSITIONS, model.d_model), np.float32)


def _fill_attention(spec: Any, params: _Tree, model: ModelConfig, *projections: str) -> None:
    """Copy an attention sub-layer to CTranslate2.

    Args:
      projections: letters of the matrices in each projection of CTranslate2, such as "QKV".
    """
    for linear, letters in zip(spec.linear, projections, strict=True):
        _fill_linear(linear, params, *letters)
    _fill_norm(spec.layer_norm, params["norm"])
    if model.attention.scale is not None:  # else CTranslate2 divides by sqrt(d_k)
        spec.queries_scale = np.float32(model.attention.scale)


def _fill_feed_forward(spec: Any, params: _Tree) -> None:
    _fill_norm(spec.layer_norm, params["norm"])
    _fill_linear(spec.linear_1, params, "2")
    if "W_gate" in params:  # CTranslate2 applies the activation to linear_0
        _fill_linear(spec.linear_0, params, "gate")
        _fill_linear(spec.linear_0_noact, params, "1")
    else:
        _fill_linear(spec.linear_0, params, "1")


def _fill_linear(spec: Any, params: _Tree, *letters: str) -> None:
    """Copy the matrices W_LETTER of all letters, side by side, to a projection of CTranslate2."""
    matrices = np.hstack([params[f"W_{letter}"] for letter in letters])
    spec.weight = np.ascontiguousarray(matrices.T)  # CTranslate2 computes x W^T
    if f"b_{letters[0]}" in params:
        spec.bias = np.concatenate([params[f"b_{letter}"] for letter in letters])


def _fill_norm(spec: Any, params: Arrays) -> None:
    spec.gamma = params["scale"]
    if "bias" in params:
        spec.beta = params["bias"]


def _distance_biases(model: ModelConfig, tree: _Tree, side: str) -> Mapping[str, object]:
    """Return CTranslate2 attributes for ALiBi or T5 relative positions; {} for other positions."""
    if model.position == "relative_bias":
        table, max_distance = tree[f"{side}_position"], _T5_DISTANCE
        assert len(table) == tables.RELATIVE_BUCKETS
    elif model.position == "alibi":
        # Each of the first half of the buckets of a direction holds one distance.
        distances, slopes = np.arange(2 * _POSITIONS), np.asarray(alibi_slopes(model.num_heads))
        biases = -distances[:, None].astype(np.float32) * slopes  # [distances, heads]
        table, max_distance = np.vstack([biases] * (2 if side == "source" else 1)), 2 * _POSITIONS
    else:
        return {}
    return {
        "relative_attention_bias": np.ascontiguousarray(table),
        "relative_attention_max_distance": np.dtype("int32").type(max_distance),
    }
