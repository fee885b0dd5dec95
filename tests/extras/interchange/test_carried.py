"""A format carries what it lists, and refuses every other option by its name."""

import copy
import dataclasses
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import field
from types import MappingProxyType
from typing import Any, Literal, get_origin, get_type_hints

import pytest

from t2t_jax import Config, UserError
from t2t_jax.config.checks import NOT_EXPORTED
from t2t_jax.config.config import known_fields, walk
from t2t_jax.config.tables import NAMED
from t2t_jax.extras.interchange import ctranslate2
from t2t_jax.extras.interchange.carried import refuse_other_models
from t2t_jax.extras.interchange.formats import implementation, writable, write_model
from t2t_jax.extras.interchange.portable import PortableModel
from tests.extras.interchange.models import MODELS, OPTIONS, golden_model, portable
from tests.extras.interchange.test_ctranslate2 import REFUSED
from tests.refusals import refused

_LANGUAGE_MODEL = {"model.architecture": "decoder_only", "data.task": "language_modelling"}
_WHOLE = {
    **dict.fromkeys(("run", "safetensors"), ("model", "data", "decoding")),
    "gpt2": ("decoding",),
}
"""The sections of which a format carries every option: the config goes along, or nothing of a
search is written."""
_REFUSED_BY_MARIAN = {
    "modern": "model.norm='rms' in place of 'layer' and model.norm_order='pre' in place of 'post'",
    "tensor2tensor-sinusoids": "model.position='sinusoidal_t2t' in place of 'sinusoidal'",
    "learned-positions": "model.position='learned'",
    "pre-norm": "model.norm_order='pre'",
    "multi-query": "model.num_kv_heads=1 in place of None or 4",
    "wide-heads": "model.d_k=8 in place of None or 4.0 and model.d_v=8 in place of None or 4.0",
    "glu": "model.feed_forward='glu'",
    "untied": "model.embedding_norm=True in place of False and model.share_target_embedding=False",
    "window": "model.attention_window=4",
}


def _model(name: str) -> PortableModel:
    """A model that the format carries."""
    return golden_model(name) if name in MODELS else portable({})


def _refuse(name: str, model: PortableModel, config: Config) -> None:
    """Refuse what the format does not carry of the model with another config."""
    refuse_other_models(name, implementation(name), dataclasses.replace(model, config=config))


def _with_a_later_option(
    config: Config, section: str, value: Any, metadata: Mapping[str, Any] = MappingProxyType({})
) -> Config:
    """The config as a later release may have it, with one option more."""
    old = getattr(config, section)
    later = dataclasses.make_dataclass(
        "Later",
        [("later_option", bool, field(default=False, metadata=metadata))],
        bases=(type(old),),
        frozen=True,
    )
    given = {leaf.name: getattr(old, leaf.name) for leaf in dataclasses.fields(old)}
    return dataclasses.replace(config, **{section: later(**given, later_option=value)})


def _with_unchecked(config: Config, section: str, values: Mapping[str, str]) -> Config:
    """The config as a later release may have it, with values that no option has yet."""
    old = getattr(config, section)
    later = object.__new__(type(old))  # without what was worked out from other values
    vars(later).update({leaf.name: getattr(old, leaf.name) for leaf in dataclasses.fields(old)})
    vars(later).update(values)
    whole = copy.copy(config)
    object.__setattr__(whole, section, later)
    return whole


@pytest.mark.parametrize("section", ["model", "data", "decoding"])
@pytest.mark.parametrize("name", writable())
def test_an_option_that_no_format_knows_of_is_refused_by_every_one(name, section, tmp_path):
    model = _model(name)
    _refuse(name, model, _with_a_later_option(model.config, section, False))
    _refuse(name, model, _with_a_later_option(model.config, section, True, NOT_EXPORTED))
    used = _with_a_later_option(model.config, section, True)
    if section in _WHOLE.get(name, ()):
        _refuse(name, model, used)
        return
    option = f"{section}.later_option=True in place of False"
    with pytest.raises(UserError, match=f"{name} cannot hold this model, which has {option}"):
        write_model(dataclasses.replace(model, config=used), name, tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("section", ["training", "checkpoint", "evaluation", "parallel"])
def test_an_option_of_training_is_no_matter_of_formats(section):
    _refuse("marian", portable({}), _with_a_later_option(Config(), section, True))


@pytest.mark.parametrize("name", writable())
def test_a_value_that_no_format_knows_of_is_refused_by_every_one(name, monkeypatch):
    model = _model(name)
    for rows in NAMED.values():
        monkeypatch.setitem(rows, "later_value", next(iter(rows.values())))
    tried = set()
    for path, leaf, _ in walk(model.config):
        section, _, option = path.partition(".")
        hint = get_type_hints(type(getattr(model.config, section)))[option]
        has_names = get_origin(hint) is Literal or path in NAMED
        if section not in ("model", "data", "decoding") or not has_names:
            continue
        is_carried = section in _WHOLE.get(name, ()) or "exported" in leaf.metadata
        # Other positions do not read what rotary ones have.
        others = {"position": "rotary"} if option.startswith("rotary") else {}
        config = _with_unchecked(model.config, section, others | {option: "later_value"})
        why = f"{name} cannot hold this model, .*{path}='later_value' in place of "
        with nullcontext() if is_carried else pytest.raises(UserError, match=why):
            _refuse(name, model, config)
        tried.add(option)
    assert tried >= {"position", "rotary_scaling", "attention_kind", "beam_rule", "task"}


@pytest.mark.parametrize("name", writable())
def test_every_field_that_a_format_lists_is_there(name):
    config = _model(name).config
    known = {*known_fields(), "model", "data", "decoding"}
    assert implementation(name).carried(config).keys() <= known


@pytest.mark.parametrize(
    ("name", "fields", "why"),
    [
        ("ctranslate2", {"decoding.forbidden": ("word",)}, "decoding.forbidden=('word',)"),
        ("marian", {"decoding.forbidden": ("word",)}, "decoding.forbidden=('word',)"),
        ("marian", {"model.query_key_norm": True, "model.norm": "rms"}, "norm=True in place of"),
        ("ctranslate2", _LANGUAGE_MODEL, "data.task='language_modelling' in place of 'auto'"),
        ("ctranslate2", {"model.architecture": "decoder_only"}, "='decoder_only'"),
        ("marian", {"model.architecture": "decoder_only"}, "='decoder_only'"),
        *(("ctranslate2", OPTIONS[option], why) for option, why in REFUSED.items()),
        *(("marian", OPTIONS[option], why) for option, why in _REFUSED_BY_MARIAN.items()),
    ],
)
def test_a_setting_without_a_counterpart_is_refused_by_name(name, fields, why, tmp_path):
    with refused(why):
        write_model(portable(fields), name, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_what_a_network_does_not_read_is_not_refused():
    unread = {"model.rotary_scale": 4.0, "model.rotary_scaling": "ntk"}
    config = Config().replace({**unread, "model.max_positions": 9, "model.dropout_rate": 0.3})
    _refuse("marian", portable({}), config)


@pytest.mark.parametrize(
    ("name", "other"), [("gpt2", "marian"), ("bart", "gpt2"), ("ctranslate2", "gpt2")]
)
def test_another_kind_of_vocabulary_is_refused_by_name(name, other):
    vocabulary = _model(other).vocabulary
    model = dataclasses.replace(_model(name), vocabulary=vocabulary)
    kind = type(vocabulary).__name__
    with pytest.raises(UserError, match=f"cannot hold this model, .* a {kind} in place of a "):
        _refuse(name, model, model.config)


@pytest.mark.thorough
def test_each_value_that_ctranslate2_lists_is_in_a_model_that_it_is_compared_with():
    compared = [portable(OPTIONS[name]).config for name in OPTIONS if name not in REFUSED]
    seen = {(path, value) for config in compared for path, _, value in walk(config)}
    listed = {path: values for path, values in ctranslate2.carried(Config()).items() if values}
    del listed["model.d_v"]  # its values follow from that of d_k
    del listed["decoding.beam_rule"]  # README.md says how the searches differ
    assert {(path, value) for path, values in listed.items() for value in values} <= seen
