"""The breaking lab: what its networks compute without a part, its toy tasks and its page."""

import runpy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import t2t_jax
from t2t_jax.batch import Batch
from tests.modules.numpy_transformer import sinusoids
from tests.programs import ROOT
from tests.tiny import first_parameters, tiny_sizes


@pytest.fixture(scope="module")
def lab(forgotten_parts):
    return runpy.run_path(str(ROOT / "configs/breaking_lab.py"))


@pytest.fixture(scope="module")
def network(lab):
    """Return the function `part -> (logits, params)` for a tiny network without a part.

    `logits(params, source, target)` are those of one pair, `[t, v]`.
    """

    def of(part):
        config = lab["TOY"].replace(lab["PARTS"].get(part, {}) | tiny_sizes(8, (1, 1)))
        module = t2t_jax.build(config, 11)

        def logits(params, source=(4, 5, 6, 7), target=(7, 6, 5, 4)):
            return module.apply({"params": params}, Batch.of([list(source)], [list(target)]))[0]

        return logits, first_parameters(module)

    return of


def _changed(params, change, *names):
    """Return the parameters with a change of those whose path has one of the names."""

    def leaf(path, x):
        return change(x) if any(n in jax.tree_util.keystr(path) for n in names) else x

    return jax.tree_util.tree_map_with_path(leaf, params)


def _without_sub_layers(params):
    return _changed(params, jnp.zeros_like, "kernel", "bias_")


def _same(logits, params, changed, **inputs):
    return np.allclose(logits(params), logits(changed, **inputs), atol=1e-5)


@pytest.mark.parametrize("part", ["", "mask"])
def test_only_without_the_mask_does_the_first_token_depend_on_later_ones(part, network):
    logits, params = network(part)
    first, changed = logits(params)[0], logits(params, target=(7, 6, 9, 4))[0]
    assert np.allclose(first, changed) == (part != "mask")


@pytest.mark.parametrize("part", ["", "positions"])
def test_only_without_positions_is_the_order_of_the_source_lost(part, network):
    logits, params = network(part)
    assert _same(logits, params, params, source=(7, 5, 4, 6)) == (part == "positions")


@pytest.mark.parametrize("part", ["", "feed-forward"])
def test_only_without_the_feed_forward_network_have_its_matrices_no_effect(part, network):
    logits, params = network(part)
    changed = _changed(params, lambda x: 2 * x, "kernel_1", "kernel_2", "bias_1")
    assert _same(logits, params, changed) == (part == "feed-forward")


@pytest.mark.parametrize("part", ["", "residuals"])
def test_only_without_residuals_does_nothing_pass_a_sub_layer_of_zeros(part, network):
    logits, params = network(part)
    assert np.any(logits(_without_sub_layers(params))) == (part != "residuals")


def test_without_norms_the_embeddings_reach_the_output_as_they_are(network):
    logits, params = network("norms")
    embedding = np.asarray(params["embedding"]["embedding"])
    expected = (8**0.5 * embedding[[7, 6, 5]] + sinusoids(4, 8)[1:]) @ embedding.T
    computed = logits(_without_sub_layers(params))
    np.testing.assert_allclose(computed[1:], expected, rtol=1e-4, atol=1e-5)


def test_without_the_scale_queries_have_to_be_smaller_by_the_root_of_d_k(network):
    (scaled, params), (unscaled, _) = network(""), network("scale")
    smaller = _changed(params, lambda x: x / 2, "['query']")  # d_k is 8 / 2 heads
    np.testing.assert_allclose(unscaled(smaller), scaled(params), rtol=1e-4, atol=1e-5)
    assert not _same(unscaled, params, smaller)


def test_the_other_parts_are_settings(lab):
    for name, config in lab["VARIANTS"].items():
        task, _, part = name.partition("-")
        assert config == lab["VARIANTS"][task].replace(lab["PARTS"][part] if part else {})
    assert len(lab["VARIANTS"]) == 5 * (1 + 10)


def test_toy_tasks_are_what_their_names_say(lab):
    for toy in ("copy", "reverse", "sort", "recall"):
        splits = lab["toy_splits"](f"toy:{toy}", lab["TOY"].data)
        pairs = [[side.split() for side in pair] for pair in lab["_pairs"](toy, "dev", 50)]
        for source, target in pairs:
            assert sorted(source) == sorted(target)
            if toy == "recall":
                assert dict(zip(source[::2], source[1::2], strict=True)) == dict(
                    zip(target[::2], target[1::2], strict=True)
                )
                assert target[::2] == sorted(source[::2])
            else:
                order = {"copy": list, "reverse": lambda x: x[::-1], "sort": sorted}[toy]
                assert target == order(source)
        train = {*lab["_pairs"](toy, "train", 500)}
        assert len(splits) == 3
        assert len(train) > 450
