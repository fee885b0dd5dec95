"""Devices of several slices or hosts: what crosses the slow links between them."""

from dataclasses import dataclass
from unittest import mock

import numpy as np
import pytest
from jax.sharding import Mesh

from t2t_jax.config import ParallelConfig
from t2t_jax.extras.compile_only.topologies import devices_of
from t2t_jax.parallel.mesh import AXES, arrange_devices, described_slices, make_mesh
from tests.refusals import refused
from tests.selection import needs_cuda


@dataclass(frozen=True)
class _Device:
    """What JAX tells of a device."""

    id: int
    process_index: int
    slice_index: int
    platform: str = "gpu"
    device_kind: str = "NVIDIA H100 80GB HBM3"
    coords: tuple[int, int, int] = (0, 0, 0)
    core_on_chip: int = 0


def _gpus(*counts, each_its_process=False):
    """GPUs of hosts, whose numbers go round the hosts, as a cyclic distribution of tasks has it."""
    places = sorted((place, host) for host, count in enumerate(counts) for place in range(count))
    return [_Device(i, i if each_its_process else host, host) for i, (_, host) in enumerate(places)]


def _tpus(num_slices, rows, columns):
    """Slices of TPUs, each a grid of chips in hosts of 2 x 2."""
    return [
        _Device(
            id=(index * rows + x) * columns + y,
            process_index=(index * rows // 2 + x // 2) * columns // 2 + y // 2,
            slice_index=index,
            platform="tpu",
            device_kind="TPU v5 lite",
            coords=(x, y, 0),
        )
        for index in range(num_slices)
        for x in range(rows)
        for y in range(columns)
    ]


def _slices(placed):
    return np.vectorize(lambda device: device.slice_index, otypes=[int])(placed)


def _crossing(axes):
    return f"over the slower links between slices or hosts: {axes}"


@pytest.mark.parametrize(
    "devices", [_gpus(8, 8), _gpus(8, 8, 8, 8), _tpus(2, 4, 4), _tpus(3, 2, 4)]
)
@pytest.mark.parametrize(("fsdp", "tensor"), [(1, 1), (8, 1), (4, 2), (2, 2), (1, 8)])
@pytest.mark.parametrize("processes", [1, 4])
def test_fsdp_and_tensor_stay_within_a_slice_where_they_fit(devices, fsdp, tensor, processes):
    shape = len(devices) // (fsdp * tensor), fsdp, tensor
    with mock.patch("jax.process_count", return_value=processes):
        placed = arrange_devices(shape, devices)
        mesh = Mesh(placed, AXES)
        crossed = described_slices(mesh)
    assert placed.shape == shape
    assert {*placed.flat} == {*devices}
    found = _slices(placed)
    assert (found == found[:, :1, :1]).all()
    assert crossed == _crossing(f"data in {len({*found.flat})} parts")


def test_a_process_for_each_gpu_is_not_a_slice():
    devices = _gpus(4, 4, each_its_process=True)
    with mock.patch("jax.process_count", return_value=8):
        found = _slices(arrange_devices((2, 4, 1), devices))
    assert (found == found[:, :1]).all()


@pytest.mark.parametrize(
    ("shape", "devices", "crossed"),
    [
        ((1, 16, 1), _gpus(8, 8), (1, 2, 1)),
        ((1, 4, 4), _gpus(8, 8), (1, 2, 1)),
        ((1, 1, 16), _gpus(8, 8), (1, 1, 2)),
        ((2, 16, 1), _gpus(8, 8, 8, 8), (2, 2, 1)),
        ((2, 12, 1), _gpus(8, 8, 8), (1, 3, 1)),
        ((1, 32, 1), _tpus(2, 4, 4), (1, 2, 1)),
    ],
)
def test_what_does_not_fit_a_slice_crosses_by_its_outer_part(shape, devices, crossed):
    placed = arrange_devices(shape, devices)
    found = _slices(placed)
    mesh = Mesh(placed, AXES)
    parts = [f"{name} in {n} parts" for name, n in zip(AXES, crossed, strict=True) if n > 1]
    assert described_slices(mesh) == _crossing(" and ".join(parts))
    # Neighbours along an axis are in one slice, but where one block of a slice ends.
    for axis, (size, parts) in enumerate(zip(shape, crossed, strict=True)):
        changes = np.diff(found, axis=axis) != 0
        assert (changes.sum(axis=axis) == parts - 1).all()
        inner = size // parts
        assert not np.delete(changes, np.arange(inner - 1, size - 1, inner), axis=axis).any()


def test_hosts_with_different_numbers_of_devices_follow_each_other():
    found = _slices(arrange_devices((3, 2, 2), _gpus(8, 4)))
    assert found[:, 0, 0].tolist() == [0, 0, 1]
    assert (found == found[:, :1, :1]).all()


def test_a_layout_that_unequal_hosts_do_not_have_is_refused_in_one_line():
    message = r"fsdp=4 times parallel\.tensor=1 does not divide the 6 devices of slice .* 0"
    with refused(match=message):
        make_mesh(ParallelConfig(fsdp=4), _gpus(6, 2))


def test_one_slice_is_laid_out_as_jax_does_it_and_crosses_nothing():
    devices = _tpus(1, 4, 4)
    with mock.patch("jax.process_count", return_value=4):
        placed = arrange_devices((2, 4, 2), devices)
    assert {*placed.flat} == {*devices}
    mesh = Mesh(placed, AXES)
    assert described_slices(mesh) == ""


@needs_cuda
def test_described_hosts_of_gpus_are_known_by_their_processes():
    mesh = make_mesh(ParallelConfig(fsdp=8), devices_of("h100:2x8"))
    assert described_slices(mesh) == _crossing("data in 2 parts")
    mesh = make_mesh(ParallelConfig(fsdp=16), devices_of("h100:2x8"))
    assert described_slices(mesh) == _crossing("fsdp in 2 parts")
