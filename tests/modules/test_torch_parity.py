"""Parity with PyTorch's own Transformer; see `tests/goldens/make_transformer_goldens.py`."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax import Context, LayerStack
from t2t_jax.config import network_config
from t2t_jax.functional.masks import causal_mask, segment_mask
from tests.selection import thorough_after
from tests.tiny import tiny_fields

_PATH = Path(__file__).parents[1] / "goldens" / "transformer.npz"


@pytest.fixture(scope="module")
def goldens():
    with np.load(_PATH) as arrays:
        return dict(arrays)


def _subtree(goldens, prefix):
    """`{"encoder": {"layers": ...}}` of the arrays whose names start with `prefix`."""
    tree = {}
    for name, array in goldens.items():
        if name.startswith(prefix):
            *path, leaf = name.removeprefix(prefix).split("/")
            node = tree
            for part in path:
                node = node.setdefault(part, {})
            node[leaf] = jnp.array(array)
    return tree


def _context(segments, mask, **source):
    return Context(jnp.zeros_like(segments), segments.shape[1], mask, **source)


@pytest.mark.parametrize("norm_order", thorough_after(1, ["post", "pre"]))
def test_stacks_and_their_gradients_equal_those_of_pytorch(goldens, norm_order):
    config = network_config(**tiny_fields(8, (2, 2)), norm_order=norm_order, dropout_rate=0.0)
    weights = _subtree(goldens, "weights/")
    if norm_order == "post":
        weights = {stack: {"layers": weights[stack]["layers"]} for stack in weights}
    inputs = _subtree(goldens, "inputs/")
    source_segments, target_segments = inputs["source_segments"], inputs["target_segments"]

    def run(weights, source, target):
        encoded = LayerStack(config, config.stacks[0]).apply(
            {"params": weights["encoder"]},
            source,
            _context(source_segments, segment_mask(source_segments, source_segments)),
        )
        decoded = LayerStack(config, config.stacks[1]).apply(
            {"params": weights["decoder"]},
            target,
            _context(
                target_segments,
                segment_mask(target_segments, target_segments) & causal_mask(target.shape[1]),
                encoded=encoded,
                encoded_mask=segment_mask(target_segments, source_segments),
            ),
        )
        loss = (encoded * inputs["source_cotangent"]).sum()
        return loss + (decoded * inputs["target_cotangent"]).sum(), (encoded, decoded)

    differentiate = jax.jit(jax.value_and_grad(run, argnums=(0, 1, 2), has_aux=True))
    (_, outputs), gradients = differentiate(weights, inputs["source"], inputs["target"])

    segments = (source_segments, target_segments)
    for name, output, real in zip(("encoded", "decoded"), outputs, segments, strict=True):
        expected = goldens[f"{norm_order}/{name}"]
        real = np.asarray(real) == 1
        np.testing.assert_allclose(np.asarray(output)[real], expected[real], atol=1e-5)

    by_weight, source, target = gradients
    expected = _subtree(goldens, f"{norm_order}/gradient/")
    gradients = by_weight | {"source": source, "target": target}
    assert jax.tree.structure(gradients) == jax.tree.structure(expected)
    for (path, gradient), golden in zip(
        jax.tree.leaves_with_path(gradients), jax.tree.leaves(expected), strict=True
    ):
        name = jax.tree_util.keystr(path)
        np.testing.assert_allclose(gradient, golden, rtol=1e-5, atol=1e-5, err_msg=name)
