from unittest.mock import Mock

import jax
import pytest

from t2t_jax.parallel.hardware import peaks, usable_memory


def device(kind, core_on_chip=0, memory_stats=None):
    return Mock(
        spec=jax.Device,
        device_kind=kind,
        core_on_chip=core_on_chip,
        memory_stats=Mock(return_value=memory_stats),
    )


def test_peaks_are_those_that_vendors_state():
    v5e, h100 = peaks([device("TPU v5 lite")]), peaks([device("NVIDIA H100 80GB HBM3")])
    assert (v5e.flops_per_s, v5e.memory_bytes_per_s) == (197e12, 819e9)
    assert v5e.sent_bytes_per_s == 1600e9 / 8  # 1600 Gbit/s a chip
    assert h100.memory_bytes == 80 * 2**30
    assert h100.sent_bytes_per_s == 900e9 / 2  # 900 GB/s in both directions


def test_cores_that_are_devices_of_their_own_share_a_chip():
    chip = peaks([device("TPU v4")])
    core = peaks([device("TPU v4", core) for core in (0, 1)])
    for figure, of_chip in vars(chip).items():
        assert getattr(core, figure) == (of_chip if figure == "clock_hz" else of_chip / 2)


def test_of_a_cpu_nothing_is_known():
    assert peaks(jax.devices("cpu")) is None
    assert usable_memory(jax.devices("cpu")) is None


@pytest.mark.parametrize(
    ("stats", "usable"), [({"bytes_limit": 12_345}, 12_345), ({}, 16 * 2**30), (None, 16 * 2**30)]
)
def test_memory_is_what_the_device_says_or_else_what_its_kind_has(stats, usable):
    assert usable_memory([device("TPU v5 lite", memory_stats=stats)]) == usable


def test_memory_of_a_device_that_is_only_described_is_that_of_its_kind():
    described = device("TPU v6 lite")
    described.memory_stats.side_effect = jax.errors.JaxRuntimeError("not addressable")
    assert usable_memory([described]) == 32 * 2**30
