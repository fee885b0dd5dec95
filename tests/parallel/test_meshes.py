"""Training on every mesh of up to eight devices, which a process of its own simulates.

A test that needs them runs a function of this file, by its name, in such a process.
"""

import itertools
import sys
from functools import partial
from unittest import mock

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from t2t_jax.batch import Batch, Patches, Sequence
from t2t_jax.config import Config
from t2t_jax.modules.models import make_model
from t2t_jax.parallel.mesh import (
    AXES,
    BatchLayout,
    batch_layout,
    make_mesh,
    mesh_of,
    on_host,
    put_rows,
)
from t2t_jax.training.state import abstract_state, create_state, init_state
from t2t_jax.training.step import compile_train_step, train_step
from tests.examples.loading import load_example
from tests.programs import run_python
from tests.refusals import refused
from tests.tiny import tiny_sizes

NUM_STEPS = 20
NUM_ROWS, LENGTH = 13, 8
# A width that every size of an axis divides, for sizes 1, 2, 3, 4, 6 and 8, and for 5 and 7.
WIDTHS = {1: 24, 2: 24, 3: 24, 4: 24, 6: 24, 8: 24, 5: 70, 7: 70}
TOKENS_IN_TWO_ROWS = 2 * LENGTH


def on_eight_devices(name, *arguments, file=__file__):
    """Run a function of a file where there are eight devices; its errors are the test's."""
    flags = {"JAX_NUM_CPU_DEVICES": "8", "JAX_PLATFORMS": "cpu"}
    flags["NPROC"] = "64"  # see `let_devices_wait`
    done = run_python("-W", "error", file, name, *arguments, **flags)
    assert done.returncode == 0, done.stdout + done.stderr


def make_config(width, **changes):
    """A model of one layer with dropout, trained so calmly that rounding is not amplified."""
    return (
        Config()
        .replace(
            {
                **tiny_sizes(width, (1, 1), num_heads=width),
                "model.d_k": 2,
                "model.d_v": 2,
                "model.d_ff": width,
                "model.dropout_rate": 0.3,
                "model.attention_dropout_rate": 0.1,
                "training.warmup_steps": 10,
                "training.learning_rate_factor": 0.1,
                "training.adam_epsilon": 1e-6,
            }
        )
        .replace({name.replace("__", "."): value for name, value in changes.items()})
    )


def make_batch(vocab_size):
    """Rows of different lengths, no number of which divides their own."""
    rng = np.random.default_rng(0)
    positions = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), (NUM_ROWS, LENGTH))
    sides = []
    for _ in range(2):
        real = positions < rng.integers(3, LENGTH + 1, (NUM_ROWS, 1))
        tokens = rng.integers(4, vocab_size, (NUM_ROWS, LENGTH), dtype=np.int32)
        sides.append(Sequence(tokens * real, real.astype(np.int32), positions * real))
    return Batch(*sides)


def with_patches(batch, patch_values):
    """The batch with images in place of sources."""
    shape = *batch.inputs.tokens.shape, patch_values
    values = np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8)
    return batch._replace(inputs=Patches(values, batch.inputs.segments, batch.inputs.positions))


def train(step, state, batch):
    """Smoothed loss and nll of every step, and the state after the last."""
    losses = []
    for _ in range(NUM_STEPS):
        state, metrics = step(state, batch)
        losses.append((metrics.losses.smoothed, metrics.losses.nll))
    return np.array(jax.device_get(losses)), state


class OnOneDevice:
    """The run that all others are compared with: plain `jax.jit`, everything in one pass."""

    def __init__(self, width, **options):
        self.width, self.options = width, options
        config = make_config(width, **options)
        model = make_model(config, width, None)
        self.batch = make_batch(width)
        if patch_values := config.value("model.patch_values"):
            self.batch = with_patches(self.batch, patch_values)
        self.start = jax.device_get(jax.jit(partial(init_state, config, model))())
        step = jax.jit(partial(train_step, config, model))
        whole = jax.tree.map(lambda x: x[None], self.batch)
        self.losses, after = train(step, self.start, whole)
        self.after = jax.device_get(after.params)
        assert self.losses[-1, 0] < self.losses[0, 0]

    def compare(self, **parallel):
        """Train with these settings of `parallel`; nothing may differ but by rounding."""
        changes = {f"parallel__{name}": value for name, value in parallel.items()}
        config = make_config(self.width, **self.options, **changes)
        mesh = make_mesh(config.parallel)
        model = make_model(config, self.width, mesh)
        like = abstract_state(config, model, mesh)
        state = jax.device_put(self.start, jax.tree.map(lambda x: x.sharding, like))
        layout = batch_layout(mesh, NUM_ROWS, LENGTH, config.parallel.tokens_per_device)
        step = compile_train_step(config, model, mesh)
        losses, after = train(step, state, layout.put(self.batch))
        np.testing.assert_allclose(losses, self.losses, rtol=1e-5, err_msg=str(parallel))
        near = partial(np.testing.assert_allclose, atol=1e-5, err_msg=str(parallel))
        jax.tree.map(near, on_host(after.params), self.after)


def meshes(*sizes):
    """Meshes by size, each with all its devices in every way; every second one takes passes."""
    shapes = [s for s in itertools.product(range(1, 9), repeat=3) if str(np.prod(s)) in sizes]
    runs = {width: OnOneDevice(width) for width in {WIDTHS[int(np.prod(s))] for s in shapes}}
    for number, shape in enumerate(shapes):
        limit = None if number % 2 else TOKENS_IN_TWO_ROWS
        axes = dict(zip(AXES, shape, strict=True))
        runs[WIDTHS[int(np.prod(shape))]].compare(**axes, tokens_per_device=limit)
        jax.clear_caches()


@pytest.mark.slow
def test_every_mesh_gives_the_losses_of_one_device():
    on_eight_devices("meshes", *range(1, 9))


def other_ways(which):
    """`jax.pmap`, and recomputation on a mesh with every axis: one of each, or the others."""
    run = OnOneDevice(24)
    mesh = {"data": 2, "fsdp": 2, "tensor": 2}
    if which == "one":
        run.compare(backend="pmap", data=3, tokens_per_device=TOKENS_IN_TWO_ROWS)
        run.compare(**mesh, remat="layer", loss_chunks=8, tokens_per_device=LENGTH)
    else:
        run.compare(backend="pmap", data=8)
        run.compare(**mesh, remat="dots", loss_chunks=2)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["one", "other"])
def test_pmap_and_recomputation_give_the_losses_of_one_device(which):
    on_eight_devices("other_ways", which)


_VARIANT = {
    "model__norm": "rms",
    "model__norm_order": "deep",
    "model__feed_forward": "swiglu",
    "model__position": "relative_bias",
    "model__num_kv_heads": 4,
    "model__attention_window": 3,
    "model__attention_kind": "additive",
    "model__d_k": 8,  # a norm of fewer numbers would amplify rounding
    "model__attention_bias": True,
    "model__query_key_norm": True,
    "model__share_embeddings": False,
    "model__share_target_embedding": True,
    "model__embedding_norm": True,
    "model__output_bias": True,
}


_ENCODER = {
    "model__architecture": "encoder_only",
    "model__share_embeddings": False,
    "data__task": "tagging",
}
_FAMILIES = {
    "variant": _VARIANT,
    "gated": {"model__attention_kind": "gated_attention", "model__num_kv_heads": 4},
    "differential": {
        "model__attention_kind": "differential_attention",
        "model__position": "alibi",
        "model__num_kv_heads": 4,
        "model__d_v": 8,
    },
    "decoder": {"model__architecture": "decoder_only", "model__prefix_attention": True},
    "encoder": {**_ENCODER, "model__output_bias": True},
    "images": {
        "model__architecture": "image_encoder",
        "model__patch_size": 2,
        "model__image_size": 4,
        "model__image_channels": 6,
        "model__position": "learned",
        "data__task": "image_classification",
    },
}


def family(name):
    load_example("own_attention")
    run = OnOneDevice(24, **_FAMILIES[name])
    run.compare(data=2, fsdp=2, tensor=2, tokens_per_device=TOKENS_IN_TWO_ROWS)
    run.compare(backend="pmap", data=8)


@pytest.mark.thorough
@pytest.mark.parametrize("name", _FAMILIES)
def test_every_family_and_a_variant_on_a_mesh_give_the_losses_of_one_device(name):
    on_eight_devices("family", name)


# Of a mesh of two devices along each axis: the spec of every parameter, and the shape of one part.
_ATTENTION = {
    "query/kernel": (P(None, "fsdp", "tensor"), (1, 8, 12)),
    "key/kernel": (P(None, "fsdp", "tensor"), (1, 8, 12)),
    "value/kernel": (P(None, "fsdp", "tensor"), (1, 8, 16)),
    "output/kernel": (P(None, "tensor", "fsdp"), (1, 16, 8)),
}
_FEED_FORWARD = {
    "feed_forward/kernel_1": (P(None, "fsdp", "tensor"), (1, 8, 10)),
    "feed_forward/bias_1": (P(None, "tensor"), (1, 10)),
    "feed_forward/kernel_2": (P(None, "tensor", "fsdp"), (1, 10, 8)),
    "feed_forward/bias_2": (P(None, None), (1, 16)),
}
_STACKED_VECTOR, _VECTOR = (P(None, None), (1, 16)), (P(None), (16,))
_TOKENS, _POSITIONS = (P("tensor", "fsdp"), (11, 8)), (P(None, "fsdp"), (400, 8))
_SUBLAYERS = {
    "encoder": ["self_attention", "feed_forward"],
    "decoder": ["self_attention", "cross_attention", "feed_forward"],
}
_TABLE = {
    "source_embedding/embedding": _TOKENS,
    "target_embedding/embedding": _TOKENS,
    "output_projection/embedding": _TOKENS,
    "source_position/embedding": _POSITIONS,
    "target_position/embedding": _POSITIONS,
    **{
        f"{stack}/norm/{name}": _VECTOR
        for stack, name in itertools.product(_SUBLAYERS, ("scale", "bias"))
    },
    **{
        f"{stack}/layers/{sublayer}_residual/norm/{name}": _STACKED_VECTOR
        for stack, sublayers in _SUBLAYERS.items()
        for sublayer, name in itertools.product(sublayers, ("scale", "bias"))
    },
    **{
        f"{stack}/layers/{sublayer}/{name}": place
        for stack, sublayers in _SUBLAYERS.items()
        for sublayer in sublayers[:-1]
        for name, place in _ATTENTION.items()
    },
    **{
        f"{stack}/layers/{name}": place
        for stack, name in itertools.product(_SUBLAYERS, _FEED_FORWARD)
        for place in [_FEED_FORWARD[name]]
    },
}
_EVERY_OPTION = {
    "model__norm_order": "pre",
    "model__position": "learned",
    "model__max_positions": 400,
    "model__share_embeddings": False,
    "model__num_heads": 4,
    "model__d_k": 6,
    "model__d_v": 8,
    "model__d_ff": 20,
}


def named_leaves(tree):
    """The arrays of a tree by their names."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree.leaves_with_path(tree)
    }


def places():
    """Where every array of the state is, before and after a step."""
    config = make_config(16, **_EVERY_OPTION, parallel__fsdp=2, parallel__tensor=2)
    mesh = make_mesh(config.parallel)
    model = make_model(config, 22, mesh)
    state = create_state(config, model, mesh)
    layout = batch_layout(mesh, NUM_ROWS, LENGTH)
    step = compile_train_step(config, model, mesh)
    for _ in range(2):
        adam = state.optimizer
        moments = [adam.mu, adam.nu] if hasattr(adam, "mu") else [adam[0].mu, adam[0].nu]
        for tree in (state.params, *moments):
            leaves = named_leaves(tree)
            assert set(leaves) == set(_TABLE)
            for name, (spec, part) in _TABLE.items():
                assert leaves[name].sharding == NamedSharding(mesh, spec), name
                assert {x.data.shape for x in leaves[name].addressable_shards} == {part}, name
        assert state.step.sharding.is_fully_replicated
        assert mesh_of(state.params) is mesh
        state, _ = step(state, layout.put(make_batch(22)))


@pytest.mark.thorough
def test_every_parameter_and_moment_lies_where_the_table_says():
    on_eight_devices("places")


def initial_values():
    """The state before the first step on several meshes, and the shapes it is made in."""
    reference = None
    for data, fsdp, tensor in ((1, 1, 1), (1, 8, 1), (4, 1, 2), (2, 2, 2)):
        changes = {"parallel__data": data, "parallel__fsdp": fsdp, "parallel__tensor": tensor}
        config = make_config(16, **_EVERY_OPTION, **changes)
        mesh = make_mesh(config.parallel)
        model = make_model(config, 24, mesh)
        state = create_state(config, model, mesh)
        host = named_leaves(on_host(state))
        reference = reference or host
        for name, values in reference.items():
            np.testing.assert_array_equal(host[name], values, err_msg=name)
    # What is split, no device has had whole: the program of each knows of its parts alone.
    layouts = jax.tree.map(lambda x: x.sharding, abstract_state(config, model, mesh))
    initialise = jax.jit(partial(init_state, config, model), out_shardings=layouts)
    text = initialise.lower().compile().as_text()
    for name, leaf in named_leaves(state.params).items():
        if name.endswith(("kernel", "embedding")):
            whole, part = (
                f"f32[{','.join(map(str, shape))}]"
                for shape in (leaf.shape, leaf.sharding.shard_shape(leaf.shape))
            )
            assert whole not in text, (name, whole)
            assert part in text, (name, part)


@pytest.mark.thorough
def test_every_mesh_starts_from_the_same_values_made_in_parts():
    on_eight_devices("initial_values")


def rows_of_processes():
    """Meshes whose devices belong to several processes, simulated: what each has, and puts."""
    side = Sequence(*[np.arange(1, 14 * 3 + 1, dtype=np.int32).reshape(14, 3)] * 3)
    batch = Batch(side, side)
    everywhere = NamedSharding.devices_indices_map
    for shape in ((8, 1, 1), (2, 2, 2), (1, 4, 2), (2, 1, 4), (1, 1, 8)):
        mesh = Mesh(np.array(jax.devices()).reshape(shape), AXES)
        for processes, passes in itertools.product((2, 4, 8), (1, 3)):
            parts = shape[0] * shape[1]
            layout = BatchLayout(mesh, passes, -(-14 // (passes * parts)) * parts)
            seen = np.zeros((passes, layout.rows_per_pass, 3), np.int32)
            has = np.zeros(passes * layout.rows_per_pass, bool)
            for own in np.array_split(jax.devices(), processes):

                def addressable(self, shape, own=own):
                    chosen = everywhere(self, shape).items()
                    return {device: index for device, index in chosen if device in own}

                def make(shape, sharding, part, addressable=addressable, seen=seen):
                    for index in addressable(sharding, shape).values():
                        seen[index] = part(index)

                with (
                    mock.patch.object(Mesh, "local_devices", list(own)),
                    mock.patch.object(
                        NamedSharding, "addressable_devices_indices_map", addressable
                    ),
                    mock.patch("jax._src.array.make_array_from_callback", make),
                    mock.patch("jax._src.array.xla_bridge.process_count", return_value=2),
                ):
                    rows = layout.local_rows()
                    assert (np.diff(rows) > 0).all()
                    has[rows] = True
                    there = rows[rows < 14]
                    layout.put(jax.tree.map(lambda x, there=there: x[there], batch))
            assert has.all()
            flat = seen.reshape(-1, 3)
            np.testing.assert_array_equal(flat[:14], batch.inputs.tokens)
            assert not flat[14:].any()


def rows_on_devices():
    """Where rows are put, and what is read of a mesh from arrays."""
    mesh = make_mesh(Config().replace({"parallel.fsdp": 2, "parallel.tensor": 2}).parallel)
    x = np.arange(24).reshape(8, 3)
    placed = put_rows(x, mesh)
    assert {shard.data.shape for shard in placed.addressable_shards} == {(2, 3)}
    host = on_host({"rows": placed, "vector": put_rows(x[:, 0], mesh)})
    assert {type(array) for array in host.values()} == {np.ndarray}
    np.testing.assert_array_equal(host["rows"], x)
    np.testing.assert_array_equal(host["vector"], x[:, 0])
    # Of devices that are no mesh of ours, each takes rows of its own, in the order of their ids.
    other = Mesh(np.array(jax.devices()[6:2:-1]).reshape(2, 2), ("a", "b"))
    found = mesh_of({"x": jax.device_put(x, NamedSharding(other, P("b")))})
    assert found.shape == {"data": 4, "fsdp": 1, "tensor": 1}
    assert found.devices.ravel().tolist() == jax.devices()[3:7]


def rows():
    """Both of the above, in one process."""
    rows_of_processes()
    rows_on_devices()


def test_rows_of_devices_and_of_processes_together_are_the_batch():
    on_eight_devices("rows")


@pytest.mark.parametrize(
    ("sizes", "vocab_size", "mesh", "message"),
    [
        ({"num_heads": 2}, 24, {"tensor": 4}, "num_heads=2 is not divisible by parallel.tensor=4"),
        ({}, 25, {"tensor": 2}, "embedding/embedding has 25 entries on its axis 'vocab'"),
        ({"d_ff": 25}, 24, {"tensor": 3}, "'mlp', which parallel.tensor=3 does not divide"),
        ({}, 24, {"fsdp": 5}, "has 24 entries on its axis 'embed', which parallel.fsdp=5 does"),
    ],
)
def test_a_model_that_cannot_be_cut_into_equal_parts_is_refused(sizes, vocab_size, mesh, message):
    config = make_config(24, **{f"model__{name}": size for name, size in sizes.items()})
    shape = [mesh.get(axis, 1) for axis in AXES]
    places = Mesh(np.broadcast_to(jax.devices()[0], shape), AXES)
    with refused(message):
        abstract_state(config, make_model(config, vocab_size, None), places)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
