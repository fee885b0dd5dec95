"""Every benchmark runs in a tiny form, and its figures agree with each other.

How large the figures are is not tested. Other toolkits take part where the extra `bench` is
installed.
"""

import dataclasses
import importlib.util
import json
import os
import shlex

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.config import network_config
from t2t_jax.config.cost import model_flops_per_step, num_parameters
from t2t_jax.errors import UserError
from t2t_jax.kernels.cpu import CPU
from t2t_jax.system.host import instruction_sets, processor_name
from tests.programs import run_python

pytestmark = pytest.mark.thorough


def _rows(*command):
    """Run a benchmark, and return the rows that it prints as JSON."""
    done = run_python(*command, "--json", code=0)
    return [json.loads(line) for line in done.stdout.splitlines()]


def _columns(tiny_run, program, *flags):
    """What a benchmark, or a command of one, prints for each column of its table."""
    name, *command = program.split()
    command = [f"benchmarks/{name}.py", *command, f"--config={tiny_run.folder / 'tiny.py'}", *flags]
    columns = _rows(*command)
    for column in columns:
        if "refused" not in column:
            low, middle, high = (column[f"seconds_{name}"] for name in ("min", "median", "max"))
            assert 0 < low <= middle <= high
            for amount in ("tokens", "target_tokens", "lines", "pairs", "flops"):
                if amount in column and f"{amount}_per_second" in column:
                    assert _agrees_with_rate(column, column[amount], f"{amount}_per_second")
        assert column["processor"] == processor_name()
        assert column["instruction_sets"].split() == [*instruction_sets()]
    return columns


def _agrees_with_rate(column, amount, rate):
    return column[rate] * column["seconds_median"] == pytest.approx(amount)


def test_training_steps_are_counted_in_tokens_and_operations(tiny_run):
    flags = ["--shapes", "4x8", "--repeats", "3", "--model.dropout-rate", "0"]
    (column,) = _columns(tiny_run, "train_step", *flags)
    assert (column["rows"], column["length"]) == (4, 8)
    assert (column["target_tokens"], column["tokens"]) == (32, 64)
    assert column["parameters"] == num_parameters(tiny_run.config.model, 300)
    assert column["model_flops"] == model_flops_per_step(
        tiny_run.config.model, 300, 32, 32, source_length=8, target_length=8
    )
    peak_seconds = column["model_flops"] / column["matrix_flops_per_second"]
    assert column["mfu"] * column["seconds_median"] == pytest.approx(peak_seconds)
    assert 0 < column["mfu"] <= 1.5
    # Parameters and Adam's two moments, in float32, are arguments of the program.
    assert column["process_bytes"] > column["program_bytes"] > 3 * 4 * column["parameters"]


@pytest.mark.parametrize(
    ("line", "rows"),
    [
        ("where_time_goes --shape 4x8 --batch-size 3 --beam-size 2 --repeats 1", 2),
        ("decode --batch-sizes 3 --beam-sizes 1 2 --source-length 5 --repeats 1", 2),
        ("data --repeats 2", 1 + 2 * 2),  # encoding, and two ways to batch, alone and ahead
        ("products --rows 8 --length 4 --few-rows 3 --repeats 1 --dtypes bfloat16 int8", 30),
        ("table1 --lengths 4 8 --window 2 --repeats 1 --layers 'r = 3, with' recurrent", 8),
        ("startup --repeats 1", 2),
    ],
    ids=lambda value: str(value).partition(" ")[0],
)
def test_a_benchmark_prints_a_row_for_each_thing_that_it_measures(tiny_run, tmp_path, line, rows):
    plot = ["--plot", tmp_path / "table1.png"] if line.startswith("table1") else []
    columns = _columns(tiny_run, *shlex.split(line), *plot)
    assert len(columns) == rows or (line.startswith("products") and len(columns) > rows)
    for column in columns if line.startswith("where_time_goes") else []:
        shares = [share for name, share in column.items() if " " in name or "-" in name]
        assert sum(shares) == pytest.approx(1)
    assert not plot or plot[1].read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("program", "flags", "rows"),
    [
        ("variants", ["--only=other", "--shape=2x8", "--repeats=2"], 1),
        ("softmax_gradient", ["--rows=2"], 2),
    ],
)
def test_every_variant_of_a_grid_is_measured(tmp_path, program, flags, rows):
    sizes = {"model.d_model": 16, "model.num_heads": 2, "model.d_ff": 32, "data.vocab_size": 50}
    (tmp_path / "grid.py").write_text(f"""
from t2t_jax import Config

BASE = Config().replace({sizes})
VARIANTS = {{"base": BASE, "other": BASE.replace({{"model.attention_kind": "additive"}})}}
""")
    found = _rows(f"benchmarks/{program}.py", f"--config={tmp_path / 'grid.py'}", *flags)
    assert [row["variant"] for row in found] == ["base"] * rows + ["other"] * rows


def _without(*packages):
    """Skip a case where a peer is not installed."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"the extra bench is needed: {missing}")


FLAX = os.environ.get("T2T_JAX_FLAX")
_FLAX = pytest.mark.skipif(not FLAX, reason="T2T_JAX_FLAX names no checkout of google/flax")
MARKS = {
    "ctranslate": _without("ctranslate2"),
    "pytorch": _without("torch"),
    "marian": _without("torch", "transformers"),
    "flax": _FLAX,
}
PRECISIONS = {"t2t_jax": {"float32", "bfloat16", "int8"}, "ctranslate": {"float32", "int8"}}


def _peers(*names):
    cases = [pytest.param(name, marks=MARKS.get(name, ())) for name in names]
    return pytest.mark.parametrize("peer", cases)


@_peers("t2t_jax", "ctranslate", "marian", "flax")
def test_peers_search_for_the_same(tiny_run, peer):
    flags = ["--batch-sizes", "3", "--beam-sizes", "1", "--repeats", "1", "--systems", peer]
    flags += ["--source-length", "5", "--target-length", "7"]
    flags += [f"--flax-wmt={FLAX}"] if peer == "flax" else []
    columns = _columns(tiny_run, "peers decode", *flags)
    theirs = [column for column in columns if peer in column["system"].lower()]
    assert {column["precision"] for column in theirs} >= PRECISIONS.get(peer, {"float32"})
    for column in columns:
        assert _agrees_with_rate(column, 3 * 7, "tokens_per_second_median")
        ours = column["ours_float32_over_theirs_median"] * column["tokens_per_second_median"]
        assert ours == pytest.approx(columns[0]["tokens_per_second_median"])
    assert columns[0]["equal_to_ours"] is None
    for column in theirs:
        if column is not columns[0] and peer != "flax":
            assert column["equal_to_ours"] >= (0.95 if column["precision"] == "float32" else 0)


@_peers("pytorch", "marian", "flax")
def test_peers_train_on_the_same(tiny_run, peer):
    flags = ["--shapes", "4x8", "--repeats", "1", "--systems", peer]
    flags += [f"--flax-wmt={FLAX}"] if peer == "flax" else []
    columns = _columns(tiny_run, "peers train", *flags)
    assert any(peer in column["system"].lower() for column in columns)
    for column in columns:
        assert _agrees_with_rate(column, 4 * 8, "target_tokens_per_second_median")


@MARKS["ctranslate"]
def test_whole_programs_translate_the_same_lines(tiny_run, tmp_path):
    tiny_run.finish(tmp_path / "run", "--training.learning-rate-factor=1")
    (tmp_path / "lines").write_text("No devices found\n")  # both searches end at its length
    flags = ["--lines", tmp_path / "lines", "--beam-sizes", 1, "--repeats", 1]
    flags += ["--workdir", tmp_path / "run", "--systems", "float32"]
    ours, theirs = _rows("benchmarks/peers.py", "translate", *flags)
    assert (ours["system"], theirs["system"]) == ("t2t_jax", "CTranslate2 float32")
    assert ours["lines"] == theirs["lines"] == 1
    assert theirs["equal_to_ours"] == 1


@pytest.fixture
def systems(module):
    """The modules of the systems that can be compared, and of their results."""
    return module("systems.available"), module("systems.results")


def test_a_name_of_no_system_is_refused_with_the_names_of_all(systems):
    available, _ = systems
    with pytest.raises(UserError, match=r"'pytorch' is in the name of no system.*CTranslate2 int8"):
        available.available_systems("decode", ["marian", "pytorch"])


def test_a_system_is_compared_with_ours_in_its_precision_where_that_takes_part(systems):
    available, results = systems
    ours = available.OURS
    theirs = dataclasses.replace(ours, name="theirs", module="theirs")
    taking_part = [
        results.Result(dataclasses.replace(system, precision=precision), 1, 1.0)
        for system, precision in [
            *((ours, "float32"), (ours, "int8")),
            *((theirs, "float32"), (theirs, "bfloat16"), (theirs, "int8")),
        ]
    ]
    compared = [results.counterpart(one, taking_part) for one in taking_part]
    assert [taking_part.index(one) for one in compared] == [0, 0, 0, 0, 1]


def _arrays(*shapes):
    return [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]


def _convolve(x, kernel, groups=1):
    names = ("NWC", "WIO", "NWC")
    return jax.lax.conv_general_dilated(
        x, kernel, (1,), "SAME", dimension_numbers=names, feature_group_count=groups
    )


def _times(x, iterations, body):
    return jax.lax.scan(lambda carry, _: (body(carry), None), x, length=iterations)[0]


PRODUCTS = {
    "a product": (lambda a, b: a @ b, [(3, 4), (4, 5)], 2 * 3 * 4 * 5, 1),
    "heads": (
        lambda q, k: jnp.einsum("bqhd,bkhd->bhqk", q, k),
        [(2, 3, 4, 5), (2, 7, 4, 5)],
        2 * (2 * 4) * (3 * 7) * 5,
        1,
    ),
    "a convolution": (_convolve, [(2, 7, 4), (3, 4, 6)], 2 * (2 * 7 * 6) * (3 * 4), 1),
    "each channel for itself": (
        lambda x, kernel: _convolve(x, kernel, 4),
        [(2, 7, 4), (3, 1, 4)],
        2 * (2 * 7 * 4) * 3,
        1,
    ),
    "one that nothing needs": (lambda a, b: (a @ b, a + 1)[1], [(3, 4), (4, 5)], 0, 0),
    "two, one after the other": (lambda a, b: a @ b @ b, [(3, 4), (4, 4)], 2 * 2 * 3 * 16, 2),
    "a recurrence": (
        lambda x, w: _times(x, 9, lambda h: jnp.tanh(h @ w)),
        [(3, 4), (4, 4)],
        9 * 2 * 3 * 16,
        9,
    ),
    "a recurrence of every other step": (
        lambda x, w: _times((x, x), 8, lambda pair: (pair[1], pair[0] @ w)),
        [(3, 4), (4, 4)],
        8 * 2 * 3 * 16,
        4,
    ),
    "a sum of products in a loop": (
        lambda x, w: _times(jnp.zeros_like(x), 9, lambda total: total + x @ w) @ w,
        [(3, 4), (4, 4)],
        (9 + 1) * 2 * 3 * 16,
        2,
    ),
    "a loop in a loop": (
        lambda x, w: _times(x, 3, lambda h: _times(h, 5, lambda h: h @ w)),
        [(3, 4), (4, 4)],
        3 * 5 * 2 * 3 * 16,
        15,
    ),
    "a loop between bounds": (
        lambda x, w: jax.lax.fori_loop(
            jax.lax.optimization_barrier(jnp.int32(2)), 7, lambda _, h: h @ w, x
        ),
        [(3, 4), (4, 4)],
        5 * 2 * 3 * 16,
        5,
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_counted_as_by_hand(module, name):
    function, shapes, operations, chain = PRODUCTS[name]
    counts = module("counting").count(function, *_arrays(*shapes))
    assert (counts.operations, counts.chain) == (operations, chain)
    assert counts.has_loops == ("loop" in name or "recurrence" in name)


def test_bytes_are_those_of_operands_and_results(module):
    counts = module("counting").count(lambda a, b: a @ b, *_arrays((3, 4), (4, 5)))
    assert counts.num_bytes == 4 * (3 * 4 + 4 * 5 + 3 * 5)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x, n: jax.lax.fori_loop(0, n, lambda _, h: h @ h, x), "number of iterations"),
        (lambda x, n: jax.lax.cond(n > 0, lambda x: x @ x, lambda x: x, x), "products in a cond"),
    ],
)
def test_products_that_depend_on_data_are_refused(module, function, reason):
    with pytest.raises(NotImplementedError, match=reason):
        module("counting").count(function, *_arrays((3, 3)), jax.ShapeDtypeStruct((), jnp.int32))


def test_an_exponent_is_fitted_to_the_longer_half(module):
    lengths = [1, 2, 4, 8, 16]
    exponent = module("table1_results").exponent
    assert exponent(lengths, [7, 7, *(3 * n**1.5 for n in lengths[2:])]) == pytest.approx(1.5)
    assert exponent([64, 128], [1.0, 4.0]) == pytest.approx(2)
    assert exponent([64], [1.0]) is None


def test_a_path_is_as_long_as_one_layer_reaches(module):
    model = network_config(d_model=4, num_heads=2)
    types = module("layer_types").layer_types(model, CPU, window=3, kernel_width=5)
    restricted, convolution = "restricted self-attention, r = 5", "convolutional, k = 5"
    assert {layer.name: layer.path_length(9) for layer in types} == {
        **{"self-attention": 1, "self-attention, with projections": 1},
        **{restricted: 4, f"{restricted}, with projections": 4},
        **{convolution: 4, "separable convolution, k = 5": 4},
        "recurrent (LSTM)": 9,  # steps of one layer
    }
    x = jax.random.normal(jax.random.key(1), (1, 9, 4))
    for layer in types:
        if layer.name in (restricted, convolution):
            gradient = jax.jit(jax.grad(lambda x: layer.apply(layer.params, x)[:, -1].sum()))(x)  # noqa: B023
            assert gradient.any(-1).tolist() == [[False] * 6 + [True] * 3]  # two places away


def test_a_shape_that_is_none_is_refused_in_one_line(tiny_run):
    command = ["benchmarks/train_step.py", f"--config={tiny_run.folder / 'tiny.py'}"]
    done = run_python(*command, "--shapes", "4y8", code=2)
    assert done.stderr == "error: --shapes 4y8 is not rows x tokens; write it as 32x64\n"


def test_gradients_through_the_softmax_are_those_of_the_formula(module):
    weights = np.array([[0.7, 0.2, 0.1], [1 / 3, 1 / 3, 1 / 3], [0.995, 0.004, 0.001]], np.float32)
    figures = module("softmax_gradient")._figures(weights.reshape(1, 1, 1, 3, 3))
    norms = [np.linalg.norm(np.diag(w) - np.outer(w, w)) for w in np.float64(weights)]
    expected = (
        np.log(weights).std(-1).mean(),
        weights.max(-1).mean(),
        np.mean(norms) / norms[1],
        1 / 3,
    )
    np.testing.assert_allclose(figures, expected, rtol=1e-4)


def test_corpora_in_memory_and_in_shards_are_measured(tiny_run, tmp_path):
    text, folder = tiny_run.folder / "corpus", tmp_path / "big"
    flags = [f"--config={tiny_run.folder / 'tiny.py'}", f"--text={text}", f"--folder={folder}"]
    flags += ["--pairs=500", "--repeats=1"]
    rows = _rows("benchmarks/shards.py", *flags)
    rows += _rows("benchmarks/shards.py", *flags, "--hosts", 1, 2)
    assert [row.get("form") for row in rows] == ["whole", "shards", None, None]
    assert all(row["batch_seconds"] > 0 for row in rows[:2])
    assert [row["hosts"] for row in rows[2:]] == [1, 2]
    assert all(0 < row["most_mib"] <= row["all_mib"] for row in rows[2:])


def test_bounds_are_written_for_each_topology(module, tiny_run, tmp_path):
    pytest.importorskip("libtpu")
    page = tmp_path / "scaling.md"
    config = str(tiny_run.folder / "tiny.py")
    flags = ["--configs", config, "--topologies", "v5e:1x1", "--out", str(page)]
    assert module("scaling").main(flags) == 0
    assert "| 1 | v5e:1x1 |" in page.read_text()
