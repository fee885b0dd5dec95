"""Parameters under the names of the paper, and back."""

import re

import flax.linen as nn
import jax
import numpy as np
import pytest

from t2t_jax import UserError, named_arrays, parameter_table, parameters_of
from t2t_jax.config.cost import num_parameters
from t2t_jax.modules.models import make_model
from t2t_jax.modules.network import declared_parameters
from tests.extras.interchange.models import OPTIONS, portable


def _like(model):
    network = make_model(model.config, len(model.vocabulary), None)
    return nn.unbox(declared_parameters(network))


@pytest.mark.parametrize("name", OPTIONS)
def test_parameters_come_back_bit_for_bit(name):
    model = portable(OPTIONS[name])
    like = _like(model)
    params = parameters_of(model.arrays, like)
    assert jax.tree.map(lambda x: x.shape, params) == jax.tree.map(lambda x: x.shape, like)
    again = named_arrays(params)
    assert again.keys() == model.arrays.keys()
    for array in again:
        np.testing.assert_array_equal(again[array], model.arrays[array])


def test_the_names_of_the_paper_are_those_of_its_equations():
    arrays = portable({}).arrays
    layer = "decoder.layers.2."
    assert {name.removeprefix(layer): x.shape for name, x in arrays.items() if layer in name} == {
        **{f"self_attention.W_{letter}": (16, 16) for letter in "QKVO"},
        **{f"cross_attention.W_{letter}": (16, 16) for letter in "QKVO"},
        "feed_forward.W_1": (16, 32),
        "feed_forward.b_1": (32,),
        "feed_forward.W_2": (32, 16),
        "feed_forward.b_2": (16,),
        **{
            f"{sublayer}.norm.{part}": (16,)
            for sublayer in ("self_attention", "cross_attention", "feed_forward")
            for part in ("scale", "bias")
        },
    }
    others = {re.sub(r"layers\.\d+\..*", "layers", name) for name in arrays}
    assert others == {"embedding", "encoder.layers", "decoder.layers"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: arrays.pop("encoder.layers.1.self_attention.W_Q"), "there is no array for"),
        (lambda arrays: arrays.update(other=np.zeros(1)), "the model has no parameter other"),
        (
            lambda arrays: arrays.update(embedding=np.zeros((3, 16), np.float32)),
            r"the array embedding has shape \(3, 16\), but the model has \(500, 16\)",
        ),
    ],
)
def test_arrays_of_another_model_are_refused(change, message):
    model = portable({})
    arrays = dict(model.arrays)
    change(arrays)
    with pytest.raises(UserError, match=message):
        parameters_of(arrays, _like(model))


def test_the_table_has_each_parameter_with_its_shape_layers_and_numbers():
    network = make_model(portable({}).config, 300, None)
    shapes = nn.unbox(declared_parameters(network))
    *rows, last = (line.split() for line in parameter_table(shapes).splitlines())
    by_name = {row[0]: row[1:] for row in rows}
    assert by_name["embedding"] == ["[300,", "16]", "4,800"]
    layers = network.config.num_encoder_layers
    name = f"encoder.layers.0-{layers - 1}.feed_forward.W_1"
    assert by_name[name] == ["[16,", "32]", str(layers), "x", f"{layers * 16 * 32:,}"]
    numbers = [int(row[-1].replace(",", "")) for row in rows]
    assert sum(numbers) == num_parameters(network.config, 300)
    assert last == ["in", "all", f"{sum(numbers):,}"]


def test_what_are_no_parameters_of_a_model_is_refused():
    with pytest.raises(UserError, match="params are not the parameters"):
        parameter_table({"params": {}})
    with pytest.raises(UserError, match="an ensemble"):
        named_arrays({"0000": {}, "0001": {}})
