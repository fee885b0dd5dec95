"""Each family of networks has fields of its own, and older configs had those of all."""

import dataclasses

import pytest

from t2t_jax.commands.groups import wrong_command
from t2t_jax.commands.train import train_command
from t2t_jax.config import Config, differences, from_dict, network_config, to_dict
from t2t_jax.config.config import known_fields
from t2t_jax.config.families import FAMILIES, EncoderAndDecoder, all_model_fields, fields_of
from t2t_jax.config.tasks import TASKS
from t2t_jax.errors import UserError

_TASKS = {
    "encoder_only": {"data.task": "masked_language_modelling"},
    "image_encoder": {"data.task": "image_classification", "data.corpus": "digits:"},
}


def _of(family):
    return Config().replace({"model.architecture": family, **_TASKS.get(family, {})})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_field_of_another_family_cannot_be_written(family):
    config = _of(family)
    assert type(config.model) is FAMILIES[family].config
    others = all_model_fields().keys() - fields_of(family).keys()
    assert others
    for name in others:
        value = all_model_fields()[name].default
        refusals = []
        for write in (
            lambda name=name, value=value: config.replace({f"model.{name}": value}),
            lambda name=name, value=value: network_config(family, **{name: value}),
        ):
            with pytest.raises(UserError, match=f"model.{name} is for model.architecture=") as one:
                write()
            refusals.append(str(one.value))
        assert len(set(refusals)) == 1
        assert refusals[0].endswith(
            f"not for {family!r}; leave it out, or change model.architecture"
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_of_each_family_is_read_back(family):
    config = _of(family)
    assert Config.from_json(config.to_json()) == config


def test_a_saved_config_with_a_field_of_another_family_is_refused():
    saved = to_dict(Config())
    saved["model"]["prefix_attention"] = True
    with pytest.raises(UserError, match=r"prefix_attention is for .*'decoder_only', not for 'enc"):
        from_dict(saved)
    saved["model"]["architecture"] = "decoder"
    with pytest.raises(UserError, match=r"not one of 'encoder_decoder', .*did you mean decoder_"):
        from_dict(saved)


def test_a_change_of_family_keeps_the_fields_that_both_have():
    base = Config().replace({"model.d_ff": 64, "model.num_decoder_layers": 3})
    changes = {"model.architecture": "decoder_only", "model.prefix_attention": True}
    other = base.replace(changes | {"model.decoder_heads": 2})
    assert (other.model.d_ff, other.model.num_decoder_layers) == (64, 3)
    assert other.value("model.num_encoder_layers") is None
    assert differences(base, other) == {
        "model.architecture": ("encoder_decoder", "decoder_only"),
        "model.decoder_heads": (None, 2),
        "model.prefix_attention": (None, True),
    }
    assert differences(other, base) == {
        "model.architecture": ("decoder_only", "encoder_decoder"),
        "model.decoder_heads": (2, None),
    }


def test_flags_are_those_of_the_family_that_a_flag_names():
    arguments = ["--config", "configs/base.py", "--workdir", "runs/x"]
    prefix = "--model.prefix-attention", "True"
    decoder = train_command([*arguments, "--model.architecture", "decoder_only", *prefix])
    assert decoder.fields.model.prefix_attention
    with pytest.raises(UserError, match=r"prefix_attention is for .*='decoder_only', not for 'enc"):
        train_command([*arguments, *prefix])
    with pytest.raises(UserError, match="did you mean decoder_only"):
        train_command([*arguments, "--model.architecture=decoder_onyl"])
    with pytest.raises(UserError, match=r"unknown flag --model\.prefix; "):
        train_command([*arguments, "--model.prefix", "True"])


def test_every_family_names_classes_that_exist_and_every_field_has_one_meaning():
    for name in known_fields():
        section, _, field = name.partition(".")
        if section == "model" and field != "architecture":
            owners = [fields_of(family)[field] for family in FAMILIES if field in fields_of(family)]
            assert len({(one.type, one.default) for one in owners}) == 1, name


@pytest.mark.parametrize("family", FAMILIES)
def test_only_a_table_of_positions_bounds_a_sentence(family):
    endless = network_config(family, position="rotary")
    assert endless.longest_sentence == float("inf")
    shares = 2 if family == "decoder_only" else 1  # source and target are one sequence
    table = network_config(family, position="learned")
    assert table.longest_sentence == table.num_positions // shares


@dataclasses.dataclass(frozen=True)
class _Listener(EncoderAndDecoder):
    """A network with a decoder over sources that are no tokens."""

    architecture: str = "listener"

    @property
    def embeddings(self):
        return {"target": "embedding", "output": "embedding"}


def test_learned_positions_cover_the_outputs_of_a_network_that_reads_no_tokens():
    short = _Listener(position="learned", max_positions=305)
    with pytest.raises(UserError, match=r"raise model\.max_positions to 306"):
        _unchecked(short)


def _unchecked(model):
    """A config of a network that the task of translation takes only because this says so."""
    facts = dataclasses.replace(TASKS["translation"], architectures=(model.architecture,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TASKS, "translation", facts)
        return Config(model=model)


def test_a_command_for_other_models_names_one_even_where_none_of_its_group_fits():
    facts = dataclasses.replace(TASKS["translation"], commands=("score",))
    refusal = wrong_command("translate", "runs/a is a listener", facts)
    assert str(refusal).startswith("runs/a is a listener, and t2t-jax translate is not for such")
    assert "; use t2t-jax " in str(refusal)
