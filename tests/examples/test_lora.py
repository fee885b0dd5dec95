"""LoRA in a file of a user: against NumPy, a step by hand, and after saving and loading."""

import jax
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict

import t2t_jax
from tests.decoding.random_models import CONFIG, random_translator, sentences
from tests.examples.loading import load_example

_LINES = sentences(300, 12)
_PATTERNS = "decoder/*/query", "encoder/layers/feed_forward/kernel_1"
_PATHS = {
    "decoder/layers/self_attention/query/kernel",
    "decoder/layers/cross_attention/query/kernel",
    "encoder/layers/feed_forward/kernel_1",
}


@pytest.fixture(scope="module")
def example():
    return load_example("lora")


@pytest.fixture(scope="module")
def translator(vocabulary):
    changes = {"model.dropout_rate": 0.0, "model.num_decoder_layers": 2}
    return random_translator(CONFIG.replace(changes), vocabulary)


def _batch(translator):
    return t2t_jax.Batch.of(translator.encode(_LINES[:8]), translator.encode(_LINES[8:16]))


def _flat(params):
    return jax.tree.map(np.asarray, flatten_dict(params, sep="/"))


def test_a_step_changes_adapters_as_by_hand_and_merges_them_as_in_numpy(example, translator):
    lora, base = example.Lora(3, 6.0, _PATTERNS), translator.params
    adapters = lora.init(base, jax.random.key(1))
    assert adapters.keys() == _PATHS
    jax.tree.map(np.testing.assert_array_equal, lora.merged(base, adapters), base)

    network, batch, optimizer = translator.module, _batch(translator), optax.sgd(0.5)
    arguments = adapters, optimizer.init(adapters), base, batch, jax.random.key(0)
    trained, _, loss = example.make_step(network, lora.merged, optimizer)(*arguments)
    # With all parameters trained, an SGD step of 1 gives the gradient of W.
    full_step = example.make_step(network, lambda base, trained: trained, optax.sgd(1.0))
    moved, _, full_loss = full_step(base, optax.sgd(1.0).init(base), *arguments[2:])
    assert loss == pytest.approx(float(full_loss), rel=1e-5)
    weights, moved, merged = map(_flat, (base, moved, lora.merged(base, trained)))
    for path, matrix in weights.items():
        expected = matrix
        if path in _PATHS:
            a, gradient = np.asarray(adapters[path]["A"]), matrix - moved[path]
            b = -0.5 * 2 * np.einsum("lir,lio->lro", a, gradient)  # alpha / rank is 2
            np.testing.assert_array_equal(trained[path]["A"], a)  # its gradient is 0 where B is 0
            np.testing.assert_allclose(trained[path]["B"], b, rtol=1e-3, atol=1e-5)
            expected = matrix + 2 * np.einsum("lir,lro->lio", a, trained[path]["B"])
            assert not np.allclose(expected, matrix, atol=1e-3)
        np.testing.assert_allclose(merged[path], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"patterns": ("decoder/norm",)}, "pattern 'decoder/norm' matches no matrix; .*kernel_1"),
        ({"rank": 17}, "rank=17 is not from 1 to 16, the smaller size of decoder/layers/"),
        ({"rank": 0}, "rank=0 is not from 1 to 16"),
        ({"alpha": 0.0}, "alpha=0.0 is not positive"),
    ],
)
def test_unsuitable_adapters_are_refused(fields, problem, example, translator):
    with pytest.raises(t2t_jax.UserError, match=problem):
        example.Lora(**fields).shapes(translator.params)


def test_the_saved_run_translates_as_the_adapted_model(example, translator, tmp_path, capsys):
    for split, lines in ("train", _LINES), ("dev", _LINES[:20]):
        for language in "en", "de":
            (tmp_path / f"{split}.{language}").write_text("\n".join(lines) + "\n")
    base, workdir = str(tmp_path / "base"), str(tmp_path / "tuned")
    translator.save(base)
    sizes = {"rank": 2, "num_steps": 40, "tokens_per_step": 256, "learning_rate": 0.03}
    tuned = example.main(f"text:{tmp_path}", base, workdir, **sizes)
    translations = t2t_jax.load(workdir).translate(_LINES[:20])
    assert translations == tuned.translate(_LINES[:20])
    assert translations != translator.translate(_LINES[:20])
    size, loss, dev = capsys.readouterr().out.splitlines()
    assert "trained parameters" in size
    assert loss.startswith("step 40  loss ")
    assert dev.startswith("dev: ")
    with pytest.raises(t2t_jax.UserError, match="exists; give another workdir"):
        example.main(f"text:{tmp_path}", base, workdir)
