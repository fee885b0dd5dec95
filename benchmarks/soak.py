"""A server of translations under load for a long time, from clients of which some misbehave.

    python benchmarks/soak.py --workdir runs/quickstart
    python benchmarks/soak.py --workdir runs/quickstart --minutes 240 --load 0.5

It starts `t2t-jax serve` with the run, and sends requests at the times of a Poisson process, at a
part of the rate that the server has with 64 clients who always wait for an answer. What each client
does is drawn from a seed: most ask for a line and read the answer; others ask for a hundred lines
with alignments, go away within the request or before its answer, send what no server can answer,
stop within the body, read slowly, read a stream of events, or leave one. Every few minutes a signal
(SIGHUP) has the server load the model again. In the end the following is checked, and the exit code
is 1 where something is not so:

    answers     Every well-formed request got 200, or 429 or 503 with the header Retry-After. Every
                translation is that of offline translation. What is wrong got a status from 400 to
                499, and a body that did not come got 408, or its connection was closed; or 503 with
                Retry-After, too.
    memory      After the first five minutes (or, of less than 15, the first third) the resident
                memory was in the median, and in the end without clients, at most as large as it
                was before at most, give or take --tolerance. The median, as each reload needs
                memory for two models for a moment; two of them are within the first minutes.
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

from t2t_jax.commands.flags import check_flags, names, parse_flags
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
"""What may be more in the end: the event loop's helper threads are started when they are needed."""


@dataclass(frozen=True)
class Soak:
    """Put a server under load for a long time."""

    workdir: Path = tyro.MISSING
    """Directory of the run that is served."""
    minutes: float = 30.0
    """How long requests are sent."""
    load: float = 0.8
    """Lines that are asked for, as a part of what the server does at most."""
    saturation: float | None = None
    """Lines a second that the server does at most; None measures it."""
    reload_minutes: float = 10.0
    """Time between two reloads, after two within the first minutes."""
    tolerance: float = 32.0
    """MB by which the memory may be larger later than at first."""
    lines: Path | None = None
    """File with lines to translate; None is dev and test of the bundled corpus, in English."""
    num_lines: int = 2000
    """How many lines requests are drawn from."""
    timeout: int = 20
    """Seconds that the server gives a request."""
    rows: int = 16
    """Sentences of each of the server's groups."""
    longest: int = 256
    """Most subwords of a line that is translated as a whole."""
    sample_seconds: float = 10.0
    """Time between two looks at the server's memory."""
    seed: int = 0
    """Seed of what the clients do."""
    json: bool = False
    """Print the figures as one JSON object."""

    @property
    def first_minutes(self) -> float:
        """The time in which the memory that is compared with was taken."""
        return min(5.0, self.minutes / 3)


@dataclass
class _Seen:
    """What was seen of a server."""

    idle: Sample
    """Ahead of the load."""
    samples: list[Sample] = field(default_factory=list)
    reloads: int = 0
    """How many were asked for."""
    after: Sample | None = None
    """After the load, with no client any more."""
    metrics: str = ""
    """The page of metrics after the load."""
    exit_code: int | None = None
    log: str = ""


def main(arguments: Sequence[str]) -> int:
    """Do what the command line asks for; returns 1 where a check fails."""
    check_flags(arguments, names(Soak))
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
        saturation = _saturation(server, pool)  # also where it is given: all threads begin
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
    """The lines, and their offline translations by both searches that the server has."""
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
    """Lines a second that the server does for clients of which each waits for its answer."""
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
            other.result()  # which raises what it has raised
    seen.metrics = await _settled(server, seen.reloads)
    seen.after = sample(process, (time.monotonic() - start) / 60)
    return seen


async def _settled(server: Served, reloads: int = 0) -> str:
    """Wait until the server is idle, and has reloaded so often; returns its metrics then.

    One that does not become idle is left as it is, for the checks to find.
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
    """The sum of a metric over all labels, or over those with a text in them."""
    lines = re.findall(rf"^{name}\{{(.*)\}} (\S+)$", page, re.MULTILINE)
    return sum(float(value) for labels, value in lines if label in labels)


def _memory(asked: Soak, seen: _Seen) -> tuple[list[Sample], list[Sample]]:
    """What was taken in the first minutes, and after them."""
    first = [one for one in seen.samples if one.minute <= asked.first_minutes]
    later = [one for one in seen.samples if one.minute > asked.first_minutes]
    return first, later


def _checks(asked: Soak, clients: Clients, seen: _Seen) -> dict[str, bool]:
    """What has to hold, and whether it does."""
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
    """The figures of the whole time."""
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
