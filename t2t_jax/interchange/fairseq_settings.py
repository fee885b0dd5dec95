"""The translation of the options in a checkpoint of fairseq into fields of a config.

Older checkpoints have their options in `args`, flat. Newer ones have `cfg`, with sections for the
model, the task and the tokenizer; the section of the model may be flat too, or have sections of its
own for encoder and decoder. This module makes one flat dictionary with the names of `args`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from t2t_jax.errors import UserError
from t2t_jax.interchange.model_files import DEPTH, RATE, SIZE
from t2t_jax.interchange.torch_pickle import Settings
from t2t_jax.system.records import Schema, check

Options: TypeAlias = Mapping[str, Any]
"""The options of a model, by their names in `args`."""

_SECTIONS = ("tokenizer", "task", "model")
_PREFIXES = ("encoder", "decoder", "quant_noise")
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu"}
_NO_TRANSLATION = ("transformer_lm", "transformer_ulm")
# These tasks do more than the model, such as add tags of languages, and no checkpoint has that.
_TASKS_WITH_MORE = (
    "multilingual_translation",
    "translation_from_pretrained_bart",
    "translation_moe",
    "translation_multi_simple_epoch",
)
_NOT_HERE = (
    "adaptive_input",
    "adaptive_softmax_cutoff",
    "base_layers",
    "char_inputs",
    "cross_self_attention",
    "decoder_langtok",
    "decoder_layers_to_keep",
    "decoder_xformers_att_config",
    "encoder_langtok",
    "encoder_layers_to_keep",
    "encoder_xformers_att_config",
    "merge_src_tgt_embed",
    "no_cross_attention",
    "quant_noise_pq",
    "quant_noise_scalar",
    "scale_attn",
    "scale_fc",
    "scale_heads",
    "scale_resids",
)
_SCHEMA = Schema(
    {},
    {
        **dict.fromkeys(("arch", "task", "activation_fn", "source_lang", "target_lang"), str),
        **dict.fromkeys(("encoder_embed_dim", "encoder_ffn_embed_dim"), SIZE),
        **dict.fromkeys(("encoder_layers", "decoder_layers", "encoder_attention_heads"), DEPTH),
        **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), RATE),
        "relu_dropout": RATE,
    },
)
_SAME_ON_BOTH_SIDES = {
    "embed_dim": 512,
    "ffn_embed_dim": 2048,
    "attention_heads": 8,
    "normalize_before": False,
    "learned_pos": False,
}


def options_of(checkpoint: Any, path: Path) -> Options:
    """Return the options of the model of a checkpoint, as `read_torch_file` gives it.

    Raises:
      UserError: the checkpoint has none, so fairseq has not written it; or an option is damaged.
    """
    if isinstance(checkpoint, Mapping) and isinstance(checkpoint.get("model"), Mapping):
        args, sections = (_plain(checkpoint.get(name)) for name in ("args", "cfg"))
        if isinstance(args, Mapping) and args:
            return _checked(args, path)
        if isinstance(sections, Mapping) and isinstance(sections.get("model"), Mapping):
            return _checked(_joined(sections), path)
    raise UserError(
        f"{path} is no checkpoint of fairseq, which has `model` and `args` or `cfg`; name the file "
        "that fairseq-train wrote"
    )


def _checked(options: Mapping[str, Any], path: Path) -> Options:
    """Return the options that are not None, or refuse one of the wrong type."""
    given = {name: value for name, value in options.items() if value is not None}
    try:
        check(given, _SCHEMA)
    except ValueError as error:
        raise UserError(f"{path} is damaged: of its options, {error}; copy it anew") from error
    return given


def _joined(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of all sections, in which `_name` of the model is given as `arch`."""
    found: dict[str, Any] = {}
    for name in _SECTIONS:
        section = sections.get(name)
        found |= _flat(section) if isinstance(section, Mapping) else {}
    return {"arch": found.get("_name"), **found}


def _plain(node: Any) -> Any:
    """Return settings of argparse and OmegaConf as dictionaries, lists and values."""
    if isinstance(node, Settings):
        for name in ("_content", "_val"):  # a container of OmegaConf, and a value in one
            if name in node.state:
                return _plain(node.state[name])
        return _plain(node.state)
    if isinstance(node, Mapping):
        return {str(name): _plain(value) for name, value in node.items()}
    if isinstance(node, list):
        return [_plain(value) for value in node]
    return node


def _flat(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section without inner ones: `encoder: {layers: 6}` becomes `encoder_layers: 6`."""
    inner = {
        f"{prefix}_{name}": value
        for prefix in _PREFIXES
        if isinstance(section.get(prefix), Mapping)
        for name, value in section[prefix].items()
    }
    return {**{name: x for name, x in section.items() if name not in _PREFIXES}, **inner}


def model_fields(options: Options, path: Path) -> dict[str, Any]:
    """Return the fields `model.*` of a config, without the sizes that only the arrays have.

    Raises:
      UserError: the model has an option that no model of this package can have.
    """
    shared = {  # by encoder and decoder
        name: options.get(f"encoder_{name}", usual) for name, usual in _SAME_ON_BOTH_SIDES.items()
    }
    activation = options.get("activation_fn") or "relu"
    _refuse(path, {**_foreign(options), **_unequal(options, shared)})
    if activation not in _ACTIVATIONS:
        _refuse(path, {f"activation_fn={activation!r:.60}": True})
    position = "learned" if shared["learned_pos"] else "sinusoidal_t2t"
    is_shared = bool(options.get("share_all_embeddings"))
    is_tied = bool(options.get("share_decoder_input_output_embed"))
    return {
        "model.d_model": shared["embed_dim"],
        "model.d_ff": shared["ffn_embed_dim"],
        "model.num_heads": shared["attention_heads"],
        "model.num_encoder_layers": options.get("encoder_layers", 6),
        "model.num_decoder_layers": options.get("decoder_layers", 6),
        "model.norm_order": "pre" if shared["normalize_before"] else "post",
        "model.norm_epsilon": 1e-5,
        "model.feed_forward": _ACTIVATIONS[activation],
        "model.attention_bias": True,
        "model.position": "none" if options.get("no_token_positional_embeddings") else position,
        "model.first_position": 2,
        "model.start_token": "end",
        "model.share_embeddings": is_shared,
        "model.share_target_embedding": is_tied and not is_shared,
        "model.scale_embeddings": not options.get("no_scale_embedding"),
        "model.embedding_norm": bool(options.get("layernorm_embedding")),
        "model.dropout_rate": options.get("dropout", 0.1),
        "model.attention_dropout_rate": options.get("attention_dropout", 0),
        "model.activation_dropout_rate": options.get("activation_dropout")
        or options.get("relu_dropout")
        or 0,
    }


def _foreign(options: Options) -> dict[str, bool]:
    """Return kinds of models and options that this package lacks, each with whether it is given."""
    arch, task = options.get("arch", ""), options.get("task")
    is_translation = arch.startswith("transformer") and not arch.startswith(_NO_TRANSLATION)
    return {
        f"arch={arch!r:.60}": not is_translation,
        f"task={task!r:.60}": task in _TASKS_WITH_MORE,
        **{f"{name}={options.get(name)!r:.60}": bool(options.get(name)) for name in _NOT_HERE},
    }


def _unequal(options: Options, shared: Mapping[str, Any]) -> dict[str, bool]:
    """Return options of the decoder, each with whether it differs from that of the encoder."""
    expected = {f"decoder_{name}": value for name, value in shared.items()}
    for name in ("decoder_input_dim", "decoder_output_dim"):
        expected[name] = shared["embed_dim"]
    found = {name: options.get(name) for name in expected}
    # A text is a reference of OmegaConf, such as ${model.decoder.embed_dim}, to the expected value.
    return {
        f"{name}={value!r:.60} beside {expected[name]!r:.60} of the encoder": value
        != expected[name]
        for name, value in found.items()
        if value is not None and not isinstance(value, str)
    }


def _refuse(path: Path, lacking: Mapping[str, bool]) -> None:
    if found := [option for option, has in lacking.items() if has]:
        raise UserError(
            f"{path} has {' and '.join(found)}, which no model of t2t_jax has; choose a checkpoint "
            "of fairseq's `transformer` without"
        )
