"""Logical axes: each has a rule, each rule a use, and what does not divide is refused."""

from functools import cache, partial
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from t2t_jax.config import network_config
from t2t_jax.modules.network import init_parameters
from t2t_jax.modules.transformer import Transformer
from t2t_jax.parallel.axes import RULES, constrain, on_mesh, partition_spec, shardings
from tests.refusals import refused
from tests.tiny import tiny_fields

_TINY = {**tiny_fields(8, (1, 1)), "max_positions": 12}
_KINDS = {
    "paper": {},
    "pre_norm": {"norm_order": "pre"},
    "learned_positions": {"position": "learned"},
    "untied": {"share_embeddings": False, "d_k": 6, "d_v": 10},
}


def _mesh(data, fsdp, tensor):
    """One device in every place: enough to say how arrays would lie."""
    places = np.broadcast_to(jax.devices()[0], (data, fsdp, tensor))
    return Mesh(places, ("data", "fsdp", "tensor"))


@cache
def _uses(kind):
    """The axes of every parameter of a model by its name, and all that the trace constrains."""
    model = Transformer(network_config(**_TINY | _KINDS[kind]), 13, 2)
    constrained = set()

    def record(names, _=()):
        constrained.update(names)
        return P()

    with mock.patch("t2t_jax.parallel.axes.partition_spec", record), on_mesh(_mesh(2, 2, 2)):
        boxed = jax.eval_shape(partial(init_parameters, model), jax.random.key(0))
    parameters = {
        jax.tree_util.keystr(path, simple=True, separator="/"): (box.names, box.value.shape)
        for path, box in jax.tree.leaves_with_path(
            boxed, is_leaf=lambda x: isinstance(x, nn.LogicallyPartitioned)
        )
    }
    return parameters, constrained - {None}


@pytest.mark.parametrize("kind", _KINDS)
def test_every_axis_of_every_parameter_has_a_name_and_a_rule(kind):
    parameters, constrained = _uses(kind)
    known = {*RULES}
    assert constrained <= known
    for name, (own, shape) in parameters.items():
        assert len(own) == len(shape), name
        assert set(own) <= known, name
        assert (own[0] == "layers") == ("/layers/" in name), name
        partition_spec(own)  # and no two of its axes lie on one axis of the mesh


def test_every_rule_is_of_use():
    used = set()
    for kind in _KINDS:
        parameters, constrained = _uses(kind)
        used |= constrained.union(*(own for own, _ in parameters.values()))
    assert used == {*RULES}


def test_logical_axes_become_axes_of_the_mesh():
    assert partition_spec(["vocab", "embed"]) == P("tensor", "fsdp")
    assert partition_spec(["layers", "embed", "heads"]) == P(None, "fsdp", "tensor")
    assert partition_spec(["batch", "length", "heads", None]) == P(
        ("data", "fsdp"), None, "tensor", None
    )
    assert partition_spec([]) == P()


def test_an_unknown_axis_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match=r"no logical axis 'head'; there are vocab, embed, heads,"):
        partition_spec(["embed", "head"])


def _laid_out(mesh, names, shape):
    """The layout of the array `it/kernel`."""
    array = jax.ShapeDtypeStruct(shape, jnp.float32)
    found = shardings(mesh, {"it": {"kernel": P(*names)}}, {"it": {"kernel": array}})
    return found["it"]["kernel"]


@pytest.mark.parametrize(
    ("names", "shape", "message"),
    [
        (["vocab", "embed"], (37_000, 4), "it/kernel has 37000 entries on its axis 'vocab', which"),
        (["vocab", "embed"], (9, 5), "has 5 entries on its axis 'embed', which parallel.fsdp=2 "),
        (["batch"], (6,), "'batch', which parallel.data=2 times parallel.fsdp=2 does not divide"),
    ],
)
def test_an_array_that_does_not_divide_is_refused_in_one_line(names, shape, message):
    with refused(message):
        _laid_out(_mesh(2, 2, 3), names, shape)


def test_a_tree_is_laid_out_by_its_specs_and_refused_by_its_paths():
    mesh = _mesh(1, 2, 2)
    tree = {"a": {"kernel": jnp.ones((3, 4, 6))}, "step": jnp.zeros(())}
    specs = {"a": {"kernel": P("layers", "embed", "mlp")}, "step": P()}
    assert shardings(mesh, specs, tree) == {
        "a": {"kernel": NamedSharding(mesh, P(None, "fsdp", "tensor"))},
        "step": NamedSharding(mesh, P()),
    }
    with refused(match=r"^a/kernel has 5 entries on its axis 'mlp'"):
        shardings(mesh, specs, tree | {"a": {"kernel": jnp.ones((3, 4, 5))}})
    assert _laid_out(mesh, ["batch", None], (8, 5)).spec == P(("data", "fsdp"), None)
    # What a spec leaves out is not split.
    assert shardings(mesh, {"x": P("embed")}, {"x": jnp.ones((2, 5))})["x"].spec == P("fsdp", None)


def _constraints(function, mesh=None):
    def traced(x):  # a function of its own each time, as JAX traces none twice
        with on_mesh(mesh):
            return function(x)

    text = str(jax.make_jaxpr(traced)(jnp.ones((4, 6))))
    return text.count("sharding_constraint")


def test_constraints_are_heard_in_the_trace_for_a_mesh_alone():
    def function(x):
        return constrain(constrain(x, "batch", None) * 2, None, "heads")

    assert _constraints(function) == 0
    assert _constraints(function, _mesh(1, 1, 1)) == 0  # one device is never split
    assert _constraints(function, _mesh(2, 1, 2)) == 2
    assert _constraints(function) == 0


def test_an_error_in_a_trace_leaves_no_mesh_behind():
    with pytest.raises(RuntimeError), on_mesh(_mesh(2, 1, 1)):
        raise RuntimeError
    assert _constraints(lambda x: constrain(x, "batch", None)) == 0


def test_a_trace_for_one_mesh_within_that_for_another_gives_it_back():
    one, several = _mesh(1, 1, 1), _mesh(2, 1, 1)

    def half(x):
        return constrain(x, "batch", None)

    def thrice(inner):
        def function(x):
            with on_mesh(inner):
                y = half(x)
            return half(half(y))

        return function

    assert _constraints(thrice(inner=one), several) == 2
    assert _constraints(thrice(inner=several), one) == 1
