"""Put a server under load: a program that reads one job in JSON and writes its results.

    python -m servers.load < JOB > RESULTS

It is a process of its own, so that it does not share Python's lock with anything else. A job with
"arrivals" is an open loop: each request is sent when its time has come, whether or not earlier ones
are answered, and its latency counts from that time. A job with "clients" is a closed loop: each
client asks for the next line as soon as its last one is answered.
"""

import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from servers.connection import CLOSED, Answer, Idle, of_line

_BEGINS_AFTER = 0.2  # seconds


@dataclass
class _Asking:
    """A client that asks one server for translations, and keeps the answers."""

    connections: Idle
    requests: list[bytes]
    timeout: float
    answers: list[tuple[dict[str, Any], Answer]] = field(default_factory=list)

    async def ask(self, line: int, due: float, start: float) -> None:
        """Ask for a line; its latency counts from the time `due`, and the load began at `start`."""
        clock = asyncio.get_running_loop().time
        sent = clock()
        try:
            async with asyncio.timeout(self.timeout):
                answer = await self.connections.ask(self.requests[line])
        except CLOSED as error:
            answer = Answer(0, {}, repr(error).encode())
        times = {"at": due - start, "late": sent - due, "seconds": clock() - due}
        self.answers.append(({"line": line, **times, "status": answer.status}, answer))

    def results(self) -> list[dict[str, Any]]:
        """Parse the answers, now that nothing is measured any more, and return a row for each."""
        return [
            times | {"text": answer.translation if answer.status == 200 else answer.body.decode()}
            for times, answer in self.answers
        ]


async def _open_loop(asking: _Asking, arrivals: list[tuple[float, int]]) -> None:
    clock = asyncio.get_running_loop().time
    start = clock() + _BEGINS_AFTER
    under_way = []
    for at, line in arrivals:
        await asyncio.sleep(start + at - clock())
        under_way.append(asyncio.create_task(asking.ask(line, start + at, start)))
    await asyncio.gather(*under_way)


async def _closed_loop(asking: _Asking, clients: int, lines: list[int]) -> None:
    clock = asyncio.get_running_loop().time
    start, left = clock(), iter(lines)

    async def client(left: Iterator[int]) -> None:
        for line in left:
            await asking.ask(line, clock(), start)

    await asyncio.gather(*(client(left) for _ in range(clients)))


async def _done(job: dict[str, Any]) -> list[dict[str, Any]]:
    requests = [of_line(line, tuple(job["pair"])) for line in job["lines"]]
    asking = _Asking(Idle(job["address"]), requests, job["timeout"])
    if "clients" in job:
        await _closed_loop(asking, job["clients"], job["order"])
    else:
        await _open_loop(asking, job["arrivals"])
    asking.connections.close()
    return asking.results()


if __name__ == "__main__":
    json.dump(asyncio.run(_done(json.load(sys.stdin))), sys.stdout)
