"""Meshes and how batches lie on them: of one device, or without any.

Computations on meshes of several devices are in `test_meshes.py`.
"""

from unittest import mock

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from t2t_jax.batch import Batch, Sequence
from t2t_jax.config import MeshConfig
from t2t_jax.parallel.mesh import (
    BatchLayout,
    batch_layout,
    make_mesh,
    mesh_of,
    prefetch_one,
    row_parts,
)
from tests.refusals import refused

_ONE = make_mesh(MeshConfig(data=1))


def _batch(rows, source, target):
    def side(length):
        return np.arange(1, rows * length + 1, dtype=np.int32).reshape(rows, length)

    return Batch(Sequence(*[side(source)] * 3), Sequence(*[side(target)] * 3))


@pytest.mark.parametrize(
    ("changes", "num_devices", "shape"),
    [
        ({}, 6, (6, 1, 1)),
        ({"tensor": 2}, 6, (3, 1, 2)),
        ({"fsdp": 2, "tensor": 3}, 6, (1, 2, 3)),
        ({"data": 2, "fsdp": 2}, 6, (2, 2, 1)),
        ({"data": 1}, 6, (1, 1, 1)),
    ],
)
def test_data_takes_what_the_other_axes_leave(changes, num_devices, shape):
    chosen = []

    def place(shape, devices, **_):
        chosen.extend(devices)
        return np.broadcast_to(jax.devices()[0], shape)

    with mock.patch("t2t_jax.parallel.mesh.mesh_utils.create_device_mesh", place):
        mesh = make_mesh(MeshConfig(**changes), list(range(num_devices)))
    assert dict(mesh.shape) == dict(zip(("data", "fsdp", "tensor"), shape, strict=True))
    assert chosen == list(range(np.prod(shape)))


@pytest.mark.parametrize(
    ("changes", "num_devices", "processes", "message"),
    [
        ({"fsdp": 2, "tensor": 3}, 8, 1, "tensor=3 is 6, which does not divide the 8 devices"),
        ({"data": 99}, 8, 1, "tensor=1 asks for 99 devices, but there are 8"),
        ({"data": 2, "fsdp": 2, "tensor": 3}, 8, 1, "asks for 12 devices, but there are 8"),
        ({"tensor": 16}, 8, 1, "is 16, which does not divide the 8 devices"),
        ({"data": 2, "fsdp": 2}, 8, 4, "parallel.tensor=1 is 4 of the 8 devices of 4 processes"),
    ],
)
def test_a_mesh_that_does_not_go_with_the_devices_is_refused(
    changes, num_devices, processes, message
):
    with mock.patch("jax.process_count", return_value=processes), refused(message):
        make_mesh(MeshConfig(**changes), [None] * num_devices)


_SIZES = st.integers(1, 8)


@given(
    st.integers(1, 200), _SIZES, _SIZES, _SIZES, st.integers(1, 50), st.none() | st.integers(1, 400)
)
def test_passes_hold_every_row_and_are_as_few_as_the_limit_allows(
    rows, data, fsdp, tensor, length, limit
):
    places = np.broadcast_to(jax.devices()[0], (data, fsdp, tensor))
    mesh = Mesh(places, ("data", "fsdp", "tensor"))
    parts = row_parts(mesh)
    assert parts == data * fsdp  # devices along `tensor` share their rows
    _, passes, rows_per_pass = batch_layout(mesh, rows, length, limit)
    assert passes * rows_per_pass >= rows
    assert rows_per_pass % parts == 0
    assert passes * rows_per_pass - rows < passes * parts  # fewer would not hold them
    rows_at_once = rows_per_pass // parts
    if limit is None:
        assert passes == 1
    else:
        assert rows_at_once == 1 or rows_at_once * length <= limit
        # One pass fewer would be more than a device may hold.
        assert passes == 1 or -(-rows // ((passes - 1) * parts)) * length > limit


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 9), st.none() | st.integers(1, 80))
def test_a_batch_is_laid_out_row_after_row_and_filled_up_with_empty_ones(
    rows, source, target, limit
):
    batch = _batch(rows, source, target)
    layout = batch_layout(_ONE, rows, max(source, target), limit)
    np.testing.assert_array_equal(
        layout.local_rows(), np.arange(layout.passes * layout.rows_per_pass)
    )
    placed = jax.tree.leaves(layout.put(batch))
    for host, device in zip(jax.tree.leaves(batch), placed, strict=True):
        assert device.shape == (layout.passes, layout.rows_per_pass, host.shape[1])
        flat = np.asarray(device).reshape(-1, host.shape[1])
        np.testing.assert_array_equal(flat[:rows], host)
        assert not flat[rows:].any()


def test_empty_rows_at_the_end_may_be_there_or_left_out():
    layout = BatchLayout(_ONE, passes=2, rows_per_pass=4)
    batch = _batch(5, 3, 2)
    filled = jax.tree.map(lambda x: np.pad(x, ((0, 3), (0, 0))), batch)
    placed = (jax.tree.leaves(layout.put(each)) for each in (batch, filled))
    for short, full in zip(*placed, strict=True):
        np.testing.assert_array_equal(short, full)


def test_mesh_of_parameters_is_where_they_are():
    [device, *_] = jax.devices()
    for place in (
        device,
        NamedSharding(_ONE, PartitionSpec()),
        NamedSharding(Mesh(np.array([device]), ("x",)), PartitionSpec("x")),
    ):
        mesh = mesh_of({"kernel": jax.device_put(np.ones(3), place)})
        assert mesh == _ONE
        assert mesh.devices.tolist() == [[[device]]]


def test_a_batch_is_launched_before_the_one_before_it_is_read():
    made: list[int] = []
    items = (made.append(i) or i for i in range(3))
    seen = [(item, list(made)) for item in prefetch_one(items)]
    assert seen == [(0, [0, 1]), (1, [0, 1, 2]), (2, [0, 1, 2])]
