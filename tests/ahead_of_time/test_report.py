import dataclasses

import pytest

from t2t_jax.ahead_of_time.collectives import Collective
from t2t_jax.ahead_of_time.report import StepMemory, StepReport, format_report
from t2t_jax.data.rows import BatchShape
from t2t_jax.parallel.hardware import Hardware

_GIB = 1 << 30
_PAIRS = ((0, 1), (2, 3))

REPORT = StepReport(
    devices="4 x TPU v5 lite",
    mesh_shape={"data": 2, "fsdp": 2, "tensor": 1},
    num_parameters=1_234_567,
    shape=BatchShape(96, 256, 128),
    passes=2,
    compile_seconds=12.34,
    flops=2e12,
    hardware=Hardware(1e14, 16 * _GIB, 1e12, 1e11),
    memory=StepMemory(_GIB, 2 * _GIB, 1024, 4 * _GIB, 3 * _GIB // 2),
    available_bytes=16 * _GIB,
    moved_bytes=10**10,
    collectives=[
        Collective("all-reduce", 2_000_000, _PAIRS, 10),  # sends all of it: 2 (2 - 1) / 2
        Collective("all-gather", 4_000_000, _PAIRS, 5),  # sends a half
        Collective("all-gather", 4_000_000, _PAIRS, 1),
    ],
)


def test_bounds_are_work_over_peak():
    expected = {"compute": 0.02, "memory": 0.01, "communication": 32_000_000 / 1e11}
    assert REPORT.bounds == pytest.approx(expected)


def test_the_largest_bound_is_what_a_step_waits_for():
    text = "\n".join(format_report(REPORT))
    positions = 96 * (256 + 128) / 0.02
    assert f"at least 20.0 ms (bound by compute): at most {positions:,.0f} positions/s" in text
    slow_links = dataclasses.replace(REPORT.hardware, sent_bytes_per_s=1e9)
    text = "\n".join(format_report(dataclasses.replace(REPORT, hardware=slow_links)))
    assert "at least 32.0 ms (bound by communication)" in text


@pytest.mark.parametrize(
    ("changes", "fits", "words"),
    [
        ({}, True, "fits: a device has 16.00 GiB"),
        ({"available_bytes": 8 * _GIB}, False, "DOES NOT FIT: a device has 8.00 GiB"),
        ({"refused": True}, False, "DOES NOT FIT: a device has 16.00 GiB"),
        ({"available_bytes": None}, None, "how much memory a device has is not known"),
    ],
)
def test_whether_a_step_fits(changes, fits, words):
    report = dataclasses.replace(REPORT, **changes)
    assert report.fits is fits
    assert words in list(format_report(report))


def test_memory_is_listed_and_added_up():
    lines = [line.split() for line in format_report(REPORT)]
    for name, *size in (
        ("parameters", "1.00", "GiB"),
        ("batch", "1.00", "KiB"),
        ("program", "1.50", "GiB"),
        ("all", "8.50", "GiB"),
    ):
        assert [name, *size] in lines


def test_collectives_are_added_up_by_kind_and_axes():
    [gathers] = [line for line in format_report(REPORT) if "all-gather over fsdp" in line]
    assert " 6 x," in gathers
    assert f"{24_000_000 / 2**20:.2f} MiB in all" in gathers
    assert f"{12_000_000 / 2**20:.2f} MiB sent" in gathers


def test_of_a_refused_step_nothing_more_is_said():
    report = dataclasses.replace(REPORT, refused=True, collectives=())
    assert report.bounds == {}
    assert not any("sent" in line or "at least" in line for line in format_report(report))


def test_of_an_unknown_device_no_bound_is_told():
    report = dataclasses.replace(REPORT, hardware=None)
    assert report.bounds == {}
    assert "no bound on the time" in list(format_report(report))[-1]
