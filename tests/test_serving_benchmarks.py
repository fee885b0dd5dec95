"""Benchmarks of servers run, and their parts compute what they should; speed is not tested."""

import asyncio
import importlib
import json
import statistics
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

from t2t_jax import UserError, score
from t2t_jax.decoding.open_search import ClosedError, QueueFullError
from t2t_jax.decoding.translations import Hypothesis
from t2t_jax.interchange.runs import write_run
from t2t_jax.serving.engine import Wanted
from tests.interchange.models import OPTIONS, portable, real_pairs, translator_of

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[1]


@pytest.fixture
def module(monkeypatch):
    """A function that imports a part of the benchmarks by its name."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return lambda name: importlib.import_module(f"servers.{name}")


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A run that translates a few lines, with a small model of random numbers."""
    place = tmp_path_factory.mktemp("served")
    write_run(portable(OPTIONS["paper"]), place / "run", {"kind": "test"})
    (place / "lines").write_text("\n".join(real_pairs()[0][:12]), encoding="utf-8")
    return place


def _run(program, workdir, *flags):
    command = [f"benchmarks/{program}.py", f"--workdir={workdir / 'run'}", "--json"]
    command += [f"--lines={workdir / 'lines'}", *flags]
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done, [json.loads(line) for line in done.stdout.splitlines()]


def test_arrivals_are_those_of_the_seed_and_as_many_as_the_rate_says(module):
    drawn = module("arrivals").poisson_arrivals
    first, again, other = (drawn(50.0, 100.0, 7, seed) for seed in (3, 3, 4))
    assert first == again != other
    assert len(first) == pytest.approx(5000, rel=0.05)  # 3.5 standard deviations
    times = [one.at for one in first]
    assert times == sorted(times)
    assert 0 < times[0] < times[-1] < 100
    gaps = np.diff(times)
    assert statistics.stdev(gaps) == pytest.approx(np.mean(gaps), rel=0.1)  # as exponential ones
    assert {one.line for one in first} == set(range(7))


def test_percentiles_are_values_that_occurred(module):
    percentile = module("figures").percentile
    values = [float(n) for n in range(200, 0, -1)]
    assert [percentile(values, n) for n in (0.1, 50, 95, 99, 100)] == [1, 100, 190, 198, 200]
    assert percentile([7.0], 1) == percentile([7.0], 99) == 7
    assert np.isnan(percentile([], 50))


def test_an_open_loop_counts_what_came_after_its_first_seconds(module):
    answers = [
        {"line": 0, "at": 0.5, "late": 0.0, "seconds": 9.0, "status": 200, "text": "a"},
        {"line": 0, "at": 1.0, "late": 0.001, "seconds": 0.1, "status": 200, "text": "a"},
        {"line": 1, "at": 2.0, "late": 0.002, "seconds": 0.3, "status": 200, "text": "other"},
        {"line": 1, "at": 2.5, "late": 0.0, "seconds": 0.2, "status": 503, "text": "no"},
        {"line": 1, "at": 2.9, "late": 0.0, "seconds": 0.2, "status": 200, "text": "b"},
    ]
    figures = module("figures").open_loop_figures(answers, ["a", "b"], 1.0, 2.0)
    assert figures["offered_per_second"] == 4 / 2
    assert figures["answered_per_second"] == 2 / 2  # the first and the last end too late
    assert [figures[f"p{n}_ms"] for n in (50, 95, 99)] == pytest.approx([200, 300, 300])
    assert (figures["failed"], figures["answers"], figures["other_than_offline"]) == (1, 4, 1)
    assert figures["sent_late_p99_ms"] == pytest.approx(2)


@pytest.mark.parametrize("sizes", [(32, 8, 64, 4), (64, 8, 40, 3), (16, 4, 32, 3)])
def test_a_widened_model_computes_what_the_small_one_does(module, sizes):
    small = portable(OPTIONS["paper"])
    large = module("widened").widened(small, module("widened").Sizes(*sizes))
    model = large.config.model
    layers = model.num_encoder_layers, model.num_decoder_layers
    assert (model.d_model, model.num_heads, model.d_ff, *layers) == (*sizes, sizes[-1])
    ours, theirs = translator_of(small), translator_of(large)
    sources, targets = (side[:20] for side in real_pairs())
    for found, expected in zip(
        score(theirs, sources, targets), score(ours, sources, targets), strict=True
    ):
        np.testing.assert_allclose(
            found.token_log_probs, expected.token_log_probs, rtol=1e-4, atol=1e-4
        )
    assert theirs.translate(sources[:5], beam_size=2) == ours.translate(sources[:5], beam_size=2)


@pytest.mark.parametrize(
    ("options", "sizes", "message"),
    [
        ("modern", (32, 8, 64, 4), "other options than the paper's, num_kv_heads"),
        ("paper", (24, 8, 64, 4), "or d_model is no multiple"),
        ("paper", (32, 16, 64, 4), "some of d_model, num_heads"),
        ("paper", (32, 8, 64, 2), "some of d_model, num_heads"),
    ],
)
def test_what_cannot_be_widened_is_refused(module, options, sizes, message):
    widened = module("widened")
    with pytest.raises(UserError, match=message):
        widened.widened(portable(OPTIONS[options]), widened.Sizes(*sizes))


class Slow:
    """A toolkit that translates a batch, into capitals, when the test says so."""

    def __init__(self):
        self.batches, self.may_go = [], threading.Semaphore(0)

    def prepare(self, sentences):
        return [[[ord(letter) for letter in one]] for one in sentences]

    def translate(self, batch):
        self.batches.append(["".join(map(chr, tokens)) for tokens in batch])
        assert self.may_go.acquire(timeout=30)
        if "explode" in self.batches[-1]:
            raise ZeroDivisionError
        return [Hypothesis(text.upper(), 0.0, 0.0, ()) for text in self.batches[-1]]

    def warm_up(self, rows):
        self.rows = rows


def _until(condition):
    for _ in range(3000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it has not happened")


def test_what_waits_while_a_batch_is_translated_is_the_next_batch(module):
    toolkit = Slow()
    engine = module("batching").Batching(toolkit, 3, 4)
    engine.warm_up()
    assert toolkit.rows == 3

    def submit(text, timeout=60.0) -> Future:
        (part,) = engine.prepare([text])
        return engine.submit(*part, Wanted(), timeout=timeout)

    first = submit("a")
    _until(lambda: toolkit.batches)
    waiting = [submit("b"), submit("c", timeout=-1.0), submit("d"), submit("explode")]
    assert tuple(engine.load()) == (4, 1, 3)
    with pytest.raises(QueueFullError, match="4 sentences wait already"):
        submit("e")
    assert waiting[2].cancel()
    for _ in range(3):
        toolkit.may_go.release()
    assert [one.text for one in first.result(30)] == ["A"]
    assert waiting[0].result(30)[0].text == "B"
    assert isinstance(waiting[1].exception(30), TimeoutError)
    assert isinstance(waiting[3].exception(30), ZeroDivisionError)
    assert toolkit.batches == [["a"], ["b"], ["explode"]]
    engine.close()
    with pytest.raises(ClosedError):
        submit("f")


def test_a_line_of_least_squares_is_a_growth_in_an_hour(module):
    watching = module("watching")
    samples = [watching.Sample(minute, 100 + 2 * minute, 9, 9) for minute in (0.0, 1.0, 5.0)]
    assert watching.slope(samples) == pytest.approx(120)
    now = watching.sample(subprocess.os.getpid(), 3.0)
    assert now.minute == 3
    assert now.memory_mb > 10
    assert now.files > 2
    assert now.threads > 0


def test_answers_are_read_whole_and_in_chunks(module):
    connection = module("connection")

    async def read(data):
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        return await connection.read_answer(reader)

    whole = asyncio.run(read(b"HTTP/1.1 429 No\r\nRetry-After: 3\r\ncontent-length: 2\r\n\r\nabc"))
    assert whole == (429, {"retry-after": "3", "content-length": "2"}, b"ab")
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    chunks = b"2\r\nab\r\nb\r\n0123456789\n\r\n0\r\n\r\n"
    assert asyncio.run(read(head + chunks)).body == b"ab0123456789\n"


@pytest.mark.slow
def test_servers_are_compared_and_t2t_jax_answers_as_offline(workdir):
    flags = ["--num-lines", "24", "--loads", "0.5", "--seconds", "1.5", "--warm-seconds", "0.5"]
    flags += ["--repeats", "1", "--rows", "2", "--longest", "32", "--clients", "4"]
    done, columns = _run("serving", workdir, *flags, "--beam-size", "2")
    assert done.returncode == 0, done.stderr
    by_loop = {
        loop: {column["system"]: column for column in columns if column["loop"] == loop}
        for loop in ("closed", "open")
    }
    systems = ["t2t_jax", "batch by batch", "CTranslate2", "CTranslate2, 2"]
    assert [*by_loop["closed"]] == [*systems, "offline"]
    assert [*by_loop["open"]] == systems
    for column in columns:
        if column["system"] == "offline":
            continue
        assert column["failed"] == 0
        if "t2t_jax" in column["system"] or "batch" in column["system"]:
            assert column["other_than_offline"] == 0
        if column["loop"] == "closed":
            assert column["answers"] == 24
            assert column["lines_per_second_median"] * column["seconds_median"] == pytest.approx(24)
        else:
            ours = by_loop["closed"]["t2t_jax"]
            assert column["rate"] == pytest.approx(0.5 * ours["lines_per_second_median"])
            assert 0 < column["p50_ms_min"] <= column["p95_ms_min"] <= column["p99_ms_min"]
            assert column["answers"] == by_loop["open"]["t2t_jax"]["answers"]


@pytest.mark.slow
def test_a_server_stands_a_soak(workdir):
    flags = ["--minutes", "0.2", "--rows", "2", "--longest", "32", "--timeout", "2"]
    flags += ["--num-lines", "12", "--saturation", "40", "--reload-minutes", "0.1"]
    flags += ["--sample-seconds", "0.5", "--tolerance", "1000", "--seed", "1"]
    done, (figures,) = _run("soak", workdir, *flags)
    assert done.returncode == 0, done.stderr
    assert figures["faults"] == 0
    assert figures["answers with 200"] > 100
    assert figures["reloads"] >= 2
    assert figures["memory does not grow"] == "yes"
