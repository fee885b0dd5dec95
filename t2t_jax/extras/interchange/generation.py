"""Convert decoding settings between our config and the generation config of transformers.

The import reads generation_config.json, or config.json if that file is missing. A warning names the
settings that change the output but have no counterpart in `DecodingConfig`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from t2t_jax.batch import EOS_ID, PAD_ID
from t2t_jax.config import Config, ModelConfig
from t2t_jax.errors import UserError, warn
from t2t_jax.extras.interchange.model_files import config_of, read_json
from t2t_jax.extras.interchange.places import Order
from t2t_jax.extras.interchange.portable import PortableModel
from t2t_jax.extras.interchange.pretrained import write_json
from t2t_jax.modules.models import start_id
from t2t_jax.system.records import NUMBER, Record, schema

FILE = "generation_config.json"

_DEFAULTS: Mapping[str, Any] = {
    **{"num_beams": 1, "length_penalty": 1.0, "early_stopping": False},
    **{"do_sample": False, "temperature": 1.0, "top_k": 50, "top_p": 1.0},
    **{"min_length": 0, "no_repeat_ngram_size": 0, "renormalize_logits": False},
    **dict.fromkeys(("max_length", "max_new_tokens", "min_new_tokens")),
    **dict.fromkeys(("bad_words_ids", "suppress_tokens")),
}
"""The settings that the import converts, with the defaults of transformers for null or missing
values."""
_GENERATION = schema(
    {},
    {
        **dict.fromkeys(_DEFAULTS, int | None),
        **dict.fromkeys(("length_penalty", "temperature", "top_p"), NUMBER),
        **dict.fromkeys(("do_sample", "renormalize_logits"), bool | None),
        "bad_words_ids": list[Annotated[list[int], Meta(min_length=1)]] | None,
        "suppress_tokens": list[int] | None,
        "early_stopping": bool | str | None,
    },
)
_UNSUPPORTED: Mapping[str, int | None] = {
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty", "typical_p"), 1),
    **dict.fromkeys(("guidance_scale", "num_beam_groups"), 1),
    **dict.fromkeys(("diversity_penalty", "epsilon_cutoff", "eta_cutoff", "min_p", "top_h")),
    **dict.fromkeys(("encoder_no_repeat_ngram_size", "forced_bos_token_id", "constraints")),
    **dict.fromkeys(("begin_suppress_tokens", "sequence_bias", "force_words_ids", "max_time")),
    **dict.fromkeys(("exponential_decay_length_penalty", "stop_strings", "penalty_alpha")),
    "watermarking_config": None,
}
"""Settings of transformers that t2t_jax lacks. The value of each turns the setting off, as do null,
false and []. Newer releases of transformers may have more settings."""
_FORBIDDEN_BIAS = -1e4
"""The output bias of forbidden tokens if `renormalize_logits` is set."""
_SPECIAL_IDS = "pad_token_id", "eos_token_id", "decoder_start_token_id"
_HARMLESS = {
    *("bos_token_id", "transformers_version", "use_cache", "cache_implementation", "low_memory"),
    *("return_dict_in_generate", "num_return_sequences", "remove_invalid_values"),
    "forced_eos_token_id",  # only ends a truncated output: the text stays the same
}
_HARMLESS_PREFIXES = "_", "output_", "assistant_", "num_assistant_"


def with_hf_search(
    model: PortableModel,
    path: Path,
    hf_config: Record,
    hf_ids: Sequence[int],
    caller_settings: Collection[str] = (),
) -> PortableModel:
    """Return an imported model with the decoding settings in its transformers files.

    Args:
      hf_config: fields of config.json.
      hf_ids: transformers id of each vocabulary entry, by t2t_jax id.
      caller_settings: names of settings that the caller imports.
    """
    is_separate = (path / FILE).exists()
    file = path / (FILE if is_separate else "config.json")  # as transformers does
    record = read_json(file, _GENERATION)
    non_null = {name: record[name] for name in _DEFAULTS if record.get(name) is not None}
    settings = {**_DEFAULTS, **non_null}
    ids = {int(hf_id): our_id for our_id, hf_id in enumerate(hf_ids)}
    fields = _decoding_fields(settings, ids, hf_config["pad_token_id"], file)
    # config.json also has fields of the network, so check only the names that we know there.
    names_to_check = record.keys() - _DEFAULTS - _HARMLESS if is_separate else _UNSUPPORTED.keys()
    arrays = dict(model.arrays)
    if settings["renormalize_logits"] and "output_bias" not in arrays:
        warn(f"{path} has renormalize_logits=True; in t2t_jax, padding keeps some probability")
    elif settings["renormalize_logits"]:
        arrays["output_bias"] = arrays["output_bias"].copy()
        arrays["output_bias"][[*fields["decoding.forbidden_ids"]]] = _FORBIDDEN_BIAS
    if lost := _lost_settings(record, settings, names_to_check - {*caller_settings}, hf_config):
        warn(
            f"{file} has {' and '.join(lost)}, for which t2t_jax has no counterpart; "
            "translations may differ from those of transformers"
        )
    return replace(model, config=config_of(file, fields, model.config), arrays=arrays)


def _decoding_fields(
    settings: Record, ids: Mapping[int, int], padding_id: int, file: Path
) -> dict[str, Any]:
    """Convert settings of transformers to the config fields `decoding.*`.

    Args:
      settings: a value for each name in `_DEFAULTS`.
      ids: t2t_jax id of each vocabulary entry, by transformers id.
      padding_id: transformers id of padding.
    """
    min_length, max_length = settings["min_new_tokens"], settings["max_new_tokens"]
    # `min_length` and `max_length` of transformers also count the start token.
    if min_length is None:
        min_length = max(0, settings["min_length"] - 1)
    if max_length is None and settings["max_length"] is not None:
        max_length = settings["max_length"] - 1
    fields = {
        "beam_size": settings["num_beams"],
        "beam_rule": "transformers",
        "length_penalty": float(max(0, settings["length_penalty"])),
        "min_length": min_length,
        "no_repeat_ngram_size": settings["no_repeat_ngram_size"],
        "forbidden_ids": _forbidden_ids(settings, padding_id, ids, file),
    }
    if max_length is not None:
        fields["max_extra_length"] = max_length
    if settings["do_sample"] and settings["num_beams"] == 1:
        fields |= {"temperature": float(settings["temperature"]), "top_k": settings["top_k"]}
        fields["top_p"] = float(settings["top_p"])
    return {f"decoding.{name}": value for name, value in fields.items()}


def _forbidden_ids(
    settings: Record, padding_id: int, ids: Mapping[int, int], file: Path
) -> tuple[int, ...]:
    """Return the t2t_jax ids of tokens that no output may contain.

    `_decoding_fields` documents the arguments.
    """
    # Without `bad_words_ids`, transformers forbids padding.
    sequences = [[padding_id]] if settings["bad_words_ids"] is None else settings["bad_words_ids"]
    sequences = [*sequences, *([token] for token in settings["suppress_tokens"] or [])]
    for sequence in sequences:
        if not all(hf_id in ids for hf_id in sequence):
            raise UserError(
                f"{file} has {sequence!r:.60} in bad_words_ids or suppress_tokens, which is not a "
                f"list of ids from 0 to {len(ids) - 1}"
            )
    forbidden_ids = dict.fromkeys(ids[sequence[0]] for sequence in sequences if len(sequence) == 1)
    return tuple(token for token in forbidden_ids if token != EOS_ID)


def _lost_settings(
    record: Record, settings: Record, names: Collection[str], hf_config: Record
) -> list[str]:
    """Return the settings, as "name=value", that change the output but have no t2t_jax counterpart.

    Args:
      record: fields of the file.
      settings: a value for each name in `_DEFAULTS`.
      names: names of other settings that may change the output.
      hf_config: fields of config.json.
    """
    num_beams, alpha = settings["num_beams"], settings["length_penalty"]
    is_stop_supported = settings["early_stopping"] in (False, "never" if alpha == 0 else False)
    constraints = settings["no_repeat_ngram_size"], settings["min_new_tokens"]
    is_lost = {
        "length_penalty": alpha < 0,
        "early_stopping": num_beams > 1 and not is_stop_supported,
        "do_sample": num_beams > 1 and settings["do_sample"],
        "bad_words_ids": any(len(word) > 1 for word in settings["bad_words_ids"] or []),
        "suppress_tokens": hf_config["eos_token_id"] in (settings["suppress_tokens"] or []),
        "renormalize_logits": settings["renormalize_logits"]
        and (any(constraints) or settings["min_length"] > 1),
    }
    for name in sorted(names):
        neutral: list[Any] = [None, False, [], _UNSUPPORTED.get(name)]
        if name in _SPECIAL_IDS:
            neutral = [None, hf_config.get(name), [hf_config.get(name)]]
        is_lost[name] = record.get(name) not in neutral and not name.startswith(_HARMLESS_PREFIXES)
    return [f"{name}={record[name]!r:.60}" for name, lost in is_lost.items() if lost]


def write_search(
    directory: Path, config: Config, special_settings: Mapping[str, int | None], hf_ids: Order
) -> None:
    """Write generation_config.json with the decoding settings of a config.

    Args:
      special_settings: settings from `special_ids`.
      hf_ids: transformers id of each vocabulary entry, by t2t_jax id.
    """
    decoding = config.decoding
    is_sampled = decoding.temperature > 0
    forbidden_ids = hf_ids[list(decoding.forbidden_ids)].tolist()
    settings = {
        "num_beams": 1 if is_sampled else decoding.beam_size,
        "length_penalty": decoding.length_penalty,
        "max_length": _max_target_length(config),
        "min_new_tokens": decoding.min_length or None,
        "no_repeat_ngram_size": decoding.no_repeat_ngram_size,
        "bad_words_ids": [[token] for token in forbidden_ids] or None,
        "do_sample": is_sampled,
    }
    if is_sampled:
        settings |= {name: getattr(decoding, name) for name in ("temperature", "top_k", "top_p")}
    write_json(directory / FILE, {**settings, **special_settings})


def special_ids(
    model: ModelConfig, to_hf: Order, bos_id: int | None = None
) -> dict[str, int | None]:
    """Return the settings of transformers for special tokens, such as `pad_token_id`.

    Args:
      to_hf: transformers id of each vocabulary entry, by t2t_jax id.
      bos_id: t2t_jax id of the beginning-of-sentence token; None is the start token of targets.
    """
    start_token = start_id(model)
    ids = {
        "pad_token_id": PAD_ID,
        "eos_token_id": EOS_ID,
        "bos_token_id": start_token if bos_id is None else bos_id,
        "decoder_start_token_id": start_token,
    }
    return {**{name: int(to_hf[token]) for name, token in ids.items()}, "forced_eos_token_id": None}


def num_positions(config: Config) -> int:
    """Return the number of positions that decoding needs for sources and for targets."""
    return max(config.decoding.max_source_length, _max_target_length(config))


def _max_target_length(config: Config) -> int:
    source, extra = config.decoding.max_source_length, config.decoding.max_extra_length
    return extra + 1 if config.decoding.beam_rule == "transformers" else source + extra
