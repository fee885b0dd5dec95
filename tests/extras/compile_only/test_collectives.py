import json
from collections import Counter

import pytest

from t2t_jax.extras.compile_only.collectives import Collective, collectives
from t2t_jax.extras.compile_only.hlo import parse_program
from tests.programs import run_python

# Two layers of calls: the entry runs a loop of 3 rounds, whose body runs a loop of 5.
_LOOPS = """\
HloModule jit_step, is_scheduled=true, num_partitions=8

%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}

%inner_body (state: (s32[], f32[2,3])) -> (s32[], f32[2,3]) {
  %state = (s32[], f32[2,3]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %v = f32[2,3]{1,0} get-tuple-element(%state), index=1
  %r = f32[2,3]{1,0} all-reduce(%v), channel_id=1, replica_groups={{0,1},{2,3},{4,5},{6,7}}, \
to_apply=%add
  ROOT %t = (s32[], f32[2,3]{1,0}) tuple(%i, %r)
}

%inner_condition (state.1: (s32[], f32[2,3])) -> pred[] {
  %state.1 = (s32[], f32[2,3]{1,0}) parameter(0)
  %bound = s32[]{:T(128)} constant(5)
  %i.1 = s32[]{:T(128)} get-tuple-element(%state.1), index=0
  ROOT %less = pred[]{:T(512)} compare(%i.1, %bound), direction=LT
}

%outer_body (state.2: (s32[], f32[2,3])) -> (s32[], f32[2,3]) {
  %state.2 = (s32[], f32[2,3]{1,0}) parameter(0)
  %loop = (s32[], f32[2,3]{1,0}) while(%state.2), condition=%inner_condition, body=%inner_body
  ROOT %fusion = (s32[], f32[2,3]{1,0}) fusion(%loop), kind=kLoop, calls=%fused
}

%fused (p: (s32[], f32[2,3])) -> (s32[], f32[2,3]) {
  %p = (s32[], f32[2,3]{1,0}) parameter(0)
  %q = f32[2,3]{1,0} get-tuple-element(%p), index=1
  ROOT %g = bf16[8,3]{1,0:T(8,128)(2,1)S(1)} all-gather(%q), channel_id=2, \
replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}
}

%outer_condition (state.3: (s32[], f32[2,3])) -> pred[] {
  %state.3 = (s32[], f32[2,3]{1,0}) parameter(0)
  ROOT %compared = pred[] fusion(%state.3), kind=kLoop, calls=%hidden
}

ENTRY %main (start: (s32[], f32[2,3])) -> (s32[], f32[2,3]) {
  %start = (s32[], f32[2,3]{1,0}) parameter(0)
  ROOT %outer = (s32[], f32[2,3]{1,0}) while(%start), condition=%outer_condition, \
body=%outer_body, backend_config={"known_trip_count":{"n":"3"}}
}
"""


def _program(*instructions: str) -> str:
    """A program of these instructions alone, on 8 devices."""
    lines = "\n".join(f"  {instruction}" for instruction in instructions)
    return f"HloModule m, num_partitions=8\n\nENTRY %main (p: f32[]) -> f32[] {{\n{lines}\n}}\n"


def _one(instruction: str) -> Collective:
    [found] = collectives(parse_program(_program(instruction)))
    return found


def test_a_collective_counts_as_often_as_the_loops_around_it_run():
    by_kind = {each.kind: each for each in collectives(parse_program(_LOOPS))}
    assert by_kind["all-reduce"].count == 15  # the bound is in the condition: 3 times 5
    assert by_kind["all-reduce"].num_bytes == 2 * 3 * 4
    assert by_kind["all-gather"].count == 3
    assert by_kind["all-gather"].num_bytes == 8 * 3 * 2


@pytest.mark.parametrize(("increment", "count"), [(1, 15), (2, 3 * 3), (5, 3)])
def test_a_loop_that_is_unrolled_has_fewer_rounds(increment, count):
    text = _LOOPS.replace(
        "  %v = f32[2,3]{1,0} get-tuple-element(%state), index=1\n",
        "  %v = f32[2,3]{1,0} get-tuple-element(%state), index=1\n"
        f"  %by = s32[]{{:T(128)}} constant({increment})\n"
        "  %next = s32[]{:T(128)} add(%i, %by), metadata={}\n",
    ).replace("tuple(%i, %r)", "tuple(%next, /*index=1*/%r)")
    assert {each.kind: each.count for each in collectives(parse_program(text))}[
        "all-reduce"
    ] == count


@pytest.mark.parametrize(
    ("written", "groups"),
    [
        ("replica_groups={{0,1},{2,3},{4,5},{6,7}}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("replica_groups={}", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("replica_groups=[2,4]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("replica_groups=[2,4]<=[4,2]T(1,0)", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("replica_groups=mesh['a'=2,'b'=4] {'a'}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("replica_groups=mesh['a'=2,'b'=4] {'b'}", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("replica_groups=mesh['a'=2,'b'=4] {'a','b'}", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        # Device (i, j) of this mesh is 2 j + i; groups along b, which are those of one i.
        (
            "replica_groups=mesh['a'=2,'b'=4], device_ids=([4,2]T(1,0)) {'b'}",
            ((0, 2, 4, 6), (1, 3, 5, 7)),
        ),
        # Axis b in 2 x 2; along the first half, members are 2 apart.
        ("replica_groups=mesh['a'=2,'b'=4] {'b':(1)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("replica_groups=mesh['a'=2,'b'=4] {'b':(2)2}", ((0, 1), (2, 3), (4, 5), (6, 7))),
    ],
)
def test_groups_of_devices_are_read_in_every_spelling(written, groups):
    found = _one(f"%r = f32[4]{{0}} all-reduce(%p), {written}, to_apply=%add")
    assert found.groups == groups


def test_a_spelling_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match="no groups of devices"):
        _one("%r = f32[4]{0} all-reduce(%p), replica_groups=some, to_apply=%add")


# Each device has 1200 bytes, or gets them; by hand: a ring of 4 sends 3 of 4 parts a round.
@pytest.mark.parametrize(
    ("instruction", "kind", "sent"),
    [
        ("f32[300]{0} all-reduce(%p), replica_groups=[2,4]<=[8]", "all-reduce", 1800),
        ("f32[300]{0} all-gather(%p), replica_groups=[2,4]<=[8]", "all-gather", 900),
        ("f32[75]{0} reduce-scatter(%p), replica_groups=[2,4]<=[8]", "reduce-scatter", 900),
        (
            "(f32[75]{0}, f32[75]{0}, /*index=2*/f32[75]{0}, f32[75]{0}) all-to-all(%p, %q), "
            "replica_groups=[2,4]<=[8]",
            "all-to-all",
            900,
        ),
        (
            "bf16[600]{0:T(8,128)(2,1)} collective-permute(%p), source_target_pairs={{0,1},{1,0}}",
            "collective-permute",
            1200,
        ),
        (
            "f32[300]{0} collective-permute(%p), source_target_pairs={{0,0},{1,1}}",
            "collective-permute",
            0,
        ),
        (
            "(f32[100]{0}, pred[4,200]{1,0}) all-reduce-start(%p, %q), replica_groups=[2,4]<=[8]",
            "all-reduce",
            1800,
        ),
        (  # as XLA of jax 0.12 has it
            "((f32[100]{0}, s8[800]{0}), f32[100]{0}, s8[800]{0}) all-reduce-start(%p, %q), "
            "replica_groups=[2,4]<=[8]",
            "all-reduce",
            1800,
        ),
        (
            "(f32[75]{0}, f32[300]{0}) all-gather-start(%p), replica_groups=[2,4]<=[8]",
            "all-gather",
            900,
        ),
        (
            "(f32[300]{0}, f32[300]{0}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%p), "
            "source_target_pairs={{0,1},{1,2}}",
            "collective-permute",
            1200,
        ),
    ],
)
def test_bytes_are_those_of_the_whole_array_and_of_a_ring(instruction, kind, sent):
    found = _one(f"%r = {instruction}")
    assert (found.kind, found.num_bytes, found.sent_bytes) == (kind, 1200, sent)


def test_a_transfer_with_a_start_and_an_end_counts_once():
    text = _program(
        "%s = (f32[75]{0}, f32[300]{0}) all-gather-start(%p), replica_groups=[2,4]<=[8]",
        "%d = f32[300]{0} all-gather-done(%s)",
    )
    found = collectives(parse_program(text))
    assert len(found) == 1


def test_a_transfer_that_a_tpu_spreads_over_fusions_counts_once():
    part = 'all-gather(%p), replica_groups=[2,4]<=[8], frontend_attributes={chain_id="7"}'
    text = _program(
        f"%a = f32[300]{{0}} {part}",
        f"%b = f32[300]{{0}} {part}",
        f"%c = f32[300]{{0}} {part.replace('7', '8')}",
    )
    found = collectives(parse_program(text))
    assert len(found) == 2


def test_a_sum_of_which_a_tpu_keeps_a_part_is_a_reduce_scatter():
    text = """\
HloModule m, num_partitions=4

%all-reduce-scatter.1 (p: f32[300]) -> f32[75] {
  %r = f32[300]{0} all-reduce(%p), replica_groups={{0,1,2,3}}, to_apply=%add
  ROOT %s = f32[75]{0} dynamic-slice(%r, %i), dynamic_slice_sizes={75}
}

ENTRY %main (p: f32[300]) -> f32[75] {
  ROOT %f = f32[75]{0} fusion(%p), kind=kCustom, calls=%all-reduce-scatter.1
}
"""
    [found] = collectives(parse_program(text))
    assert (found.kind, found.num_bytes, found.sent_bytes) == ("reduce-scatter", 1200, 900)


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        (((0, 1), (2, 3), (4, 5), (6, 7)), ("c",)),
        (((0, 2), (1, 3), (4, 6), (5, 7)), ("b",)),
        (((0, 4), (1, 5), (2, 6), (3, 7)), ("a",)),
        (((0, 1, 2, 3), (4, 5, 6, 7)), ("b", "c")),
        (((0, 3), (1, 2)), ("b", "c")),
        (((0,), (1,)), ()),
    ],
)
def test_the_axes_of_the_mesh_that_data_crosses(groups, axes):
    found = Collective("all-reduce", 4, groups, 1)
    assert found.mesh_axes({"a": 2, "b": 2, "c": 2}) == axes


# On 8 devices as 2 x 4. What is sent, by hand:
#   x [16, 32] is split over both axes: [8, 8] a device. w [32, 32] is split by its rows over b, so
#   each of the 5 rounds adds up a product [8, 32] over b. The result is gathered to [16, 32].
_REAL = """
import json
from functools import partial
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from t2t_jax.extras.compile_only.collectives import collectives
from t2t_jax.extras.compile_only.hlo import parse_program

mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("a", "b"))
put = lambda *spec: NamedSharding(mesh, P(*spec))

def scan(x, w):
    def body(c, _):
        return jax.lax.with_sharding_constraint(jnp.tanh(c @ w), put("a", "b")), None
    return jax.lax.with_sharding_constraint(jax.lax.scan(body, x, None, length=5)[0], put())

@partial(jax.shard_map, mesh=mesh, in_specs=P("a", "b"), out_specs=P("a"))
def every(x):  # [8, 8] on each device
    y = jax.lax.all_gather(x, "b", axis=1, tiled=True)  # [8, 32]
    z = jax.lax.psum_scatter(y, "b", scatter_dimension=1, tiled=True)  # [8, 8]
    z = jax.lax.ppermute(z, "a", [(0, 1), (1, 0)])
    z = jax.lax.all_to_all(z, "b", 0, 1, tiled=True)  # [2, 32]
    return jax.lax.psum(z, "b")

x = jax.ShapeDtypeStruct((16, 32), "float32", sharding=put("a", "b"))
w = jax.ShapeDtypeStruct((32, 32), "float32", sharding=put("b"))
for program, arguments in ((scan, (x, w)), (every, (x,))):
    text = jax.jit(program).lower(*arguments).compile().as_text()
    print(json.dumps([
        (each.kind, each.mesh_axes(mesh.shape), each.count, each.num_bytes)
        for each in collectives(parse_program(text))
    ]))
"""


def test_collectives_of_compiled_programs_are_those_computed_by_hand():
    done = run_python("-c", _REAL, code=0, JAX_NUM_CPU_DEVICES="8", JAX_PLATFORMS="cpu")
    scan, every = (json.loads(line) for line in done.stdout.splitlines())
    sums = [each for each in scan if each[0] == "all-reduce"]
    assert sums == [["all-reduce", ["b"], 5, 8 * 32 * 4]]
    gathers = Counter({tuple(axes): size for kind, axes, _, size in scan if kind == "all-gather"})
    assert gathers[("b",)] + gathers[("a",)] + gathers[("a", "b")] >= 16 * 32 * 4
    assert all(count == 1 for kind, _, count, _ in scan if kind == "all-gather")
    assert every == [
        ["all-gather", ["b"], 1, 8 * 32 * 4],
        ["reduce-scatter", ["b"], 1, 8 * 32 * 4],
        ["collective-permute", ["a"], 1, 8 * 8 * 4],
        ["all-to-all", ["b"], 1, 2 * 32 * 4],
        ["all-reduce", ["b"], 1, 2 * 32 * 4],
    ]
