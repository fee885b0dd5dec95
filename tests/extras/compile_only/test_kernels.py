"""Kernels of small programs whose bytes and operations one can count."""

import pytest

from t2t_jax.extras.compile_only.hlo import parse_program
from t2t_jax.extras.compile_only.kernels import Kernel, kernels, loop_kernels, roofline
from t2t_jax.parallel.hardware import Hardware

_PRODUCT = "jit(step)/while/body/transpose(jvp(Net.apply))/Net.decoded/feed_forward/dot_general"
# Five rounds, each with a product of [4, 8] and [8, 16], the sum of one of six rows of %all with a
# number, which is written in its place, and a library's product. Before, a copy; after, what two
# devices add up while a product runs.
_PROGRAM = f"""\
HloModule jit_step, is_scheduled=true, num_partitions=2

%product (a: bf16[4,8], b: bf16[8,16]) -> bf16[4,16] {{
  %a = bf16[4,8]{{1,0}} parameter(0)
  %b = bf16[8,16]{{1,0}} parameter(1)
  ROOT %dot = bf16[4,16]{{1,0}} dot(%a, %b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}

%row (all: f32[6,16], i: s32[]) -> f32[6,16] {{
  %all = f32[6,16]{{1,0}} parameter(0)
  %i = s32[] parameter(1)
  %zero = s32[] constant(0)
  %one = f32[1,16]{{1,0}} dynamic-slice(%all, %i, %zero), dynamic_slice_sizes={{1,16}}
  %twice = f32[1,16]{{1,0}} add(%one, %one)
  ROOT %new = f32[6,16]{{1,0}} dynamic-update-slice(%all, %twice, %i, %zero)
}}

%add (x: f32[], y: f32[]) -> f32[] {{
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}}

%body (state: (s32[], bf16[4,8], bf16[8,16], f32[6,16])) -> (s32[], f32[6,16]) {{
  %state = (s32[], bf16[4,8], bf16[8,16], f32[6,16]{{1,0}}) parameter(0)
  %n = s32[] get-tuple-element(%state), index=0
  %p = bf16[4,8]{{1,0}} get-tuple-element(%state), index=1
  %q = bf16[8,16]{{1,0}} get-tuple-element(%state), index=2
  %r = f32[6,16]{{1,0}} get-tuple-element(%state), index=3
  %h = bf16[4,16]{{1,0}} fusion(%p, %q), kind=kCustom, calls=%product, \
metadata={{op_name="{_PRODUCT}"}}
  %s = f32[6,16]{{1,0}} fusion(%r, %n), kind=kLoop, calls=%row
  %l = (bf16[4,16]{{1,0}}, s8[64]{{0}}) custom-call(%p, %q), \
custom_call_target="__cublas$lt$matmul", \
backend_config={{"dot_dimension_numbers":{{"lhs_contracting_dimensions":["1"]}}}}
  ROOT %t = (s32[], f32[6,16]{{1,0}}) tuple(%n, %s)
}}

%condition (state.1: (s32[], f32[6,16])) -> pred[] {{
  %state.1 = (s32[], f32[6,16]{{1,0}}) parameter(0)
  %i.1 = s32[] get-tuple-element(%state.1), index=0
  %bound = s32[] constant(5)
  ROOT %less = pred[] compare(%i.1, %bound), direction=LT
}}

ENTRY %main (x: f32[100], p0: bf16[4,8], q0: bf16[8,16], r0: f32[6,16]) -> f32[100] {{
  %x0 = f32[100]{{0}} parameter(0)
  %p0 = bf16[4,8]{{1,0}} parameter(1)
  %q0 = bf16[8,16]{{1,0}} parameter(2)
  %r0 = f32[6,16]{{1,0}} parameter(3)
  %c = f32[100]{{0}} copy(%x0)
  %w = (s32[], f32[6,16]{{1,0}}) while(%r0), condition=%condition, body=%body
  %start = f32[100]{{0}} all-reduce-start(%c), replica_groups={{{{0,1}}}}, to_apply=%add
  %last = bf16[4,16]{{1,0}} fusion(%p0, %q0), kind=kCustom, calls=%product
  ROOT %done = f32[100]{{0}} all-reduce-done(%start)
}}
"""
_PRODUCT_BYTES = 2 * (4 * 8 + 8 * 16 + 4 * 16)
_PRODUCT_FLOPS = 2 * 4 * 8 * 16


def test_kernels_are_those_that_can_be_counted():
    copy, product, row, library, reduced, last = kernels(parse_program(_PROGRAM))
    assert (copy.num_bytes, copy.flops, copy.count) == (2 * 400, 0, 1)
    assert (product.num_bytes, product.flops, product.count) == (_PRODUCT_BYTES, _PRODUCT_FLOPS, 5)
    assert product.label == "feed_forward: dot_general, backward"
    # It reads one row and the place of it, and writes one row.
    assert (row.num_bytes, row.count) == (64 + 4 + 64, 5)
    # The room that the library works in is not counted: it may need none of it.
    assert (library.flops, library.num_bytes) == (_PRODUCT_FLOPS, _PRODUCT_BYTES)
    assert (last.num_bytes, last.count) == (_PRODUCT_BYTES, 1)
    assert reduced.transfer.num_bytes == 400
    assert (reduced.num_bytes, reduced.num_overlapped) == (0, 1)


def test_of_a_conditional_the_branch_that_moves_least_is_counted():
    start, end = _PROGRAM.split("ENTRY %main")
    branches = "".join(
        f"""\
%{name} (y: f32[100]) -> f32[100] {{
  %y = f32[100]{{0}} parameter(0)
  ROOT %copy = f32[{size}]{{0}} copy(%y)
}}

"""
        for name, size in (("long", 100), ("short", 50))
    )
    chosen = (
        "  %either = f32[100]{0} conditional(%flag, %c, %c), branch_computations={%long, %short}"
    )
    program = start + branches + "ENTRY %main" + end.replace("  %w =", chosen + "\n  %w =")
    copy, of_branch, *_ = kernels(parse_program(program))
    assert (copy.num_bytes, of_branch.num_bytes) == (2 * 400, 400 + 200)


_GPU = Hardware(1e9, 1 << 30, 1e9, 1e6)
_TPU = Hardware(1e9, 1 << 30, 1e9, 1e6, clock_hz=1e6)


def test_a_gpus_kernel_takes_the_longer_of_products_and_bytes_and_a_start():
    many = Kernel("a: dot", flops=3e6, num_bytes=1e6, count=10)
    wide = Kernel("b: add", flops=0, num_bytes=1.7e6, count=2)
    bound = roofline([many, wide], _GPU)
    assert [group.label for group in bound.groups] == ["a: dot", "b: add"]
    assert bound.groups[0].seconds == pytest.approx(10 * (3e-3 + 2e-6))
    assert bound.groups[1].seconds == pytest.approx(2 * (1.7e-3 / 0.85 + 2e-6))
    assert [group.starts for group in bound.groups] == [10, 2]
    assert bound.num_bytes == 10 * 1e6 + 2 * 1.7e6
    assert bound.seconds == pytest.approx(sum(group.seconds for group in bound.groups))


def test_a_tpus_kernel_takes_the_cycles_that_its_compiler_counts():
    counted = Kernel("a", flops=9e9, num_bytes=9e9, count=3, cycles=500)
    copy = Kernel("b", flops=0, num_bytes=5e6, count=1, is_async_copy=True)
    other = Kernel("c", flops=0, num_bytes=1e6, count=1)
    seconds = {one.label: one.seconds for one in roofline([counted, copy, other], _TPU).groups}
    assert seconds == pytest.approx({"a": 3 * 500e-6, "b": 0, "c": 1e-3})


def test_of_a_transfer_only_what_no_kernel_runs_beside_is_waited_for():
    _, _, _, _, reduced, last = kernels(parse_program(_PROGRAM))
    sending = 400 / 1e6  # two devices: twice half of it
    computing = _PRODUCT_FLOPS / 1e9 + 2e-6  # longer than its bytes take
    bound = roofline([reduced, last], _GPU)
    assert bound.transfers_seconds == pytest.approx(sending)
    assert bound.waiting_seconds == pytest.approx(sending - computing)
    assert bound.seconds == pytest.approx(sending)
    slow = Hardware(1e9, 1 << 30, 1e3, 1e6)
    assert roofline([reduced, last], slow).waiting_seconds == 0


@pytest.mark.parametrize(
    ("name", "flops"),
    [
        ("__cudnn$fmhaScaleBiasSoftmax", 2 * 2 * 3 * 6 * 4 * 8 * 5),
        ("__cudnn$fmhaScaleBiasSoftmaxBackward", 2 * 5 * 3 * 6 * 4 * 8 * 5),
        ("a call of something else", 0),
    ],
)
def test_fused_attention_is_two_products_and_five_for_its_derivative(name, flops):
    text = f"""\
HloModule m

ENTRY %main (q: bf16[3,6,4,8], k: bf16[3,5,4,8]) -> bf16[3,4,6,8] {{
  %q = bf16[3,6,4,8]{{3,2,1,0}} parameter(0)
  %k = bf16[3,5,4,8]{{3,2,1,0}} parameter(1)
  ROOT %o = bf16[3,4,6,8]{{3,1,2,0}} custom-call(%q, %k, %k), custom_call_target="{name}"
}}
"""
    [found] = kernels(parse_program(text))
    assert found.flops == flops


def test_what_a_tpu_copies_and_calls_beside_its_kernels():
    text = """\
HloModule m

%product (a: bf16[4,8], b: bf16[8,16]) -> bf16[4,16] {
  %a = bf16[4,8]{1,0} parameter(0)
  %b = bf16[8,16]{1,0} parameter(1)
  ROOT %d = bf16[4,16]{1,0} convolution(%a, %b), dim_labels=bf_io->bf
}

ENTRY %main (x: bf16[6,8], b: bf16[8,16]) -> bf16[4,16] {
  %x = bf16[6,8]{1,0:T(8,128)} parameter(0)
  %b.1 = bf16[8,16]{1,0:T(8,128)} parameter(1)
  %s = ((bf16[6,8]{1,0:T(8,128)}), bf16[4,8]{1,0:T(8,128)S(1)}, s32[]{:S(2)}) \
slice-start(%x), slice={[0:4], [0:8]}
  %e = bf16[4,8]{1,0:T(8,128)S(1)} slice-done(%s)
  %j = bf16[4,8]{1,0} custom-call(%e), custom_call_target="ConcatBitcast"
  ROOT %f = bf16[4,16]{1,0} fusion(%j, %b.1), kind=kOutput, calls=%product, \
backend_config={"estimated_cycles":"1234"}
}
"""
    copy, product = kernels(parse_program(text))
    assert (copy.is_async_copy, copy.num_bytes) == (True, 64)
    assert (product.cycles, product.flops) == (1234, _PRODUCT_FLOPS)


def test_a_round_of_a_search_is_that_of_the_loop_that_does_not_say_how_often_it_runs():
    product, row, library = loop_kernels(parse_program(_PROGRAM))
    assert (product.flops, product.count) == (_PRODUCT_FLOPS, 1)
    assert (row.count, library.count) == (1, 1)
    counted = _PROGRAM.replace("body=%body", 'body=%body, {"known_trip_count":{"n":"5"}}')
    assert loop_kernels(parse_program(counted)) == []


@pytest.mark.parametrize(
    ("phase", "products"), [("fwd_segmented_residuals", 2), ("dkv_segmented", 4), ("dq", 3)]
)
@pytest.mark.parametrize("causal", [False, True])
def test_attention_in_a_kernel_for_tpus_has_the_products_of_the_blocks_that_are_seen(
    phase, products, causal
):
    text = f"""\
HloModule m

ENTRY %main (q: bf16[2,4,96,8], k: bf16[2,4,64,8], v: bf16[2,4,64,8]) -> bf16[2,4,96,8] {{
  %next = s8[1,2,2]{{2,1,0}} parameter(0)
  %q = bf16[2,4,96,8]{{3,2,1,0}} parameter(1)
  %k = bf16[2,4,64,8]{{3,2,1,0}} parameter(2)
  %v = bf16[2,4,64,8]{{3,2,1,0}} parameter(3)
  %places = s32[96,128]{{1,0}} parameter(4)
  %numbers = s32[2,96,128]{{2,1,0}} parameter(5)
  %others = s32[2,8,64]{{2,1,0}} parameter(6)
  %splash_mha_{phase}_no_residuals.1 = bf16[2,4,96,8]{{3,2,1,0}} \
custom-call(%next, %q, %k, %v, %numbers, %others{", %places" * causal}), \
custom_call_target="tpu_custom_call", \
frontend_attributes={{kernel_metadata={{
"xprof_metadata":"{{\\"block_q\\": 512}}"
}}}}, metadata={{op_name="jit(step)/self_attention/shard_map/pallas_call"}}
  ROOT %other = bf16[2,4,96,8]{{3,2,1,0}} custom-call(%splash_mha_{phase}_no_residuals.1), \
custom_call_target="tpu_custom_call"
}}
"""
    attention, other = kernels(parse_program(text))
    assert attention.label == "self_attention: pallas_call"
    seen = 3 / 4 if causal else 1  # of two blocks of queries and two of keys
    assert attention.flops == products * 2 * (2 * 4 * 96 * 64 * 8) * seen
    assert other.flops == 0


@pytest.mark.parametrize(("results", "products"), [(1, 2), (3, 5)])
def test_attention_of_short_rows_has_the_products_of_all_queries_with_all_keys(results, products):
    shapes = ", ".join(["bf16[2,40,8,16]{3,2,1,0}"] * results)
    shapes = shapes if results == 1 else f"({shapes})"
    name = "short_attention_backward" if results == 3 else "short_attention_forward"
    text = f"""\
HloModule m

ENTRY %main (q: bf16[2,40,8,16], k: bf16[2,56,8,16]) -> bf16[2,40,8,16] {{
  %q = bf16[2,40,8,16]{{3,2,1,0}} parameter(0)
  %k = bf16[2,56,8,16]{{3,2,1,0}} parameter(1)
  %mask = s8[2,1,40,56]{{3,2,1,0}} parameter(2)
  ROOT %pallas_call.1 = {shapes} custom-call(%q, %k, %k, %mask), \
custom_call_target="__gpu$xla.gpu.triton", \
metadata={{op_name="jit(step)/self_attention/{name}/pallas_call"}}
}}
"""
    [attention] = kernels(parse_program(text))
    assert attention.label == f"{name}: pallas_call"
    assert attention.flops == products * 2 * (2 * 8 * 40 * 56 * 16)
