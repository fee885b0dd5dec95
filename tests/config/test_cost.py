"""Parameters and floating point operations, against those of the real model."""

import dataclasses
import math
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.interpreters.partial_eval import dce_jaxpr

import t2t_jax
from t2t_jax.batch import Batch, one_a_row
from t2t_jax.config import Config, network_config
from t2t_jax.config.cost import model_flops_per_step, num_parameters
from t2t_jax.config.families import FAMILIES, fields_of
from t2t_jax.config.file import load_config, load_grid
from t2t_jax.kernels.cpu import CPU
from t2t_jax.modules.network import declared_parameters
from t2t_jax.modules.transformer import Transformer
from t2t_jax.paper import TABLE_3
from t2t_jax.plugins import load_named
from tests.programs import run_python
from tests.selection import thorough_after

_ROOT = Path(t2t_jax.__file__).parents[1]
_TINY = {
    "d_model": 12,
    "num_heads": 3,
    "d_ff": 20,
    "num_encoder_layers": 2,
    "num_decoder_layers": 3,
}
_ODD = {
    "plain": {},
    "pre-norm": {"norm_order": "pre"},
    "learned positions": {"position": "learned", "max_positions": 9},
    "untied": {"share_embeddings": False},
    "uneven heads": {"d_k": 5, "d_v": 7},
    "one head, one decoder layer": {"num_heads": 1, "d_v": 4, "num_decoder_layers": 1},
    "rotary, shared heads, gate, window": {
        "norm": "rms",
        "feed_forward": "swiglu",
        "position": "rotary",
        "num_kv_heads": 1,
        "attention_window": 2,
    },
    "relative bias, other biases and norms": {
        "position": "relative_bias",
        "attention_bias": True,
        "query_key_norm": True,
        "embedding_norm": True,
        "output_bias": True,
        "share_embeddings": False,
        "share_target_embedding": True,
    },
    "decoder alone": {"architecture": "decoder_only", "norm_order": "pre", "position": "learned"},
    "output of its own": {"share_embeddings": False, "share_source_embedding": True},
    "additive": {"attention_kind": "additive", "position": "alibi", "norm_order": "deep"},
}


def _tiny(odd):
    """A tiny model of the family that some changes ask for."""
    known = fields_of(odd.get("architecture", "encoder_decoder"))
    return network_config(**{n: value for n, value in (_TINY | odd).items() if n in known})


def _models():
    """Every model of configs/, and some odd ones: `(model, vocab_size)` by name.

    Without those of grids that have the rows of another one.
    """
    models = {name: (_tiny(odd), 17) for name, odd in _ODD.items()}
    others = {
        "modern_small",
        "table3_small",
        "table3_width",
        "score_functions",
        "architectures_small",
        "mup_small",
        "breaking_lab",  # registers parts
    }
    for path in sorted((_ROOT / "configs").glob("*.py")):
        if path.stem in others:
            continue
        grid = "VARIANTS" in path.read_text()
        configs = load_grid(str(path)).variants if grid else {"": load_config(str(path))}
        for name, config in configs.items():
            models[f"{path.stem} {name}".strip()] = config.model, config.data.vocab_size
    return models


_MODELS = _models()


@cache
def _parameters(model, vocab_size):
    """Shapes of the model's parameters."""
    module = load_named(FAMILIES[model.architecture].network)(model, vocab_size, bos_id=1)
    return {"params": declared_parameters(module)}


@pytest.mark.thorough
@pytest.mark.parametrize("name", _MODELS)
def test_parameters_are_as_many_as_the_model_has(name):
    model, vocab_size = _MODELS[name]
    # Models that differ in their dropout alone are traced once; "auto" is decided as a run begins.
    same: dict[str, Any] = {
        leaf.name: 0.0 for leaf in dataclasses.fields(model) if "dropout" in leaf.name
    }
    shapes = _parameters(dataclasses.replace(model, compute_dtype="float32", **same), vocab_size)
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
    assert num_parameters(model, vocab_size) == count


# Rows of Table 3 for which the paper prints millions of parameters, and that are as wide as base.
_PRINTED = {name: row for name, row in TABLE_3.items() if row.parameters and row.d_model == 512}


@pytest.mark.parametrize("name", _PRINTED)
def test_rows_of_table_3_differ_by_as_many_parameters_as_the_paper_prints(name):
    """Its vocabulary is not known, but is the same in every row; both numbers are rounded."""
    base, row = (load_config(f"{_ROOT / 'configs/table3.py'}:{each}") for each in ("base", name))
    added = num_parameters(row.model, 37_000) - num_parameters(base.model, 37_000)
    assert abs(added / 1e6 - (_PRINTED[name].parameters - _PRINTED["base"].parameters)) <= 1


def test_parameters_of_base_and_big_are_those_of_sections_3_1_to_3_4_written_out():
    attention, norm = 4 * 512 * 512, 2 * 512  # 3.2.2: W^Q, W^K, W^V and W^O, of 8 heads of 64
    feed_forward = (512 * 2048 + 2048) + (2048 * 512 + 512)  # 3.3: W_1, b_1, W_2, b_2
    encoder = 6 * (attention + feed_forward + 2 * norm)  # 3.1
    decoder = 6 * (2 * attention + feed_forward + 3 * norm)
    assert (
        num_parameters(network_config(), 37_000) == 37_000 * 512 + encoder + decoder == 63_045_632
    )

    attention, norm = 4 * 1024 * 1024, 2 * 1024
    feed_forward = (1024 * 4096 + 4096) + (4096 * 1024 + 1024)
    encoder = 6 * (attention + feed_forward + 2 * norm)
    decoder = 6 * (2 * attention + feed_forward + 3 * norm)
    big = network_config(d_model=1024, num_heads=16, d_ff=4096)
    assert num_parameters(big, 37_000) == 37_000 * 1024 + encoder + decoder == 214_171_648


_BERT_BASE = {
    "model.architecture": "encoder_only",
    "model.d_model": 768,
    "model.num_heads": 12,
    "model.d_ff": 3072,
    "model.num_encoder_layers": 12,
    "model.attention_bias": True,
    "model.position": "learned",
    "model.max_positions": 512,
    "model.embedding_norm": True,
    "model.output_bias": True,
    "data.task": "masked_language_modelling",
    "data.vocab_size": 30_522,
}
_NOT_OF_IMAGES = "model.max_positions", "model.embedding_norm"
_VIT_B16 = {path: value for path, value in _BERT_BASE.items() if path not in _NOT_OF_IMAGES} | {
    "model.architecture": "image_encoder",
    "model.patch_size": 16,
    "model.image_size": 224,
    "model.norm_order": "pre",
    "data.task": "image_classification",
    "data.corpus": "npz:images.npz",
    "data.vocab_size": 1000,
}


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (load_config(str(_ROOT / "configs" / "gpt2_small.py")), 124_439_808),
        # Those of `BertForMaskedLM` without the vectors of a first and a second sentence, and
        # without the linear layer and the norm ahead of its output.
        (Config().replace(_BERT_BASE), 109_514_298 - 2 * 768 - 768 * (768 + 3)),
        (Config().replace(_VIT_B16), 86_567_656),
    ],
    ids=["GPT-2", "BERT", "ViT"],
)
def test_published_models_have_as_many_parameters_as_they_are_known_for(config, count):
    assert num_parameters(config.model, config.data.vocab_size) == count


def _product_flops(jaxpr):
    """Operations of all matrix products of a program, those of loops as often as they run."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            sizes = [equation.invars[0].aval.shape[axis] for axis in contracted]
            total += 2 * math.prod(sizes) * equation.outvars[0].aval.size
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            total += times * _product_flops(inner) if hasattr(inner, "eqns") else 0
    return total


@pytest.mark.parametrize("name", thorough_after(1, _ODD))
def test_flops_are_those_of_the_products_in_the_gradient_of_the_real_model(name):
    rows, source, target, vocab_size = 3, 8, 6, 17
    model = _tiny(_ODD[name])
    network = load_named(FAMILIES[model.architecture].network)
    module = network(model, vocab_size, bos_id=1, kernels=CPU)  # whose windows are no whole masks
    sides = (one_a_row(jnp.ones((rows, length), jnp.int32)) for length in (source, target))
    batch = Batch(*sides)

    def loss(variables):
        return jnp.square(module.apply(variables, batch, deterministic=True)).sum()

    variables = _parameters(model, vocab_size)
    expected = model_flops_per_step(
        model, vocab_size, rows * source, rows * target, source_length=source, target_length=target
    )
    forward = jax.make_jaxpr(loss)(variables).jaxpr
    assert 3 * _product_flops(forward) == expected
    step = jax.make_jaxpr(jax.value_and_grad(loss))(variables).jaxpr
    needed, _ = dce_jaxpr(step, [True] * len(step.outvars))
    assert _product_flops(needed) == expected


def test_the_number_of_heads_changes_no_cost():
    # Section 3.2.2: heads share out the width, so all together cost what one of full width does.
    sentence = one_a_row(jnp.ones((2, 6), jnp.int32))
    costs = set()
    for num_heads in (1, 3, 12):
        module = Transformer(network_config(**_TINY | {"num_heads": num_heads}), 17, bos_id=1)
        variables = {"params": declared_parameters(module)}
        apply = partial(module.apply, batch=Batch(sentence, sentence), deterministic=True)
        products = _product_flops(jax.make_jaxpr(apply)(variables).jaxpr)
        costs.add((sum(math.prod(x.shape) for x in jax.tree.leaves(variables)), products))
    assert len(costs) == 1


def test_flops_without_lengths_are_six_for_each_weight_and_token_that_meet():
    # Base model, per layer: attention 4 x 512^2, feed-forward 2 x 512 x 2048 weights.
    attention, feed_forward, vocabulary = 4 * 512**2, 2 * 512 * 2048, 37_000 * 512
    source = (
        6 * (attention + feed_forward) + 6 * attention // 2
    )  # and the decoder's keys and values
    target = 6 * (attention + attention // 2 + feed_forward) + vocabulary
    flops = partial(model_flops_per_step, network_config(), 37_000)
    assert flops(25_000, 0) == 6 * 25_000 * source
    assert flops(0, 25_000) == 6 * 25_000 * target
    assert flops(25_000, 25_000) == pytest.approx(9.45e12, rel=1e-3)


def test_nothing_here_imports_jax():
    program = "import sys, t2t_jax.config.cost, t2t_jax.paper; sys.exit('jax' in sys.modules)"
    run_python("-c", program, code=0)
