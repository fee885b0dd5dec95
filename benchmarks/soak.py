"""Put a server of translations under load for a long time, from clients some of which misbehave.

    python benchmarks/soak.py --workdir runs/quickstart
    python benchmarks/soak.py --workdir runs/quickstart --minutes 240 --load 0.5

It starts `t2t-jax serve` with the run, and sends requests at the times of a Poisson process, at a
fraction of the rate that the server has with 64 clients who always wait for an answer. The
behaviour of each client is drawn from a seed: most ask for a line and read the answer; others ask
for a hundred lines with alignments, leave within the request or before its answer, send a request
that no server can answer, stop within the body, read slowly, read a stream of events, or leave one.
Every few minutes a signal (SIGHUP) has the server load the model again. In the end the following is
checked, and the exit code is 1 if a check fails:

    answers     Every well-formed request got 200, or 429 or 503 with the header Retry-After. Every
                translation is that of offline translation. A bad request got a status from 400 to
                499, and an incomplete body got 408, or its connection was closed; either may also
                have got 503 with Retry-After.
    memory      The median of the resident memory after the first five minutes (or the first third
                of less than 15), and the memory in the end without clients, exceed the most memory
                of the first minutes by at most --tolerance. The median is used as each reload needs
                memory for two models for a moment; two reloads are within the first minutes.
    files       Without clients, there are as many open files and threads as before the load.
    rows        No sentence is under way, or waits.
    reloads     Each has succeeded.
    end         On SIGTERM the server ends with the exit code 0. It has written no traceback.

It needs /proc, as Linux has it.
"""

import asyncio
import re
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import measuring
import tyro
from servers.clients import LINES_PER_REQUEST, Clients, Pool
from servers.connection import connect
from servers.figures import closed_loop_figures, percentile
from servers.pool import lines_of
from servers.processes import Offline, Served, allow_many_connections, run_job
from servers.watching import Sample, sample, slope

from t2t_jax.commands.flags import parse_flags
from t2t_jax.errors import UserError
from t2t_jax.system.program import run
from t2t_jax.workdir import read_config

_CLIENTS = 64
_SETTLING = 60.0
"""Seconds within which a server without clients has to be idle."""
_RELOADING = 300.0
"""Seconds within which a reload has to be done."""
_LOG_SHOWN = 8000  # characters
_OF_REQUEST = re.compile(r"\S+ \S+ \S+ (GET|POST|-) ")
_SPARE_FILES, _SPARE_THREADS = 2, 6
"""The files and threads that may be added: the event loop starts helper threads when needed."""


@dataclass(frozen=True)
class Soak:
    """Put a server under load for a long time."""

    workdir: Path = tyro.MISSING
    """Directory of the run that is served."""
    minutes: float = 30.0
    """Minutes for which requests are sent."""
    load: float = 0.8
    """Lines that are asked for in a second, as a fraction of the server's highest rate."""
    saturation: float | None = None
    """The server's highest rate, in lines a second; None measures it."""
    reload_minutes: float = 10.0
    """Minutes between two reloads, after two reloads within the first minutes."""
    tolerance: float = 32.0
    """MB by which the memory may grow after the first minutes."""
    lines: Path | None = None
    """File with lines to translate; None is dev and test of the bundled corpus, in English."""
    num_lines: int = 2000
    """The number of lines from which requests are drawn."""
    timeout: int = 20
    """Seconds that the server gives a request."""
    rows: int = 16
    """Sentences of each of the server's groups."""
    longest: int = 256
    """Most subwords of a line that is translated as a whole."""
    sample_seconds: float = 10.0
    """Seconds between two samples of the server's memory."""
    seed: int = 0
    """Seed of the clients' behaviour."""
    json: bool = False
    """Print the figures as one JSON object."""

    @property
    def first_minutes(self) -> float:
        """Return the first minutes, whose memory the later memory is compared with."""
        return min(5.0, self.minutes / 3)


@dataclass
class _Seen:
    """The facts that were observed of a server."""

    idle: Sample
    """The sample before the load."""
    samples: list[Sample] = field(default_factory=list)
    reloads: int = 0
    """The number of reloads that were asked for."""
    after: Sample | None = None
    """The sample after the load, when there are no clients any more."""
    metrics: str = ""
    """The page of metrics after the load."""
    exit_code: int | None = None
    log: str = ""


def main(arguments: Sequence[str]) -> int:
    """Do what the command line asks for, and return 1 if a check fails."""
    asked: Soak = parse_flags(Soak, arguments)
    for name in ("minutes", "load", "reload_minutes", "num_lines", "sample_seconds"):
        if getattr(asked, name) <= 0:
            raise UserError(f"{name}={getattr(asked, name)} is not positive")
    allow_many_connections()
    pool = _pool(asked)
    command = ["-m", "t2t_jax", "serve", asked.workdir, "--port=0", f"--rows={asked.rows}"]
    command += [f"--longest={asked.longest}", f"--timeout={asked.timeout}"]
    _say("the server begins")
    with Served("t2t-jax serve", command) as server:
        saturation = _saturation(server, pool)  # even if it is given, to start all threads
        saturation = asked.saturation or saturation
        clients = Clients(server.address, pool, asked.timeout, asked.seed)
        rate = asked.load * saturation / LINES_PER_REQUEST
        seen = asyncio.run(_soak(asked, server, clients, rate))
        seen.exit_code, seen.log = server.stop(), server.written()
    checks = _checks(asked, clients, seen)
    common = measuring.machine() | {
        "run": str(asked.workdir),
        "minutes": asked.minutes,
        "lines_per_second_at_most": saturation,
        "load": asked.load,
        "requests_per_second": rate,
    }
    said = {name: "yes" if holds else "NO" for name, holds in checks.items()}
    measuring.show(common, [_figures(asked, clients, seen) | said], asked.json)
    for fault, times in clients.faults.most_common():
        _say(f"{times} x {fault}")
    _say("of the server's log, what is not of a request:")
    others = [line for line in seen.log.splitlines() if not _OF_REQUEST.match(line)]
    _say("\n".join(others)[:_LOG_SHOWN])
    return 0 if all(checks.values()) else 1


def _pool(asked: Soak) -> Pool:
    """Return the lines, and their offline translations by both searches of the server."""
    lines = lines_of(asked.lines, asked.num_lines)
    config = read_config(asked.workdir)
    found = []
    for beam_size in (config.decoding.beam_size, 1):
        _say(f"offline translation with a beam of {beam_size} begins")
        with (
            tempfile.TemporaryDirectory() as folder,
            Offline(asked.workdir, beam_size, asked.longest, lines, Path(folder)) as offline,
        ):
            found.append(offline.found)
    best, greedy = found
    return Pool(lines, best, greedy, (config.data.source_language, config.data.target_language))


def _saturation(server: Served, pool: Pool) -> float:
    """Measure the lines a second of the server, for clients that each wait for their answers."""
    job = {"address": server.address, "pair": pool.pair, "timeout": 120, "lines": pool.lines}
    load = {"clients": _CLIENTS, "order": list(range(len(pool.lines)))}
    figures = [closed_loop_figures(run_job(job | load), pool.best) for _ in range(2)]
    return figures[-1]["lines_per_second"]


async def _soak(asked: Soak, server: Served, clients: Clients, rate: float) -> _Seen:
    """Put the server under load, watch it, and wait until it is idle again."""
    process, start = server.process.pid, time.monotonic()
    await _settled(server)
    seen = _Seen(sample(process, 0.0))

    async def watch() -> None:
        while True:
            seen.samples.append(sample(process, (time.monotonic() - start) / 60))
            await asyncio.sleep(asked.sample_seconds)

    async def reload() -> None:
        for minutes in chain([0.3 * asked.first_minutes] * 2, repeat(asked.reload_minutes)):
            await asyncio.sleep(60 * minutes)
            server.process.send_signal(signal.SIGHUP)
            seen.reloads += 1

    async def tell() -> None:
        while True:
            await asyncio.sleep(60)
            now, sent = seen.samples[-1], sum(clients.done.values())
            _say(
                f"minute {now.minute:.0f}: {sent:,} requests, {sum(clients.faults.values())} "
                f"faults, {now.memory_mb:,.0f} MB, {now.files} files, {now.threads} threads"
            )

    others = [asyncio.create_task(one()) for one in (watch, reload, tell)]
    await clients.send(rate, 60 * asked.minutes)
    for other in others:
        other.cancel()
        if other.done() and not other.cancelled():
            other.result()  # raise the error of the task, if any
    seen.metrics = await _settled(server, seen.reloads)
    seen.after = sample(process, (time.monotonic() - start) / 60)
    return seen


async def _settled(server: Served, reloads: int = 0) -> str:
    """Wait until the server is idle and has reloaded `reloads` times, and return its metrics.

    The wait for a server that does not become idle ends after a while; the checks then find it.
    """
    end = time.monotonic() + _SETTLING + (_RELOADING if reloads else 0)
    while True:
        connection = await connect(server.address)
        answer = await connection.ask(
            b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
        )
        connection.close()
        page = answer.body.decode()
        reloaded = _metric(page, "t2t_reloads_total", 'outcome="done"') >= reloads
        await asyncio.sleep(1.0)
        if (reloaded and _is_idle(page)) or time.monotonic() > end:
            return page


def _is_idle(page: str) -> bool:
    return not any(_metric(page, name) for name in ("t2t_rows_in_use", "t2t_sentences_waiting"))


def _metric(page: str, name: str, label: str = "") -> float:
    """Return the sum of a metric over all labels, or over the labels that contain a text."""
    lines = re.findall(rf"^{name}\{{(.*)\}} (\S+)$", page, re.MULTILINE)
    return sum(float(value) for labels, value in lines if label in labels)


def _memory(asked: Soak, seen: _Seen) -> tuple[list[Sample], list[Sample]]:
    """Return the samples of the first minutes, and those after them."""
    first = [one for one in seen.samples if one.minute <= asked.first_minutes]
    later = [one for one in seen.samples if one.minute > asked.first_minutes]
    return first, later


def _checks(asked: Soak, clients: Clients, seen: _Seen) -> dict[str, bool]:
    """Return each condition that has to hold, and whether it does."""
    first, later = _memory(asked, seen)
    most = max(one.memory_mb for one in first) + asked.tolerance
    after = seen.after
    assert after is not None
    end = max(statistics.median(one.memory_mb for one in later), after.memory_mb)
    failed = _metric(seen.metrics, "t2t_reloads_total", 'outcome="failed"')
    done = _metric(seen.metrics, "t2t_reloads_total", 'outcome="done"')
    return {
        "every answer is right": not clients.faults,
        "memory does not grow": end <= most,
        "files do not grow": after.files <= seen.idle.files + _SPARE_FILES,
        "threads do not grow": after.threads <= seen.idle.threads + _SPARE_THREADS,
        "rows are free in the end": _is_idle(seen.metrics),
        "reloads succeed": failed == 0 and done == seen.reloads,
        "no request fails": not _metric(seen.metrics, "t2t_requests_total", 'status="500"'),
        "ends with 0": seen.exit_code == 0,
        "no traceback": "Traceback" not in seen.log and '  File "' not in seen.log,
    }


def _figures(asked: Soak, clients: Clients, seen: _Seen) -> dict[str, Any]:
    """Return the figures of the whole time."""
    first, later = _memory(asked, seen)
    after = seen.after
    assert after is not None
    statuses: Mapping[int, int] = dict(sorted(clients.statuses.items()))
    return {
        **clients.done,
        **{f"answers with {status}": times for status, times in statuses.items()},
        "faults": sum(clients.faults.values()),
        **{f"p{n} ms": percentile([1000 * s for s in clients.seconds], n) for n in (50, 95, 99)},
        "memory MB, idle before": seen.idle.memory_mb,
        "memory MB, most of first minutes": max(one.memory_mb for one in first),
        "memory MB, most later": max(one.memory_mb for one in later),
        "memory MB, median later": statistics.median(one.memory_mb for one in later),
        "memory MB/hour, later": slope(later),
        "memory MB, idle after": after.memory_mb,
        "files before, most, after": f"{seen.idle.files} {max(o.files for o in seen.samples)} "
        f"{after.files}",
        "threads before, most, after": f"{seen.idle.threads} "
        f"{max(o.threads for o in seen.samples)} {after.threads}",
        "reloads": seen.reloads,
    }


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    run(main)
