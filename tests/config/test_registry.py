"""Parts with parameters that a file, a notebook or a plugin registers under a name."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import optax
import pytest

import t2t_jax
from t2t_jax import Config, UserError, product
from t2t_jax.config.config import differences
from t2t_jax.config.registered import check_registered_parts, registered_parts, with_parts
from t2t_jax.config.registry import REGISTRIES, reading_stored_config
from t2t_jax.config.schedules import SCHEDULES
from t2t_jax.config.tables import LOSSES, OPTIMIZERS, POSITIONS
from tests.programs import run_cell
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("tables")

_CELL = """
import t2t_jax
from dataclasses import dataclass

@t2t_jax.register("schedule")
@dataclass(frozen=True)
class StepDecay:
    '''The rate falls at each boundary.'''
    boundaries: tuple[int, ...] = (10, 20)
    factor: float = 0.5

    def __call__(self, step):
        return self.factor ** sum(step > boundary for boundary in self.boundaries)
"""


def test_a_config_names_a_part_with_its_parameters():
    step_decay = run_cell(_CELL)["StepDecay"]
    texts = ["step_decay(factor=0.3)", "step_decay( factor = 0.3, boundaries=[10, 20])"]
    for value in (*texts, step_decay(factor=0.3)):
        config = Config().replace({"training.schedule": value})
        assert config.training.schedule == "step_decay(factor=0.3)"
        assert SCHEDULES[config.training.schedule].rate(15) == 0.3
        assert Config.from_json(config.to_json()) == config
    defaults = config.replace({"training.schedule.factor": 0.5})
    assert defaults.training.schedule == "step_decay"
    assert differences(defaults, config) == {
        "training.schedule": ("step_decay", "step_decay(factor=0.3)")
    }
    grid = product(defaults, {"training.schedule.factor": [0.1, 0.2]})
    assert {name: cell.training.schedule for name, cell in grid.items()} == {
        "factor=0.1": "step_decay(factor=0.1)",
        "factor=0.2": "step_decay(factor=0.2)",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step_decay(facto=1.0)", "'step_decay' has no parameter 'facto'; did you mean factor?"),
        ("step_decay(factor='x')", "factor of schedule 'step_decay'='x' is a str, expected float"),
        ("step_decay(boundaries=(1, 'x'))", "an item of boundaries of schedule 'step_decay'='x'"),
        ("step_decay(0.3)", "is not NAME or NAME(field=value, ...) with plain values"),
        ("step_decay(factor=open('x'))", "with plain values"),
        ("step_decay(factor=0.3", "with plain values"),
        ("step_dekay", "did you mean step_decay? A new name must be registered first"),
        ("cosine(period=3)", "schedule 'cosine' has no parameter 'period'; it has none"),
        ("wsd(decay_fraction=2)", "'wsd' refuses its parameters: decay_fraction=2.0 is outside"),
    ],
)
def test_a_wrong_parameter_is_refused_by_its_name(text, message):
    run_cell(_CELL)
    with refused(message):
        Config().replace({"training.schedule": text})


def test_a_cell_runs_again_and_another_text_needs_replace():
    first = run_cell(_CELL)
    again = _CELL.replace("falls", "drops")  # in the docstring, on lines that moved
    run_cell(f"\n\n{again}", first)
    other = _CELL.replace("step > boundary", "step >= boundary")
    with pytest.raises(UserError, match="already registered with another definition; register it"):
        run_cell(other, first)
    config = Config().replace({"training.schedule": first["StepDecay"](factor=0.3)})
    assert config.training.schedule == "step_decay(factor=0.3)"
    assert SCHEDULES["step_decay"].rate(10) == 1
    run_cell(other.replace('"schedule")', '"schedule", replace=True)'), first)
    assert SCHEDULES["step_decay"].rate(10) == 0.5


@pytest.mark.parametrize(
    ("kind", "part", "message"),
    [
        ("schedules", print, "kind='schedules' is not one of"),
        ("schedule", 3, "schedule 'mine' cannot be called with (step): 3 is not a callable"),
        ("schedule", lambda: 1, "too many positional arguments"),
        ("optimizer", lambda params, state: 1, "(training): missing a required argument: 'state'"),
        ("position", lambda x: x, "the method bias(distances, num_heads, causal, **learned)"),
        ("position", SimpleNamespace(bias=lambda distances: 0), "give bias(distances, num_heads, "),
        ("measure", lambda hypotheses: 0, "that returns a score per sentence"),
        ("activation", 3.0, "activation 'mine' is a float; register a function"),
        ("task", "translation", "task 'mine' is a str, not a TaskFacts"),
        ("family", object, "is a class that is not a frozen dataclass"),
        ("schedule", dataclass(type("A", (), {})), "write @dataclass(frozen=True) above the class"),
    ],
)
def test_a_part_of_a_wrong_form_is_refused_when_it_is_registered(kind, part, message):
    with refused(message):
        t2t_jax.register(kind, "mine")(part)


def test_a_parameter_that_a_config_cannot_store_is_refused():
    with pytest.raises(UserError, match="a parameter table: dict, which a config cannot store"):
        run_cell(_CELL.replace("factor: float = 0.5", "table: dict = None"))


def test_parts_that_a_program_gives_are_registered_by_their_names():
    def warm(step):
        return 0.1

    parts = {
        "training.schedule": warm,
        "training.optimizer": optax.scale_by_sign(),
        "training.loss": lambda apply, batch, key: (0.0, 1.0),
    }
    config = with_parts(Config(), {**parts, "data.task": None})
    training = config.training
    names = ["warm", "own_optimizer", "own_loss"]
    assert [training.schedule, training.optimizer, training.loss] == names
    assert OPTIMIZERS["own_optimizer"].make(None, None) is parts["training.optimizer"]
    assert LOSSES["own_loss"].function is parts["training.loss"]
    assert registered_parts(config).keys() == {"schedule", "optimizer", "loss"}
    assert with_parts(Config(), {"training.schedule": "cosine"}).training.schedule == "cosine"
    decay = run_cell(_CELL.replace('@t2t_jax.register("schedule")', ""))["StepDecay"](factor=0.2)
    config = with_parts(Config(), {"training.schedule": decay})
    assert config.training.schedule == "step_decay(factor=0.2)"


def test_a_stored_config_may_name_parts_that_only_train():
    text = Config().to_json().replace('"inverse_sqrt"', '"lost(x=1)"').replace('"adam"', '"gone"')
    with reading_stored_config():
        config = Config.from_json(text)
    assert config.training.schedule == "lost(x=1)"
    assert config.training.schedule_end is None
    assert config.replace({"decoding.beam_size": 1}).training == config.training
    assert config.replace({"training.seed": 1}).training.schedule == "lost(x=1)"
    with refused("training.optimizer='gone' is not one of"):
        check_registered_parts(config)
    with refused("training.schedule='lost(x=1)' is not one of"):
        config.replace({"training.schedule.x": 2})
    with reading_stored_config(), refused("model.norm='gone' is not one of"):
        Config.from_json(Config().to_json().replace('"layer"', '"gone"'))


def test_a_stored_run_with_adafactor_can_be_loaded_but_not_trained():
    stored = Config().to_json().replace('"adam"', '"adafactor"')
    with reading_stored_config():
        assert Config.from_json(stored).training.optimizer == "adafactor"
    with refused("training.optimizer='adafactor': version 0.3 removed its own Adafactor, as train"):
        Config.from_json(stored)


def test_a_stored_decay_fraction_is_a_parameter_of_its_schedule():
    stored = Config().to_json()
    stored = stored.replace('"training": {', '"training": {"decay_fraction": 0.4,')
    assert Config.from_json(stored) == Config()
    config = Config.from_json(stored.replace('"inverse_sqrt"', '"wsd"'))
    assert config.training.schedule == "wsd(decay_fraction=0.4)"
    with refused("training.decay_fraction is a parameter of training.schedule='wsd' since version"):
        Config().replace({"training.decay_fraction": 0.4})


def test_a_position_scheme_is_a_function_or_a_class_with_a_bias():
    t2t_jax.register("position", "zeros")(lambda positions, d_model: np.zeros((positions, d_model)))
    assert POSITIONS["zeros"].sinusoids(3, 4).shape == (3, 4)

    @t2t_jax.register("position")
    @dataclass(frozen=True)
    class Near:
        slope: float = 1.0

        def bias(self, distances, num_heads, causal):
            return -self.slope * abs(distances)[None]

    bias = POSITIONS["near(slope=2.0)"].bias(np.array([[3]]), num_heads=1, causal=True)
    assert bias.tolist() == [[[-6]]]


def test_every_kind_of_the_table_of_plugins_can_be_registered():
    fields = {registry._plugin_field for registry in REGISTRIES.values()}
    assert fields == {
        *("activations", "normalizations", "attentions", "positions", "schedules", "optimizers"),
        *("losses", "measures", "tasks", "families"),
    }


def test_objects_and_texts_of_equal_parameters_are_one_config():
    step_decay = run_cell(_CELL)["StepDecay"]
    objects = step_decay(factor=1), step_decay(factor=np.float32(1)), step_decay([10, 20], 1.0)
    configs = {Config().replace({"training.schedule": part}) for part in objects}
    assert configs == {Config().replace({"training.schedule": "step_decay(factor=1)"})}
    changes = {"training.schedule.factor": 0.3, "training.schedule": step_decay()}  # in any order
    assert Config().replace(changes).training.schedule == "step_decay(factor=0.3)"


def test_what_a_part_encloses_is_part_of_its_definition():
    def scaled(factor):
        return lambda step: factor * step

    t2t_jax.register("schedule", "mine")(scaled(1))
    t2t_jax.register("schedule", "mine")(scaled(1))
    t2t_jax.register("optimizer", "mine")(optax.adamw(1e-3))
    t2t_jax.register("optimizer", "mine")(optax.adamw(1e-3))
    for kind, part in (("schedule", scaled(2)), ("optimizer", optax.adamw(1e-2))):
        with refused("already registered with another definition"):
            t2t_jax.register(kind, "mine")(part)
