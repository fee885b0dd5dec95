"""Train a case by this package, as `t2t_jax.run.trainer` does."""

from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from t2t_jax.batch import Batch
from t2t_jax.config import Config
from t2t_jax.data.rows import Placement, fill_rows, offsets_of
from t2t_jax.modules.models import make_model
from t2t_jax.parallel.mesh import batch_layout, make_mesh
from t2t_jax.training.settling import settled
from t2t_jax.training.state import TrainState, abstract_state
from t2t_jax.training.step import compile_train_step
from tests.against.part import Case
from tests.against.training.part import LONGEST, Result, results, sentences

_FIXED = {
    "model.dropout_rate": 0.0,
    "model.max_positions": 2 * LONGEST,
    "data.max_length": 2 * LONGEST - 1,
    "decoding.max_extra_length": 1,
    "training.num_train_steps": 50,
}


def in_rows(pairs: list[tuple[list[int], list[int]]], in_a_row: int) -> Batch:
    """Return a batch in which so many pairs share a row."""
    numbers = np.arange(len(pairs))
    placement = Placement(numbers, numbers // in_a_row, numbers % in_a_row + 1)
    shape = -(-len(pairs) // in_a_row), in_a_row * LONGEST

    def side(texts: tuple[list[int], ...]) -> Any:
        lengths = np.array([len(text) for text in texts])
        return fill_rows(np.concatenate(texts), offsets_of(lengths), placement, shape)

    return Batch(*map(side, zip(*pairs, strict=True)))


def first_state(abstract: TrainState, folder: str) -> TrainState:
    """Return the state before the first step, with the parameters that PyTorch wrote.

    All the rest begins as 0; to draw parameters would have to be compiled.
    """
    with np.load(f"{folder}/parameters.npz") as arrays:
        written = unflatten_dict(dict(arrays), sep="/")
    state = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), abstract)
    params = jax.tree.map(lambda zeros, x: x.astype(zeros.dtype), state.params, written)
    assert jax.tree.map(np.shape, params) == jax.tree.map(np.shape, state.params)
    shardings = jax.tree.map(lambda x: x.sharding, abstract)
    return jax.device_put(state._replace(params=params), shardings)


def by_name(tree: Any, factor: float = 1.0) -> Result:
    """Return the arrays of a tree, times a factor."""
    arrays = flatten_dict(tree, sep="/").items()
    return {name: factor * np.array(array, np.float64) for name, array in arrays}


def train(case: Case, folder: str) -> Result:
    """Return the losses of a case, its first gradients, and its first and last parameters."""
    dtype = "bfloat16" if case["dtype"] == "bfloat16" else "float32"
    fields = {name: value for name, value in case.items() if "." in name}
    fields["training.optimizer"] = "adamw" if case["training.weight_decay"] else "adam"
    config = Config().replace(_FIXED | fields | {"model.compute_dtype": dtype})
    mesh = make_mesh(config.parallel, jax.devices())
    config = settled(config, mesh)
    model = make_model(config, case["vocabulary"], mesh)
    state = first_state(abstract_state(config, model, mesh), folder)
    step = compile_train_step(config, model, mesh)
    logged = []
    for number, pairs in enumerate(sentences(case), 1):
        batch = in_rows(pairs, case["pairs_in_a_row"])
        rows, length = batch.inputs.tokens.shape
        layout = batch_layout(mesh, rows, length, config.parallel.pass_tokens)
        state, metrics = step(state, layout.put(batch))
        loss, nll, tokens = (float(total) for total in metrics.losses)
        rest = float(metrics.gradient_norm), float(metrics.learning_rate)
        logged.append((loss / tokens, nll / tokens, tokens, *rest))
        if number == 1:
            gradient = by_name(state.optimizer.mu, 1 / (1 - config.training.adam_beta1))
            first = by_name(state.params)
    last, average = by_name(state.params), by_name(state.ema)
    return results(logged, gradient=gradient, first=first, last=last, average=average)
