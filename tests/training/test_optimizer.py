"""Optimisers against PyTorch's Adam, and against references in NumPy."""

from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t2t_jax.config import Config, ParallelConfig, TrainingConfig, network_config
from t2t_jax.config.cost import num_parameters
from t2t_jax.modules.network import declared_parameters
from t2t_jax.modules.parameters import MatrixBox, is_matrix_of_layers, map_boxes
from t2t_jax.modules.transformer import Transformer
from t2t_jax.parallel.axes import abstract_arrays
from t2t_jax.parallel.mesh import make_mesh
from t2t_jax.training.optimizer import from_optax, orthogonalized
from t2t_jax.training.recipe import clipped, make_optimizer, moving_average
from t2t_jax.training.schedule import learning_rate

GOLDENS = np.load(Path(__file__).parents[1] / "goldens" / "transformer.npz")
OPTIMIZERS = ["adam", "adamw", "lion", "muon"]
STEPS = 3


def _declared():
    """Parameters of every kind: three layers, more than their matrices have rows."""
    boxes = {
        ("embedding", "embedding"): MatrixBox((7, 4), ("vocab", "embed"), grows=False),
        ("position", "embedding"): nn.LogicallyPartitioned((6, 4), ("positions", "embed")),
        ("layers", "kernel"): MatrixBox((3, 2, 4), ("layers", "embed", "mlp")),
        ("layers", "bias"): nn.LogicallyPartitioned((3, 4), ("layers", "mlp")),
        ("norm", "scale"): nn.LogicallyPartitioned((4,), ("vector",)),
    }
    tree = {}
    for (module, name), box in boxes.items():
        shape = jax.ShapeDtypeStruct(box.value, jnp.float32)
        tree.setdefault(module, {})[name] = box.replace(value=shape)
    return tree


def _random(seed, scale=1.0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: jnp.float32(scale * rng.normal(size=x.shape)), nn.unbox(_declared())
    )


PARAMS = _random(0)
GRADIENTS = [_random(1, 10.0), _random(2, 0.1), _random(3, 1.0)]


def _keep_new(new, old):
    return new


def _directions(training, **model):
    """The directions of some steps, by parameter."""
    config = Config(model=network_config(**model), training=training)
    optimizer = make_optimizer(config, _declared())

    @jax.jit
    def direction(gradients, state):
        return optimizer.update(gradients, state, PARAMS, _keep_new)

    state, found = nn.unbox(optimizer.init(PARAMS)), []
    for gradients in GRADIENTS:
        one, state = direction(gradients, state)
        found.append(one)
    return _by_name(found)


def _by_name(trees):
    names = [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, _ in jax.tree.leaves_with_path(PARAMS)
    ]
    rows = zip(*map(jax.tree.leaves, trees), strict=True)
    return dict(zip(names, map(list, rows), strict=True))


_EXACT = {name: [*map(np.float64, arrays)] for name, arrays in _by_name(GRADIENTS).items()}


def _adam(gradients, _, beta1=0.9, beta2=0.98, epsilon=1e-9):
    mean = square = 0.0
    for n, g in enumerate(gradients, start=1):
        mean = beta1 * mean + (1 - beta1) * g
        square = beta2 * square + (1 - beta2) * g**2
        yield (mean / (1 - beta1**n)) / (np.sqrt(square / (1 - beta2**n)) + epsilon)


def _lion(gradients, _, beta1=0.9, beta2=0.98):
    momentum = 0.0
    for g in gradients:
        yield np.sign(beta1 * momentum + (1 - beta1) * g)
        momentum = beta2 * momentum + (1 - beta2) * g


def _newton_schulz(x):
    if len(x) > x.shape[1]:
        return _newton_schulz(x.T).T
    x = x / np.linalg.norm(x)
    for _ in range(5):
        squared = x @ x.T
        x = 3.4445 * x + (-4.7750 * squared + 2.0315 * squared @ squared) @ x
    return x


def _muon(gradients, name):
    if name != "layers/kernel":
        yield from _adam(gradients, name)
        return
    momentum = 0.0
    for n, g in enumerate(gradients, start=1):
        momentum = 0.95 * momentum + 0.05 * g
        ahead = 0.95 * momentum / (1 - 0.95 ** (n + 1)) + 0.05 * g / (1 - 0.95**n)
        yield 0.2 * np.sqrt(4) * np.stack([_newton_schulz(one) for one in ahead])


_REFERENCES = {"adam": _adam, "adamw": _adam, "lion": _lion, "muon": _muon}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_directions_equal_a_reference_in_numpy(name):
    config = TrainingConfig(optimizer=name)
    for parameter, found in _directions(config).items():
        expected = [*_REFERENCES[name](_EXACT[parameter], parameter)]
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-5, err_msg=parameter)


def test_directions_keep_their_digits_with_decays_near_1():
    for parameter, found in _directions(
        TrainingConfig(adam_beta1=0.9999, adam_beta2=0.999999)
    ).items():
        expected = [*_adam(_EXACT[parameter], parameter, 0.9999, 0.999999)]
        np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=parameter)


@pytest.mark.parametrize("name", ["adamw", "lion", "muon"])
def test_updates_of_a_wider_and_deeper_network_are_those_of_its_base_by_the_rules(name):
    sizes = {"d_model": 32, "d_k": 64, "base_width": 8, "base_depth": 2}
    training = TrainingConfig(optimizer=name, adam_epsilon=0.5, weight_decay=0.25)
    # Four times as wide; half as much by the root.
    rates = {"layers/kernel": 1 / 2 if name == "muon" else 1 / 4}
    directions = _directions(training, parametrisation="complete", norm_order="pre", **sizes)
    for parameter, found in directions.items():
        of_adam = name == "adamw" or (name == "muon" and parameter != "layers/kernel")
        depth = 3 / 2 if parameter.startswith("layers") else 1
        epsilon = {"epsilon": 0.5 / 4 / depth} if of_adam else {}
        rule = _adam if of_adam else _REFERENCES[name]
        decay = 0.25 * PARAMS["layers"]["kernel"] if parameter == "layers/kernel" else 0
        scale = rates.get(parameter, 1)
        expected = [scale * one + decay for one in rule(_EXACT[parameter], parameter, **epsilon)]
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-5, err_msg=parameter)


def test_an_update_of_muon_changes_the_outputs_of_a_wider_network_as_much():
    """The condition of Yang et al. 2023 on the largest singular values: sqrt(rows / columns)."""
    largest = []
    for width in (8, 32):
        model = network_config(d_model=width, d_k=64, parametrisation="mup", base_width=8)
        config = Config(model=model, training=TrainingConfig(optimizer="muon"))
        kernel = np.random.default_rng(0).normal(size=(1, width, 4 * width)).astype(np.float32)
        box = {"kernel": MatrixBox(kernel, ("layers", "embed", "mlp"))}
        optimizer = make_optimizer(config, box)
        state, params = nn.unbox(optimizer.init(nn.unbox(box))), {"kernel": kernel}
        step, _ = optimizer.update(params, state, params, _keep_new)
        largest.append(np.linalg.norm(step["kernel"][0], 2))
    assert largest[0] == pytest.approx(largest[1], rel=0.25)  # singular values are from 0.7 to 1.2


@pytest.mark.parametrize("name", OPTIMIZERS[1:])
def test_weight_decay_takes_a_share_of_matrices_of_layers_and_of_nothing_else(name):
    plain = _directions(TrainingConfig(optimizer=name))
    decayed = _directions(TrainingConfig(optimizer=name, weight_decay=0.25))
    for parameter, found in decayed.items():
        taken = 0.25 * PARAMS["layers"]["kernel"] if parameter == "layers/kernel" else 0.0
        expected = [one + taken for one in plain[parameter]]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_the_matrices_of_layers_of_a_transformer_are_its_kernels():
    options = {"share_embeddings": False, "position": "learned", "norm_order": "pre"}
    model = network_config(d_model=16, num_heads=2, d_ff=32, max_positions=50, **options)
    declared = declared_parameters(Transformer(model, 30, 1))
    found = map_boxes(is_matrix_of_layers, declared)
    sizes = jax.tree.map(lambda x: x.size, nn.unbox(declared))
    for path, chosen in jax.tree.leaves_with_path(found):
        name = jax.tree_util.keystr(path)
        assert chosen == ("kernel" in name), name
    assert sum(jax.tree.leaves(sizes)) == num_parameters(model, 30)


def test_muon_brings_the_singular_values_of_each_layer_near_1_and_keeps_its_directions():
    rng = np.random.default_rng(0)
    scales = np.array([1e-6, 1.0, 1e4])[:, None, None]
    for shape in ((3, 8, 24), (3, 24, 8)):
        x = jnp.float32(rng.normal(size=shape) * scales)
        found = np.float64(orthogonalized(x))
        values = np.linalg.svd(found, compute_uv=False)
        assert ((values > 0.6) & (values < 1.3)).all()
        for one, matrix in zip(found, x, strict=True):
            left, _, right = np.linalg.svd(matrix, full_matrices=False)
            core = left.T @ one @ right.T  # diagonal in the singular vectors of the matrix
            np.testing.assert_allclose(core - np.diag(np.diag(core)), 0, atol=1e-4)


def test_adam_under_the_schedule_equals_pytorch():
    optimizer = make_optimizer(Config(), {})
    parameters = {"all": GOLDENS["adam/parameters"][0]}
    state = optimizer.init(parameters)
    for step, gradients in enumerate(GOLDENS["adam/gradients"], start=1):
        rate = learning_rate(step, int(GOLDENS["adam/d_model"]), int(GOLDENS["adam/warmup_steps"]))
        np.testing.assert_allclose(rate, GOLDENS["adam/learning_rates"][step - 1], rtol=1e-6)
        direction, state = optimizer.update({"all": gradients}, state, parameters, _keep_new)
        parameters = {"all": parameters["all"] - rate * direction["all"]}
        np.testing.assert_allclose(parameters["all"], GOLDENS["adam/parameters"][step], atol=1e-6)


@pytest.mark.parametrize("theirs", [optax.adafactor, optax.contrib.muon, optax.contrib.prodigy])
def test_any_transformation_of_optax_runs_with_its_moments_split_like_parameters(theirs):
    ours, theirs = from_optax(theirs(0.1)), theirs(0.1)
    declared = abstract_arrays(make_mesh(ParallelConfig()), jax.eval_shape(ours.init, _declared()))
    split = {x.shape: any(x.sharding.spec) for x in jax.tree.leaves(declared) if x.ndim > 1}
    assert split == {(7, 4): True, (6, 4): True, (3, 2, 4): True, (3, 4): True}
    directions, state = ours.update(GRADIENTS[0], ours.init(PARAMS), PARAMS, _keep_new)
    assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, declared)
    expected, _ = theirs.update(GRADIENTS[0], theirs.init(PARAMS), PARAMS)
    jax.tree.map(np.testing.assert_array_equal, directions, expected)


def test_a_gradient_that_is_too_long_is_scaled_to_the_norm_that_is_allowed():
    gradients = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([[4.0]])}  # of norm 5
    same = clipped(TrainingConfig(clip_gradient_norm=5.5), gradients)
    jax.tree.map(np.testing.assert_array_equal, same, gradients)
    assert clipped(TrainingConfig(), gradients) is gradients
    short = clipped(TrainingConfig(clip_gradient_norm=2.5), gradients)
    jax.tree.map(np.testing.assert_allclose, short, {"a": [1.5, 0.0], "b": [[2.0]]})


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.9999])
def test_a_moving_average_has_the_weights_of_its_formula(decay):
    values = np.random.default_rng(0).normal(size=(20, 3))
    average = {"kernel": jnp.full(3, 100.0)}  # before the first update, of no weight
    for n in range(1, 21):
        average = moving_average(decay, average, {"kernel": values[n - 1]}, jnp.int32(n))
        weights = (1 - decay) * decay ** np.arange(n - 1, -1, -1.0) / (1 - decay**n)
        assert weights.sum() == pytest.approx(1)
        np.testing.assert_allclose(average["kernel"], weights @ values[:n], rtol=2e-4, atol=1e-4)
