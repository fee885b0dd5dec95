"""Every optimiser, with a moving average, on meshes, through checkpoints, and where it is skipped.

One process simulates eight devices for all of them; see `on_eight_devices`.
"""

import json
import tempfile
from functools import partial
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from t2t_jax.config import Config, ModelConfig
from t2t_jax.modules.network import declared_parameters
from t2t_jax.modules.parameters import MatrixBox
from t2t_jax.parallel.mesh import make_mesh, on_host, replicated
from t2t_jax.training.checkpoint import Checkpoints
from t2t_jax.training.objective import LossSums, StepSums
from t2t_jax.training.origin import Identity
from t2t_jax.training.recipe import make_optimizer
from t2t_jax.training.state import abstract_state
from t2t_jax.training.step import update
from t2t_jax.training.step_memory import training_memory
from tests.programs import run_python

OPTIMIZERS = ["adam", "adamw", "lion", "muon"]
ONE = {"parallel.data": 1}
EIGHT = {"parallel.data": 2, "parallel.fsdp": 2, "parallel.tensor": 2}


class EveryKind(nn.Module):
    """A network with a parameter of every kind, of whose optimiser alone something is asked."""

    config: ModelConfig

    @nn.compact
    def __call__(self, batch, *, deterministic):
        for name, shape, axes, kind in (
            ("embedding", (24, 16), ("vocab", "embed"), MatrixBox),
            ("kernel", (3, 16, 32), ("layers", "embed", "mlp"), MatrixBox),
            ("bias", (3, 32), ("layers", "mlp"), nn.LogicallyPartitioned),
            ("scale", (16,), ("vector",), nn.LogicallyPartitioned),
        ):
            self.param(name, partial(_boxed, kind, shape, axes))

    def example(self):
        return None


def _boxed(kind, shape, axes, key):
    return kind(jax.random.normal(key, shape), axes)


def make_config(optimizer, **changes):
    """A small model under an optimiser, with all that the recipe has besides."""
    decay = {} if optimizer == "adam" else {"training.weight_decay": 0.1}
    return Config().replace(
        {
            "model.d_model": 16,
            "model.num_heads": 4,
            "training.optimizer": optimizer,
            "training.schedule": "cosine",
            "training.num_train_steps": 8,
            "training.warmup_steps": 2,
            "training.peak_learning_rate": 0.01,
            "training.clip_gradient_norm": 20.0,
            "training.ema_decay": 0.5,
            **decay,
            **changes,
        }
    )


class Run:
    """A run on a mesh, which takes steps along gradients that are made up."""

    def __init__(self, config):
        self.config, self.mesh = config, make_mesh(config.parallel, jax.devices()[: _size(config)])
        model = EveryKind(config.model)
        self.like = abstract_state(config, model, self.mesh)
        self.places = jax.tree.map(lambda x: x.sharding, self.like)
        optimizer = make_optimizer(config, declared_parameters(model))
        self._update = jax.jit(
            partial(update, config, optimizer),
            in_shardings=(self.places, self.places.params, replicated(self.mesh)),
            out_shardings=(self.places, replicated(self.mesh)),
        )

    def start(self):
        """Parameters that are made up, and a state of zeros, as all of these optimisers begin."""
        zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), self.like)
        params = self._random(1000)
        return jax.device_put(zeros._replace(params=params, ema=params), self.places)

    def steps(self, state, count, scale=1.0):
        for _ in range(count):
            gradients = jax.tree.map(lambda x: scale * x, self._random(int(state.step)))
            state, self.metrics = self._update(
                state, gradients, StepSums(LossSums(*[np.float32(1)] * 3), {})
            )
        return state

    def _random(self, seed):
        rng = np.random.default_rng(seed)
        return jax.tree.map(lambda x: np.float32(rng.normal(size=x.shape)), self.like.params)


def _size(config):
    parallel = config.parallel
    return parallel.data * parallel.fsdp * parallel.tensor


def largest_difference(one, other):
    """The largest difference of two states, each array relative to its largest number."""
    pairs = zip(jax.tree.leaves(on_host(one)), jax.tree.leaves(on_host(other)), strict=True)
    return max(float(np.abs(a - b).max() / (np.abs(a).max() or 1)) for a, b in pairs)


def try_out(optimizer):
    """What the tests below say of an optimiser."""
    one, eight = Run(make_config(optimizer, **ONE)), Run(make_config(optimizer, **EIGHT))
    begun = eight.steps(eight.start(), 2)
    after = eight.steps(begun, 2)
    skipped = eight.steps(begun, 1, scale=np.float32("nan"))
    with tempfile.TemporaryDirectory() as folder:
        with Checkpoints(Path(folder), Identity(eight.config, {})) as checkpoints:
            checkpoints.save(begun)
        with Checkpoints(Path(folder), Identity(one.config, {})) as checkpoints:
            resumed, moved = (checkpoints.restore(run.like) for run in (eight, one))
    kept = jax.tree.leaves((eight.like.optimizer, eight.like.ema))
    split = [x for x in kept if not x.sharding.is_fully_replicated]
    return {
        "resumed": largest_difference(eight.steps(resumed, 2), after),
        "on one device": largest_difference(one.steps(one.start(), 4), after),
        "from eight to one": largest_difference(one.steps(moved, 2), after),
        "skipped": [largest_difference(_kept(skipped), _kept(begun)), int(skipped.nonfinite_total)],
        "split": sum(x.size for x in split) / sum(x.size for x in kept),
        "norm": float(one.metrics.gradient_norm),
    }


def _kept(state):
    return state.params, state.optimizer, state.ema


@pytest.fixture(scope="module")
def tried():
    """What one process with eight devices has found out of every optimiser."""
    done = run_python("-W", "error", __file__, code=0, JAX_NUM_CPU_DEVICES="8", NPROC="64")
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.thorough
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_goes_on_from_a_checkpoint_and_on_other_devices(tried, optimizer):
    found = tried[optimizer]
    assert found["resumed"] == 0
    assert found["on one device"] < 1e-4
    assert found["from eight to one"] < 1e-4
    assert found["skipped"] == [0, 1]
    assert found["split"] > 0.8  # all but short vectors and counts
    assert found["norm"] > 20  # that of the gradient before it is clipped


_LEARNED = {"share_embeddings": False, "position": "learned", "norm_order": "pre", "d_k": 3}
_LATER = {
    "share_embeddings": False,
    "share_target_embedding": True,
    "position": "relative_bias",
    "norm": "rms",
    "num_kv_heads": 1,
    "attention_bias": True,
    "query_key_norm": True,
    "feed_forward": "swiglu",
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("variant", "ema_decay"), [(_LEARNED, None), (_LATER, 0.9)])
def test_the_memory_of_a_state_is_that_of_its_arrays(tiny, optimizer, variant, ema_decay):
    options = {f"model__{name}": value for name, value in variant.items()}
    run = tiny.changed(training__optimizer=optimizer, training__ema_decay=ema_decay, **options)
    state = abstract_state(run.config, run.model, run.mesh)
    arrays = [x for x in jax.tree.leaves(state) if x.shape]  # no counts
    assert training_memory(run.config, 13).state == sum(4 * x.size for x in arrays)


def test_a_default_state_has_the_moments_of_adam_and_no_moving_average(tiny):
    state = abstract_state(*tiny)
    assert state.ema is None
    assert state.evaluated is state.params
    assert type(state.optimizer).__name__ == "ScaleByAdamState"


def test_parameters_declared_in_boxes_make_a_state_in_boxes(tiny):
    for optimizer in OPTIMIZERS:
        config = tiny.changed(training__optimizer=optimizer).config
        declared = declared_parameters(tiny.model)
        init = make_optimizer(config, declared).init
        boxed = jax.eval_shape(init, declared)
        plain = jax.eval_shape(init, nn.unbox(declared))
        assert jax.tree.structure(nn.unbox(boxed)) == jax.tree.structure(plain)
        for spec, x in zip(
            jax.tree.leaves(nn.get_partition_spec(boxed), is_leaf=lambda x: isinstance(x, P)),
            jax.tree.leaves(plain),
            strict=True,
        ):
            assert len(spec) == len(x.shape)


if __name__ == "__main__":
    print(json.dumps({optimizer: try_out(optimizer) for optimizer in OPTIMIZERS}))
