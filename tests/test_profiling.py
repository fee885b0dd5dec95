"""A program and profiles of it, made by hand, whose kernels and times one can count."""

import jax
import pytest

from t2t_jax.extras.compile_only.hlo import parse_program
from t2t_jax.parallel.hardware import Hardware

# Python 3.13 says so of jaxlib's own types; an error there would end the process.
pytestmark = pytest.mark.filterwarnings("ignore:builtin type event_stats:DeprecationWarning")

# Twice a product of [4, 8] and [8, 16] and what is added to it; then a library's product, a copy
# and what the devices send each other.
_PROGRAM = """\
HloModule jit_step, is_scheduled=true, num_partitions=2

%added (a: bf16[4,16]) -> bf16[4,16] {
  %a = bf16[4,16]{1,0} parameter(0)
  ROOT %sum.1 = bf16[4,16]{1,0} add(%a, %a)
}

%plus (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum.2 = f32[] add(%x, %y)
}

%body (state: (s32[], bf16[4,8], bf16[8,16])) -> (s32[], bf16[4,8], bf16[8,16]) {
  %state = (s32[], bf16[4,8]{1,0}, bf16[8,16]{1,0}) parameter(0)
  %n = s32[] get-tuple-element(%state), index=0
  %p = bf16[4,8]{1,0} get-tuple-element(%state), index=1
  %q = bf16[8,16]{1,0} get-tuple-element(%state), index=2
  %dot.3 = bf16[4,16]{1,0} dot(%p, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}, \
metadata={op_name="jit(step)/Net.apply/decoder/feed_forward/dot_general"}
  %fusion.4 = bf16[4,16]{1,0} fusion(%dot.3), kind=kLoop, calls=%added, \
metadata={op_name="jit(step)/Net.apply/decoder/norm/add"}
  ROOT %t = (s32[], bf16[4,8]{1,0}, bf16[8,16]{1,0}) tuple(%n, %p, %q)
}

%condition (state.1: (s32[], bf16[4,8], bf16[8,16])) -> pred[] {
  %state.1 = (s32[], bf16[4,8]{1,0}, bf16[8,16]{1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%state.1), index=0
  %bound = s32[] constant(2)
  ROOT %less = pred[] compare(%i.1, %bound), direction=LT
}

ENTRY %main (p0: bf16[4,8], q0: bf16[8,16], r0: f32[100]) -> f32[100] {
  %p0 = bf16[4,8]{1,0} parameter(0)
  %q0 = bf16[8,16]{1,0} parameter(1)
  %r0 = f32[100]{0} parameter(2)
  %while.5 = (s32[], bf16[4,8]{1,0}, bf16[8,16]{1,0}) while(%p0), condition=%condition, \
body=%body, metadata={op_name="jit(step)/while"}
  %cublas.6 = (bf16[4,16]{1,0}, s8[64]{0}) custom-call(%p0, %q0), \
custom_call_target="__cublas$lt$matmul", \
backend_config={"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}, \
metadata={op_name="jit(step)/Net.apply/decoder/feed_forward/dot_general"}
  %copy.7 = f32[100]{0} copy(%r0)
  ROOT %all-reduce.8 = f32[100]{0} all-reduce(%copy.7), replica_groups={{0,1}}, to_apply=%plus
}
"""
_PRODUCT_BYTES = 2 * (4 * 8 + 8 * 16 + 4 * 16)
_PRODUCT_FLOPS = 2 * 4 * 8 * 16
_GPU = Hardware(1e9, 1 << 30, 1e9, 1e6)


def _plane(name, lines):
    """The text of a plane: of each line events of (name, hlo_op, hlo_module, start, duration)."""
    kernels = [event[0] for events in lines.values() for event in events]
    text = "".join(
        f'event_metadata {{ key: {n} value {{ id: {n} name: "{kernel}" }} }}\n'
        for n, kernel in enumerate(kernels, 1)
    )
    for n, stat in enumerate(("hlo_op", "hlo_module"), 1):
        text += f'stat_metadata {{ key: {n} value {{ id: {n} name: "{stat}" }} }}\n'
    number = 0
    for line, events in lines.items():
        text += f'lines {{ name: "{line}"\n'
        for _, *stats, start, duration in events:
            number += 1
            told = "".join(
                f' stats {{ metadata_id: {n} str_value: "{stat}" }}'
                for n, stat in enumerate(stats, 1)
                if stat
            )
            times = f"offset_ps: {start * 1_000_000} duration_ps: {duration * 1_000_000}"
            text += f"events {{ metadata_id: {number} {times}{told} }}\n"
        text += "}\n"
    return f'planes {{ name: "{name}"\n{text}}}\n'


def _profile(module, *planes):
    profile = jax.profiler.ProfileData.from_serialized_xspace(
        jax.profiler.ProfileData.text_proto_to_serialized_xspace("".join(planes))
    )
    return module("profiling").read(profile)


def _device(number, kernel_time):
    """What one GPU did, in microseconds: 100 of them idle."""
    return _plane(
        f"/device:GPU:{number}",
        {
            "Stream #7(Compute)": [
                ("gemm", "dot.3", "jit_step", 1000, 10),
                ("add", "fusion.4", "jit_step", 1010, 20),
                ("memcpy", "while.5", "jit_step", 1030, 5),
                ("gemm", "dot.3", "jit_step", 1035, 12),
                ("add", "fusion.4", "jit_step", 1047, 20),
                ("split", "cublas.6", "jit_step", 1067, 30),
                ("reduce", "cublas.6", "jit_step", 1097, 3),
                ("copy", "copy.7", "jit_step", 1200, kernel_time),  # after 100 without a kernel
                ("fusion_4", "fusion.4", "jit_true_divide", 1200 + kernel_time, 7),
                ("MemcpyD2H", "", "", 1207 + kernel_time, 3),
            ],
            # At the same time as the copy.
            "Stream #8(Collectives)": [("nccl", "all-reduce.8", "jit_step", 1200, kernel_time)],
            "Launch Stats": [("jit_step", "copy.7", "jit_step", 1000, 9000)],
        },
    )


def test_the_time_of_kernels_stands_beside_their_bound(module):
    host = _plane("/host:CPU", {"main": [("cuLaunchKernel", "dot.3", "jit_step", 900, 4000)]})
    profile = _profile(module, host, _device(0, 40), _device(1, 60))
    rows = module("bounds").beside_the_bound(parse_program(_PROGRAM), profile, 4e-4, _GPU)
    product = max(_PRODUCT_FLOPS / 1e9, _PRODUCT_BYTES / 0.85e9) + 2e-6
    added = 2 * 2 * 4 * 16 / 0.85e9 + 2e-6
    copied = 2 * 400 / 0.85e9 + 2e-6
    computed = 3 * product + 2 * added + copied
    # By kind: kernels started, kernels in the profile, microseconds, and at least so many seconds.
    # The two devices send each other twice half of 400 bytes, and nothing runs meanwhile.
    expected = {
        "feed_forward: dot_general": (3, 4, 10 + 12 + 30 + 3, 3 * product),
        "step: all-reduce": (1, 1, 50, 400 / 1e6),
        "step: copy": (1, 1, 50, copied),
        "norm: add": (2, 2, 20 + 20, 2 * added),
        "step: while": (0, 1, 5, 0),
        "not in the program": (0, 2, 7 + 3, 0),
    }
    *kinds, idle, total, unwatched = rows
    assert [row["kind"] for row in kinds] == [*expected]
    for row in kinds:
        started, seen, microseconds, least = expected[row["kind"]]
        assert (row["kernels_started"], row["kernels_in_the_profile"]) == (started, seen)
        assert row["measured_milliseconds"] == pytest.approx(microseconds / 1e3)
        assert row["least_milliseconds"] == pytest.approx(least * 1e3)
        ratio = {"measured / bound": pytest.approx(microseconds / 1e6 / least)} if least else {}
        assert {n: row[n] for n in row if "/" in n} == ratio
    assert kinds[0]["tflop"] == pytest.approx(3 * _PRODUCT_FLOPS / 1e12)
    assert kinds[0]["gib"] == pytest.approx(3 * _PRODUCT_BYTES / 2**30)
    assert idle["measured_milliseconds"] == pytest.approx(0.1)
    assert (total["kernels_started"], total["kernels_in_the_profile"]) == (7, 11)
    assert total["measured_milliseconds"] == pytest.approx(0.2 + 0.05 + 0.01)
    for row, seconds in ((total, 260e-6), (unwatched, 4e-4)):
        assert row["least_milliseconds"] == pytest.approx(1e3 * (computed + 400 / 1e6))
        assert row["measured / bound"] == pytest.approx(seconds / (computed + 400 / 1e6))


def test_devices_without_known_peaks_have_no_bound(module):
    rows = module("bounds").beside_the_bound(
        parse_program(_PROGRAM), _profile(module, _device(0, 40)), 4e-4, None
    )
    assert not any("measured / bound" in row for row in rows)
    told = [row["kind"] for row in rows if "least_milliseconds" in row]
    assert told == [row["kind"] for row in rows[-2:]]
    assert rows[-1]["least_milliseconds"] == "not known: no peaks of this device"


def test_a_thread_of_a_cpu_spends_the_time_of_a_loop_in_what_the_loop_runs(module):
    threads = {
        "first": [
            ("while.5", "while.5", "jit_step", 0, 100),
            ("dot.3", "dot.3", "jit_step", 10, 30),
            ("fusion.4", "fusion.4", "jit_step", 50, 40),
            ("allocate", "", "", 100, 50),
            ("copy.7", "copy.7", "jit_step", 150, 20),
        ],
        "second": [("dot.3", "dot.3", "jit_step", 40, 30)],
    }
    profile = _profile(module, _plane("/host:CPU", threads))
    times = {}
    for each in profile.operations:
        times[each.name] = times.get(each.name, 0) + each.seconds
    assert times == pytest.approx(
        {"while.5": 30e-6, "dot.3": 60e-6, "fusion.4": 40e-6, "copy.7": 20e-6}
    )
    assert (profile.num_devices, profile.seconds) == (1, pytest.approx(170e-6))
    assert profile.idle_seconds == pytest.approx(50e-6)


def test_a_profile_that_names_no_operations_shares_out_nothing(module):
    profile = _profile(module, _plane("/host:CPU", {"first": [("work", "", "", 0, 100)]}))
    assert not profile.operations
    assert {*module("profiling").shares(parse_program(_PROGRAM), profile).values()} == {0}


def test_a_tpus_events_have_the_text_of_instructions(module):
    ops = [("%dot.3 = bf16[4,16]{1,0} dot(%p, %q)", "", "", 0, 10), ("copy.7", "", "", 10, 5)]
    lines = {"XLA Modules": [("jit_step(1)", "", "", 0, 15)], "XLA Ops": ops}
    profile = _profile(module, _plane("/device:TPU:0", lines))
    joined = module("profiling").joined(parse_program(_PROGRAM), profile)
    assert [each.opcode for _, each in joined] == ["dot", "copy"]
