"""Measure the latency and throughput of translation servers, in a closed loop and an open loop.

    pip install -e '.[train,bench,serve]'
    python benchmarks/serving.py --workdir runs/quickstart
    python benchmarks/serving.py --workdir runs/quickstart --base-size

Each server is a process of its own, with the HTTP layer of `t2t-jax serve`, the same weights in
float32, the same beam and length penalty, and up to the same number of sentences under way:

    t2t_jax           as `t2t-jax serve` runs it: sentences join a running search
    batch by batch    t2t_jax's search for a closed list: all waiting sentences become a batch, as
                      soon as the batch before has ended
    CTranslate2       the same dynamic batching with CTranslate2, on all cores
    CTranslate2, 2    the same with two batches at a time, each of half of the size, on half of the
                      cores

The load is a process too. A request is one line of text. Two things are measured, in turns:

    closed loop       64 clients ask for all lines, each for the next one as soon as it has its
                      answer: the highest throughput of a server. The same lines in one call of
                      `Translator.translate`, without a server, are "offline".
    open loop         requests come at the times of a Poisson process, the same for every system, at
                      some fractions of the closed loop's rate of t2t_jax. A request is sent at its
                      time even if earlier ones are not answered, and its latency counts from then.
                      Latencies of requests that failed are left out; these are counted.

Every answer is compared with offline translation by t2t_jax: a different answer of t2t_jax is a
mistake, but one of CTranslate2 is not, as it ranks hypotheses otherwise. With `--base-size` the
model has the sizes of the paper's base model, but computes the same outputs as the run's model, so
that the lengths of outputs are those of a trained model; see servers/widened.py.
"""

import contextlib
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import measuring
import tyro
from servers.arrivals import poisson_arrivals
from servers.figures import closed_loop_figures, open_loop_figures, summary
from servers.pool import lines_of
from servers.processes import Offline, Served, allow_many_connections, exported, run_job
from systems.available import System
from systems.protocol import call_program

from t2t_jax.commands.flags import parse_flags
from t2t_jax.config import Config
from t2t_jax.errors import UserError
from t2t_jax.system.program import run
from t2t_jax.workdir import read_config

_OURS, _BATCHES = "t2t_jax", "batch by batch"
_CTRANSLATE2 = {"CTranslate2": 1, "CTranslate2, 2": 2}
"""The number of batches that CTranslate2 translates at a time, by the name of the system."""
_BASE = "512", "8", "2048", "6"
_TIMEOUT = 120.0
"""Seconds after which a client gives a request up: more than a server takes to refuse one."""


@dataclass(frozen=True)
class Serving:
    """Measure servers of translations."""

    workdir: Path = tyro.MISSING
    """Directory of a run in float32."""
    base_size: bool = False
    """Give the model the sizes of the paper's base model, without another function."""
    systems: tuple[str, ...] = ()
    """Measure the systems with one of these texts in their names, and t2t_jax; none is all."""
    lines: Path | None = None
    """File with lines to translate; None is dev and test of the bundled corpus, in English."""
    num_lines: int = 2000
    """Lines of a closed loop and of offline translation; requests of open loops are drawn from
    them. A shorter file is read again from its start."""
    clients: int = 64
    """Clients of a closed loop."""
    loads: tuple[float, ...] = (0.25, 0.5, 0.75, 0.9)
    """Rates of the open loops, in parts of the closed loop's rate of t2t_jax."""
    seconds: float = 60.0
    """Seconds for which an open loop is measured."""
    warm_seconds: float = 10.0
    """Seconds for which an open loop runs before it is measured."""
    repeats: int = 3
    """Times that everything is measured, each in turn with all others."""
    most_steps: tuple[int, ...] = (8,)
    """Positions after which sentences that wait may join t2t_jax's search, at the latest; each
    number N after the first one is a system of its own."""
    beam_size: int | None = None
    """Hypotheses of the search; None is the run's."""
    rows: int = 16
    """Sentences of each of the two groups of t2t_jax; batches of the others have twice as many."""
    longest: int = 256
    """Most subwords of a line that is translated as a whole."""
    seed: int = 0
    """Seed of the times at which requests come, and of their lines."""
    json: bool = False
    """Print one JSON object for each column of a table."""


@dataclass(frozen=True)
class _Bench:
    """The systems that are measured: servers that wait for requests, and offline translation."""

    asked: Serving
    pair: tuple[str, str]
    lines: list[str]
    servers: Mapping[str, Served]
    offline: Offline

    def job(self, name: str, **load: Any) -> list[dict[str, Any]]:
        """Put a server under a load, and return the outcome of each request."""
        common = {"address": self.servers[name].address, "pair": self.pair, "timeout": _TIMEOUT}
        answers = run_job(common | {"lines": self.lines} | load)
        failed = [one for one in answers if one["status"] != 200]
        for (status, text), times in Counter(
            (one["status"], one["text"]) for one in failed
        ).items():
            _say(f"{name} failed {times} times: {status} {text}")
        return answers

    def closed_loop(self, name: str, number: int) -> dict[str, float]:
        """Have all clients ask a server for the first `number` lines, and return the figures."""
        answers = self.job(name, clients=self.asked.clients, order=list(range(number)))
        return closed_loop_figures(answers, self.offline.found)


def main(arguments: Sequence[str]) -> int:
    """Measure what the command line asks for."""
    asked: Serving = parse_flags(Serving, arguments)
    config = _checked(asked)
    allow_many_connections()
    with _bench(asked, config) as bench:
        common = _setting(asked, config)
        closed = _closed_loops(bench)
        measuring.show(common | {"loop": "closed"}, closed, asked.json)
        saturation = closed[0]["lines_per_second_median"]
        for number, load in enumerate(asked.loads):
            columns = _open_loops(bench, load * saturation, asked.seed + 1000 * number)
            about = {"loop": "open", "load": load, "rate": load * saturation}
            measuring.show(common | about, columns, asked.json)
    return 0


def _checked(asked: Serving) -> Config:
    """Check the command line, and return the run's config with the beam that is asked for."""
    config = read_config(asked.workdir)
    if (dtype := config.model.compute_dtype) != "float32":
        raise UserError(
            f"{asked.workdir} computes in {dtype}, as its model.compute_dtype says, and is "
            "compared in float32; name a run in float32"
        )
    if not asked.most_steps or min(asked.most_steps) <= 0:
        raise UserError("most_steps needs one positive number, or several")
    for name in ("num_lines", "clients", "seconds", "repeats", "rows"):
        if getattr(asked, name) <= 0:
            raise UserError(f"{name}={getattr(asked, name)} is not positive")
    if any(load <= 0 for load in asked.loads):
        raise UserError("a load is not positive")
    if asked.beam_size is not None:
        config = config.replace({"decoding.beam_size": asked.beam_size})
    return config


def _ours(asked: Serving) -> dict[str, int]:
    """Return the positions of one call of t2t_jax's search, by the name of the system."""
    first, *others = asked.most_steps
    return {_OURS: first} | {f"{_OURS} N={number}": number for number in others}


def _systems(asked: Serving) -> list[str]:
    """Return the names of the systems that are measured, t2t_jax first."""
    found = [*_ours(asked), _BATCHES]
    if missing := System("CTranslate2", "", (), ("ctranslate2",)).missing:
        _say(f"CTranslate2 is left out: {missing}")
    else:
        found += _CTRANSLATE2
    for text in asked.systems:
        if not any(text.casefold() in name.casefold() for name in found):
            raise UserError(
                f"--systems {text!r} is in the name of no system; there are {'; '.join(found)}"
            )
    texts = [text.casefold() for text in asked.systems or [""]]
    return [
        name for name in found if name == _OURS or any(text in name.casefold() for text in texts)
    ]


@contextlib.contextmanager
def _bench(asked: Serving, config: Config) -> Iterator[_Bench]:
    """Return a context with all servers, which take requests."""
    systems, lines = _systems(asked), lines_of(asked.lines, asked.num_lines)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        workdir = asked.workdir
        if asked.base_size:
            workdir = folder / "run"
            call_program("widened", ["-m", "servers.widened", asked.workdir, workdir, *_BASE])
        beam_size = config.decoding.beam_size
        _say("offline translation begins")
        offline = stack.enter_context(Offline(workdir, beam_size, asked.longest, lines, folder))
        servers: dict[str, Served] = {}
        for name in systems:
            _say(f"{name} begins")
            command = _command(name, asked, workdir, beam_size, folder)
            servers[name] = stack.enter_context(Served(name, command))
        data = config.data
        yield _Bench(asked, (data.source_language, data.target_language), lines, servers, offline)


def _command(
    name: str, asked: Serving, workdir: Path, beam_size: int, folder: Path
) -> list[str | Path]:
    """Return the arguments of Python that start a server."""
    longest, beam = str(asked.longest), str(beam_size)
    if name in (ours := _ours(asked)):
        command: list[str | Path] = ["-m", "t2t_jax", "serve", workdir, "--port=0"]
        command += [f"--rows={asked.rows}", f"--longest={longest}", f"--beam-size={beam}"]
        return [*command, "--quantize=none", f"--most-steps={ours[name]}"]
    kind = "batch-by-batch" if name == _BATCHES else "ctranslate2"
    workers = str(_CTRANSLATE2.get(name, 1))
    command = ["-m", "servers.program", kind, workdir, str(2 * asked.rows), longest, beam, workers]
    return [*command, exported(workdir, folder)] if name in _CTRANSLATE2 else command


def _closed_loops(bench: _Bench) -> list[dict[str, Any]]:
    """Measure the closed loops, and offline translation in the same rounds; return the columns."""
    number = bench.asked.num_lines
    for name in bench.servers:  # untimed, as the first requests take longer
        bench.closed_loop(name, min(number, 4 * bench.asked.clients))
    found: dict[str, list[dict[str, float]]] = {name: [] for name in bench.servers}
    offline: list[float] = []
    for repeat in range(bench.asked.repeats):
        offline.append(bench.offline.seconds())
        for name, rounds in found.items():
            figures = bench.closed_loop(name, number)
            figures["seconds_over_offline"] = figures["seconds"] / offline[-1]
            rounds.append(figures)
            _say(f"closed loop {repeat + 1}: {name} {figures['lines_per_second']:.1f} lines/s")
    spread = "seconds", "lines_per_second", "seconds_over_offline"
    columns: list[dict[str, Any]] = [
        {"system": name} | summary(rounds, spread) for name, rounds in found.items()
    ]
    rates = [number / seconds for seconds in offline]
    columns.append(
        {"system": "offline"}
        | measuring.spread(offline)
        | measuring.spread(rates, "lines_per_second")
    )
    return columns


def _open_loops(bench: _Bench, rate: float, seed: int) -> list[dict[str, Any]]:
    """Measure the open loops of one rate, and return the columns."""
    asked = bench.asked
    found: dict[str, list[dict[str, float]]] = {name: [] for name in bench.servers}
    for repeat in range(asked.repeats):
        total = asked.warm_seconds + asked.seconds
        arrivals = poisson_arrivals(rate, total, len(bench.lines), seed + repeat)
        for name, rounds in found.items():
            answers = bench.job(name, arrivals=arrivals)
            figures = open_loop_figures(
                answers, bench.offline.found, asked.warm_seconds, asked.seconds
            )
            rounds.append(figures)
            _say(
                f"{rate:.1f} requests/s {repeat + 1}: {name} p50 {figures['p50_ms']:.0f} ms, "
                f"p99 {figures['p99_ms']:.0f} ms"
            )
    spread = "answered_per_second", "p50_ms", "p95_ms", "p99_ms"
    return [{"system": name} | summary(rounds, spread) for name, rounds in found.items()]


def _setting(asked: Serving, config: Config) -> dict[str, Any]:
    """Return the facts that all figures depend on."""
    vocabulary = config.data.vocab_size
    model = f"d_model {config.model.d_model}, of the run"
    if asked.base_size:
        model = f"d_model 512 (base), made of the run's, whose {vocabulary:,} subwords stay"
    packages = ["t2t_jax", "jax", *(["ctranslate2"] if find_spec("ctranslate2") else [])]
    return measuring.machine() | {
        "run": str(asked.workdir),
        "model": model,
        "beam_size": config.decoding.beam_size,
        "rows": 2 * asked.rows,
        "lines": asked.num_lines,
        "clients": asked.clients,
        "repeats": asked.repeats,
        "versions": ", ".join(f"{package} {version(package)}" for package in packages),
    }


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    run(main)
