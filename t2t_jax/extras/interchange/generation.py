"""Import and export of the settings of a search: the generation config of transformers.

They are in generation_config.json, or, without such a file, in config.json. Settings with a
counterpart in `DecodingConfig` are taken over; others that would change an output are named.
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
"""The settings that are taken over, with the values of transformers for null or missing ones."""
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
_LACKING: Mapping[str, int | None] = {
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty", "typical_p"), 1),
    **dict.fromkeys(("guidance_scale", "num_beam_groups"), 1),
    **dict.fromkeys(("diversity_penalty", "epsilon_cutoff", "eta_cutoff", "min_p", "top_h")),
    **dict.fromkeys(("encoder_no_repeat_ngram_size", "forced_bos_token_id", "constraints")),
    **dict.fromkeys(("begin_suppress_tokens", "sequence_bias", "force_words_ids", "max_time")),
    **dict.fromkeys(("exponential_decay_length_penalty", "stop_strings", "penalty_alpha")),
    "watermarking_config": None,
}
"""Settings of transformers that no search of this package has, with the values that change nothing
besides null, false and []. Newer releases may have more."""
_NEVER = -1e4
"""The output bias of forbidden entries where a search normalises the other probabilities anew."""
_SPECIAL = "pad_token_id", "eos_token_id", "decoder_start_token_id"
_WITHOUT_EFFECT = {
    *("bos_token_id", "transformers_version", "use_cache", "cache_implementation", "low_memory"),
    *("return_dict_in_generate", "num_return_sequences", "remove_invalid_values"),
    "forced_eos_token_id",  # it only ends an output that is cut: the text stays the same
}
_IGNORED_PREFIXES = "_", "output_", "assistant_", "num_assistant_"


def with_their_search(
    model: PortableModel,
    path: Path,
    theirs: Record,
    order: Sequence[int],
    carried: Collection[str] = (),
) -> PortableModel:
    """Return an imported model with the search that its files name.

    Args:
      theirs: the fields of its config.json.
      order: the model's id of each of our entries.
      carried: further settings that the import takes over otherwise.
    """
    is_apart = (path / FILE).exists()
    file = path / (FILE if is_apart else "config.json")  # as transformers does
    given = read_json(file, _GENERATION)
    settings = {
        name: usual if given.get(name) is None else given[name] for name, usual in _DEFAULTS.items()
    }
    ids = {int(number): place for place, number in enumerate(order)}
    fields = _decoding_fields(settings, ids, theirs["pad_token_id"], file)
    others = given.keys() - _DEFAULTS.keys() - _WITHOUT_EFFECT if is_apart else _LACKING.keys()
    arrays = dict(model.arrays)
    if settings["renormalize_logits"] and "output_bias" not in arrays:
        warn(f"{path} has renormalize_logits=True; here padding takes its share of probability")
    elif settings["renormalize_logits"]:
        arrays["output_bias"] = arrays["output_bias"].copy()
        arrays["output_bias"][[*fields["decoding.forbidden_ids"]]] = _NEVER
    if lacking := _left_out(given, settings, others - {*carried}, theirs):
        warn(
            f"{file} has {' and '.join(lacking)}, for which a search of t2t_jax has no "
            "counterpart: without, translations may be others than those of transformers"
        )
    return replace(model, config=config_of(file, fields, model.config), arrays=arrays)


def _decoding_fields(
    settings: Record, ids: Mapping[int, int], padding: int, file: Path
) -> dict[str, Any]:
    """Return the fields `decoding.*` of a config.

    Args:
      settings: the settings that are taken over, in full.
      ids: our id of an entry, by the id in transformers.
      padding: the id of padding in transformers.
      file: the file, for errors.
    """
    least, longest = settings["min_new_tokens"], settings["max_new_tokens"]
    if least is None:
        least = max(0, settings["min_length"] - 1)  # it counts the start of a target
    if longest is None and settings["max_length"] is not None:
        longest = settings["max_length"] - 1
    fields = {
        "beam_size": settings["num_beams"],
        "beam_rule": "transformers",
        "length_penalty": float(max(0, settings["length_penalty"])),
        "min_length": least,
        "no_repeat_ngram_size": settings["no_repeat_ngram_size"],
        "forbidden_ids": _forbidden_ids(settings, padding, ids, file),
    }
    if longest is not None:
        fields["max_extra_length"] = longest
    if settings["do_sample"] and settings["num_beams"] == 1:
        fields |= {"temperature": float(settings["temperature"]), "top_k": settings["top_k"]}
        fields["top_p"] = float(settings["top_p"])
    return {f"decoding.{name}": value for name, value in fields.items()}


def _forbidden_ids(
    settings: Record, padding: int, ids: Mapping[int, int], file: Path
) -> tuple[int, ...]:
    """Return our ids that no output may have: that of padding, unless bad_words_ids is set."""
    words = [[padding]] if settings["bad_words_ids"] is None else settings["bad_words_ids"]
    words = [*words, *([one] for one in settings["suppress_tokens"] or [])]
    for word in words:
        if not all(number in ids for number in word):
            raise UserError(
                f"{file} has {word!r:.60} in bad_words_ids or suppress_tokens, which is no list of "
                f"ids from 0 to {len(ids) - 1}"
            )
    forbidden = dict.fromkeys(ids[word[0]] for word in words if len(word) == 1)
    return tuple(number for number in forbidden if number != EOS_ID)


def _left_out(
    given: Record, settings: Record, others: Collection[str], theirs: Record
) -> list[str]:
    """Return the settings that would change an output and that no search of this package has.

    Args:
      given: the fields of the file.
      settings: the settings that are taken over, in full.
      others: the names of those that may change an output besides.
      theirs: the fields of config.json, by whose special ids the model is imported.
    """
    beams, alpha = settings["num_beams"], settings["length_penalty"]
    stops_alike = settings["early_stopping"] in (False, "never" if alpha == 0 else False)
    constraints = settings["no_repeat_ngram_size"], settings["min_new_tokens"]
    is_lacking = {
        "length_penalty": alpha < 0,
        "early_stopping": beams > 1 and not stops_alike,
        "do_sample": beams > 1 and settings["do_sample"],
        "bad_words_ids": any(len(word) > 1 for word in settings["bad_words_ids"] or []),
        "suppress_tokens": theirs["eos_token_id"] in (settings["suppress_tokens"] or []),
        "renormalize_logits": settings["renormalize_logits"]
        and (any(constraints) or settings["min_length"] > 1),
    }
    for name in sorted(others):
        neutral: list[Any] = [None, False, [], _LACKING.get(name)]
        if name in _SPECIAL:
            neutral = [None, theirs.get(name), [theirs.get(name)]]
        is_lacking[name] = given.get(name) not in neutral and not name.startswith(_IGNORED_PREFIXES)
    return [f"{name}={given[name]!r:.60}" for name, is_left in is_lacking.items() if is_left]


def write_search(
    directory: Path, config: Config, special: Mapping[str, int | None], order: Order
) -> None:
    """Write the generation config for the search of a config.

    Args:
      special: the ids of special entries in transformers, by the names of their settings.
      order: the id in transformers of each of our entries.
    """
    decoding = config.decoding
    draws = decoding.temperature > 0
    forbidden = order[list(decoding.forbidden_ids)].tolist()
    found = {
        "num_beams": 1 if draws else decoding.beam_size,
        "length_penalty": decoding.length_penalty,
        "max_length": _longest_target(config),
        "min_new_tokens": decoding.min_length or None,
        "no_repeat_ngram_size": decoding.no_repeat_ngram_size,
        "bad_words_ids": [[number] for number in forbidden] or None,
        "do_sample": draws,
    }
    if draws:
        found |= {name: getattr(decoding, name) for name in ("temperature", "top_k", "top_p")}
    write_json(directory / FILE, {**found, **special})


def special_ids(
    model: ModelConfig, order: Order, begin: int | None = None
) -> dict[str, int | None]:
    """Return the ids of special entries in transformers, by the names of their settings.

    Args:
      order: the id in transformers of each of our entries.
      begin: our id of the beginning of a sentence; None is that of the start of a target.
    """
    start = start_id(model)
    ids = {
        "pad_token_id": PAD_ID,
        "eos_token_id": EOS_ID,
        "bos_token_id": start if begin is None else begin,
        "decoder_start_token_id": start,
    }
    return {**{name: int(order[id_]) for name, id_ in ids.items()}, "forced_eos_token_id": None}


def num_positions(config: Config) -> int:
    """Return the number of positions that the sources and the targets of a search have."""
    return max(config.decoding.max_source_length, _longest_target(config))


def _longest_target(config: Config) -> int:
    """Return the most tokens of a target, including its start."""
    source, extra = config.decoding.max_source_length, config.decoding.max_extra_length
    return extra + 1 if config.decoding.beam_rule == "transformers" else source + extra
