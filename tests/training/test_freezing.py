"""Frozen parameters stay as they are, and cost nothing."""

from functools import partial

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from t2t_jax import Config, UserError
from t2t_jax.batch import Batch, Sequence
from t2t_jax.modules.models import make_model
from t2t_jax.training.state import init_state
from t2t_jax.training.step import train_step
from tests.tiny import tiny_sizes

_VOCAB = 20
_CONFIG = Config().replace({**tiny_sizes(8, (2, 1)), "training.warmup_steps": 1})


def _batch():
    """One pass of three rows."""
    tokens = np.random.default_rng(0).integers(4, _VOCAB, (1, 3, 6), dtype=np.int32)
    positions = np.broadcast_to(np.arange(6, dtype=np.int32), tokens.shape)
    return Batch(*[Sequence(tokens, np.ones_like(tokens), positions)] * 2)


def _step(fields):
    config = _CONFIG.replace(fields)
    model = make_model(config, _VOCAB, None)
    state = jax.jit(partial(init_state, config, model))()
    return jax.jit(partial(train_step, config, model)), state


@pytest.mark.thorough
@pytest.mark.parametrize(
    "recipe",
    [
        {"training.optimizer": "adamw", "training.weight_decay": 0.1, "training.ema_decay": 0.9},
        pytest.param({"training.optimizer": "muon"}, marks=pytest.mark.slow),
    ],
)
def test_the_others_take_the_step_that_they_would_take_anyway(recipe):
    frozen = ("embedding", "encoder/*/query")
    both = [_step({**recipe, "training.freeze": names}) for names in ((), frozen)]
    (free, _), (held, _) = (step(state, _batch()) for step, state in both)
    before, after = flatten_dict(both[1][1].params, sep="/"), flatten_dict(held.params, sep="/")
    expected = flatten_dict(free.params, sep="/")
    still = {"embedding/embedding", "encoder/layers/self_attention/query/kernel"}
    for path, array in after.items():
        if path in still:
            np.testing.assert_array_equal(array, before[path])
            assert not np.array_equal(array, expected[path])
        else:
            np.testing.assert_allclose(array, expected[path], rtol=1e-5, atol=1e-6)
            assert not np.array_equal(array, before[path])


@pytest.mark.thorough
def test_they_cost_no_gradient_and_no_memory_of_the_optimiser():
    (free, whole), (held, part) = (
        _step({"training.freeze": names}) for names in ((), ("embedding", "encoder"))
    )
    operations = [
        step.lower(state, _batch()).compile().cost_analysis()["flops"]
        for step, state in ((free, whole), (held, part))
    ]
    assert operations[1] < 0.75 * operations[0]
    moments = [sum(x.size for x in jax.tree.leaves(state.optimizer)) for state in (whole, part)]
    fixed = sum(x.size for x in jax.tree.leaves([part.params["embedding"], part.params["encoder"]]))
    assert moments[0] - moments[1] == 2 * fixed


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("encodr",), "training.freeze='encodr' matches no parameter of this model; its"),
        (("*",), "leaves no parameter to train"),
    ],
)
def test_what_freezes_nothing_or_everything_is_refused(names, message):
    with pytest.raises(UserError) as refusal:
        _step({"training.freeze": names})
    assert message in str(refusal.value)
