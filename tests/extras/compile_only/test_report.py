import dataclasses

import pytest

from t2t_jax.data.rows import BatchShape
from t2t_jax.extras.compile_only.collectives import Collective
from t2t_jax.extras.compile_only.kernels import Kernel
from t2t_jax.extras.compile_only.report import StepMemory, StepReport, format_report
from t2t_jax.parallel.hardware import Hardware

_GIB = 1 << 30
_PAIRS = ((0, 1), (2, 3))
_SENT = [
    Collective("all-reduce", 2_000_000, _PAIRS, 10),  # sends all of it: 2 (2 - 1) / 2
    Collective("all-gather", 4_000_000, _PAIRS, 5),  # sends a half
    Collective("all-gather", 4_000_000, _PAIRS, 1),
]

REPORT = StepReport(
    devices="4 x TPU v5 lite",
    mesh_shape={"data": 2, "fsdp": 2, "tensor": 1},
    num_parameters=1_234_567,
    shape=BatchShape(96, 256, 128),
    passes=2,
    compile_seconds=12.34,
    flops=2e12,
    hardware=Hardware(1e14, 16 * _GIB, 1e12, 1e11, 1e9),
    memory=StepMemory(_GIB, 2 * _GIB, 1024, 4 * _GIB, 3 * _GIB // 2),
    available_bytes=16 * _GIB,
    num_train_steps=100_000,
    collectives=_SENT,
    kernels=[
        *(Kernel("step: a transfer", 0, 0, each.count, transfer=each) for each in _SENT),
        Kernel("a: dot_general", 1e12, 10**9, 2, cycles=25_000_000),
        Kernel("b: add", 0, 8 * 10**9, 1),
    ],
)


def test_bounds_are_work_over_peak():
    expected = {"compute": 0.02, "memory": 0.01, "communication": 32_000_000 / 1e11}
    assert REPORT.bounds == pytest.approx(expected)


def test_a_step_takes_as_long_as_its_kernels_and_what_it_waits_for():
    lines = list(format_report(REPORT))
    text = "\n".join(lines)
    seconds = 2 * 0.025 + 0.008 + 32_000_000 / 1e11
    positions = 96 * (256 + 128) / seconds
    assert f"at least {seconds * 1e3:.1f} ms over all kernels: at most {positions:,.0f}" in text
    assert f"{0.02 / seconds:.1%} of the peak" in text
    assert "0.32 ms of it do not overlap" in text
    assert f"100,000 steps take at least {1e5 * seconds / 60:.1f} min" in text
    [first, second] = lines[-2:]
    assert first.split() == [
        *("50.000", "ms", f"{0.05 / seconds:.1%}", "2", "1.86", "GiB", "2e+12", "a:", "dot_general")
    ]
    assert second.endswith("b: add")


def test_kinds_beyond_the_dearest_are_added_up():
    kernels = [Kernel(f"k{i}", 0, 10**6, 1, cycles=1000 - i) for i in range(23)]
    report = dataclasses.replace(REPORT, kernels=kernels)
    *_, last_named, rest = format_report(report)
    assert last_named.endswith(" k19")
    assert rest.split()[-3:] == ["3", "other", "kinds"]


@pytest.mark.parametrize(
    ("changes", "fits", "words"),
    [
        ({}, True, "fits: a device has 16.00 GiB"),
        ({"available_bytes": 8 * _GIB}, False, "DOES NOT FIT: a device has 8.00 GiB"),
        ({"exceeds_memory": True}, False, "DOES NOT FIT: a device has 16.00 GiB"),
        ({"available_bytes": None}, None, "the memory of a device is unknown"),
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
        ("total", "8.50", "GiB"),
    ):
        assert [name, *size] in lines


def test_collectives_are_added_up_by_kind_and_axes():
    [gathers] = [line for line in format_report(REPORT) if "all-gather over fsdp" in line]
    assert " 6 x," in gathers
    assert f"{24_000_000 / 2**20:.2f} MiB in total" in gathers
    assert f"{12_000_000 / 2**20:.2f} MiB sent" in gathers


def test_of_a_refused_step_nothing_more_is_said():
    report = dataclasses.replace(REPORT, exceeds_memory=True, collectives=())
    assert report.bounds == {}
    assert not any("sent" in line or "at least" in line for line in format_report(report))


def test_of_an_unknown_device_no_bound_is_told():
    report = dataclasses.replace(REPORT, hardware=None)
    assert report.bounds == {}
    assert "no lower bound on the time" in list(format_report(report))[-1]


def test_what_crosses_slices_and_the_flags_of_the_compiler_stand_at_the_top():
    report = dataclasses.replace(REPORT, slices="data is slow", compiler_options="--xla_a=true")
    first, *lines = format_report(report)
    assert first.startswith("4 x TPU v5 lite as data=2")
    assert lines[:2] == ["data is slow", "compiled with --xla_a=true"]
    assert list(format_report(REPORT)) == [first, *lines[2:]]
