"""The breaking lab: what its networks compute without a part, its toy tasks and its page."""

import csv
import runpy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import t2t_jax
from t2t_jax.batch import Batch
from t2t_jax.config import differences
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

    def without(part):
        config = lab["TOY"].replace(lab["PARTS"].get(part, {}) | tiny_sizes(8, (1, 1)))
        module = t2t_jax.build(config, 11)

        def logits(params, source=(4, 5, 6, 7), target=(7, 6, 5, 4)):
            return module.apply({"params": params}, Batch.of([list(source)], [list(target)]))[0]

        return logits, first_parameters(module)

    return without


def _changed(params, change, *names):
    """Return the parameters with a change of those whose path has one of the names."""

    def leaf(path, x):
        return change(x) if any(n in jax.tree_util.keystr(path) for n in names) else x

    return jax.tree_util.tree_map_with_path(leaf, params)


def _without_sub_layers(params):
    return _changed(params, jnp.zeros_like, "kernel", "bias_")


def _have_equal_logits(logits, params, changed, **inputs):
    return np.allclose(logits(params), logits(changed, **inputs), atol=1e-5)


@pytest.mark.parametrize("part", ["", "mask"])
def test_without_the_mask_the_first_token_depends_on_later_ones(part, network):
    logits, params = network(part)
    first, changed = logits(params)[0], logits(params, target=(7, 6, 9, 4))[0]
    assert np.allclose(first, changed) == (part != "mask")


@pytest.mark.parametrize("part", ["", "positions"])
def test_without_positions_the_order_of_the_source_has_no_effect(part, network):
    logits, params = network(part)
    assert _have_equal_logits(logits, params, params, source=(7, 5, 4, 6)) == (part == "positions")


@pytest.mark.parametrize("part", ["", "feed-forward"])
def test_without_the_feed_forward_network_its_matrices_have_no_effect(part, network):
    logits, params = network(part)
    changed = _changed(params, lambda x: 2 * x, "kernel_1", "kernel_2", "bias_1")
    assert _have_equal_logits(logits, params, changed) == (part == "feed-forward")


@pytest.mark.parametrize("part", ["", "residuals"])
def test_without_residuals_nothing_passes_a_sub_layer_of_zeros(part, network):
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
    assert not _have_equal_logits(unscaled, params, smaller)


@pytest.mark.parametrize("task", ["text", "copy", "reverse", "sort", "recall"])
def test_each_variant_changes_one_field(task, lab):
    base, changed = lab["VARIANTS"][task], {}
    for name, config in lab["VARIANTS"].items():
        if name.startswith(f"{task}-"):
            [(field, (_, value))] = differences(base, config).items()
            changed[name.removeprefix(f"{task}-")] = field.partition(".")[2], value
    assert changed == {
        "scale": ("attention_kind", "dot_product"),
        "mask": ("is_causal", False),
        "positions": ("position", "no_positions"),
        "residuals": ("has_residuals", False),
        "norms": ("norm", "no_norm"),
        "warmup": ("warmup_steps", 1),
        "smoothing": ("label_smoothing", 0.0),
        "heads": ("num_heads", 1),
        "dropout": ("dropout_rate", 0.0),
        "feed-forward": ("feed_forward", "no_activation"),
    }


@pytest.fixture
def pairs(lab):
    """Return the function `(toy, split) -> [(source, target)]`, as lists of symbols."""

    def read(toy, split):
        chunks = lab["toy_splits"](f"toy:{toy}", lab["TOY"].data)[split].read()
        return [(x.split(), y.split()) for chunk in chunks for x, y in zip(*chunk, strict=True)]

    return read


@pytest.mark.parametrize(
    ("toy", "answer"), [("copy", list), ("reverse", lambda x: x[::-1]), ("sort", sorted)]
)
def test_a_target_is_made_of_the_letters_of_its_source(toy, answer, pairs):
    dev = pairs(toy, "dev")
    assert len(dev) == 500
    assert all(target == answer(source) for source, target in dev)
    assert {len(source) for source, _ in dev} == {*range(4, 13)}
    assert len({tuple(source) for source, _ in pairs(toy, "train")}) > 15_000


def test_recall_writes_the_pairs_of_its_source_in_alphabetical_order(pairs):
    for source, target in pairs("recall", "dev"):
        letters, digits = source[::2], source[1::2]
        expected = sorted(zip(letters, digits, strict=True))
        assert [*zip(target[::2], target[1::2], strict=True)] == expected
        assert len({*letters}) == 3


def test_the_page_shows_the_stored_results(lab):
    program = runpy.run_path(str(ROOT / "docs/breaking_lab.py"))
    page = (ROOT / "docs/results/breaking_lab.md").read_text("utf-8")
    assert [ending.removeprefix("-") for ending in program["PARTS"]] == ["", *lab["PARTS"]]
    assert program["page"]() == page
    with (ROOT / "docs/results/breaking_lab/seeds.csv").open() as file:
        seeds = [row for row in csv.DictReader(file) if row["variant"] == "reverse-mask"]
    assert len(seeds) == 3
    perplexity, score = (np.mean([float(row[x]) for row in seeds]) for x in ("perplexity", "score"))
    [line] = [line for line in page.splitlines() if line.startswith("| causal mask |")]
    assert line.split(" | ")[2] == f"{perplexity:.2f}, **{score:.1f}**"
