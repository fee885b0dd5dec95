"""Clients of a server, of which some misbehave, as drawn from a seed."""

import asyncio
import json
import random
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from servers.bad_requests import BAD_REQUESTS
from servers.connection import CLOSED, Answer, Idle, connect, posted, read_answer

_SHARES = {
    "behave": 0.857,
    "ask for much": 0.003,
    "leave before the answer": 0.03,
    "send what is wrong": 0.04,
    "stop within the body": 0.01,
    "read slowly": 0.02,
    "read a stream": 0.02,
    "leave a stream": 0.02,
}
_LINES_READ_SLOWLY = 8
_MANY_LINES = 100
_MORE_TIME = 30.0  # seconds that a client waits beyond the timeout of the server
_MOST_FAULTS = 20  # faults that are counted by their texts

_LINES = {"send what is wrong": 0, "stop within the body": 0, "read slowly": _LINES_READ_SLOWLY}
_LINES["ask for much"] = _MANY_LINES
LINES_PER_REQUEST = sum(share * _LINES.get(what, 1) for what, share in _SHARES.items())
"""The mean number of lines that a server has to translate for a request."""


@dataclass(frozen=True)
class Pool:
    """Lines to translate, and their offline translations."""

    lines: Sequence[str]
    best: Sequence[str]
    """The translations of the lines by the server's search."""
    greedy: Sequence[str]
    """The translations of the lines by greedy search, as in streams."""
    pair: tuple[str, str]
    """The codes of source and target language."""


@dataclass
class Clients:
    """Clients of one server.

    Attributes:
      address: the address of the server.
      pool: the lines that clients ask for, and their translations.
      timeout: the seconds that the server gives a request.
      seed: the seed of the clients' behaviour.
      done: how often each behaviour occurred.
      statuses: how often each status was the answer to a well-formed request.
      faults: the server's faults, and how often each occurred.
      seconds: the seconds until the answers to clients that behave.
    """

    address: str
    pool: Pool
    timeout: float
    seed: int
    done: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Seed the random numbers, and keep no connections yet."""
        self._random, self._idle = random.Random(self.seed), Idle(self.address)

    async def send(self, rate: float, seconds: float) -> None:
        """Send requests at the times of a Poisson process, and wait until all have ended.

        Args:
          rate: requests in a second, on average.
          seconds: how long requests are sent.
        """
        clock = asyncio.get_running_loop().time
        start, at, under_way = clock(), 0.0, set()
        while (at := at + self._random.expovariate(rate)) < seconds:
            await asyncio.sleep(start + at - clock())
            (what,) = self._random.choices([*_SHARES], [*_SHARES.values()])
            task = asyncio.create_task(self._do(what, start + at))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        await asyncio.gather(*under_way)
        self._idle.close()

    async def _do(self, what: str, due: float) -> None:
        doing = {
            "behave": self._behave,
            "ask for much": self._ask_for_much,
            "leave before the answer": self._leave,
            "send what is wrong": self._send_what_is_wrong,
            "stop within the body": self._stop,
            "read slowly": self._read_slowly,
            "read a stream": self._read_stream,
            "leave a stream": self._leave_stream,
        }
        self.done[what] += 1
        try:
            async with asyncio.timeout(self.timeout + _MORE_TIME):
                await doing[what]()
        except CLOSED as error:
            self._blame(f"{what}: {error!r:.80}")
        if what == "behave":
            self.seconds.append(asyncio.get_running_loop().time() - due)

    def _blame(self, fault: str) -> None:
        if len(self.faults) < _MOST_FAULTS or fault in self.faults:
            self.faults[fault] += 1
        else:
            self.faults["others"] += 1

    def _drawn(self, number: int, **more: Any) -> tuple[list[int], bytes]:
        """Draw some lines; return their numbers, and the request for their translations."""
        chosen = [self._random.randrange(len(self.pool.lines)) for _ in range(number)]
        source, target = self.pool.pair
        fields = {"q": [self.pool.lines[n] for n in chosen], "split": "lines"}
        fields |= {"source": source, "target": target, **more}
        return chosen, posted("/v1/translations", fields)

    def _check(self, what: str, answer: Answer, expected: Sequence[str]) -> None:
        """Count an answer to a well-formed request, and note a fault if the answer is wrong."""
        self.statuses[answer.status] += 1
        if answer.status == 200:
            self._compare(what, json.loads(answer.body), expected)
        elif not answer.is_refusal:
            self._blame(f"{what}: {answer.status} {answer.body[:80]!r}")

    def _compare(self, what: str, found: Mapping[str, Any], expected: Sequence[str]) -> None:
        texts = [one["hypotheses"][0]["text"] for one in found["translations"]]
        if texts != [*expected]:
            self._blame(f"{what}: another translation than offline")

    async def _behave(self) -> None:
        """Send a request on a connection that is kept, and read the answer."""
        (line,), request = self._drawn(1)
        answer = await self._idle.ask(request)
        self._check("behave", answer, [self.pool.best[line]])

    async def _ask_for_much(self) -> None:
        """Ask for many lines with their alignments, and read the answer."""
        lines, request = self._drawn(_MANY_LINES, alignments=True)
        answer = await self._idle.ask(request)
        self._check("ask for much", answer, [self.pool.best[n] for n in lines])

    async def _leave(self) -> None:
        """Close the connection within the request, or before its answer is there."""
        _, request = self._drawn(1)
        is_within = self._random.random() < 0.5
        sent = self._random.randrange(1, len(request)) if is_within else len(request)
        wait = self._random.uniform(0, 0.5)
        connection = await connect(self.address)
        connection.writer.write(request[:sent])
        await connection.writer.drain()
        await asyncio.sleep(wait)
        connection.close()

    async def _send_what_is_wrong(self) -> None:
        name = self._random.choice([*BAD_REQUESTS])
        connection = await connect(self.address)
        try:
            answer = await connection.ask(BAD_REQUESTS[name])
            if not (400 <= answer.status < 500 or answer.is_refusal):
                self._blame(f"{name}: answered with {answer.status}")
        except CLOSED as error:
            self._blame(f"{name}: {error!r:.80}")
        finally:
            connection.close()

    async def _stop(self) -> None:
        """Send half of the body, and check that it is refused, or the connection closed."""
        _, request = self._drawn(1)
        connection = await connect(self.address)
        connection.writer.write(request[: -len(request) // 4])
        try:
            answer = await connection.answer()
            if answer.status != 408 and not answer.is_refusal:
                self._blame(f"stop within the body: answered with {answer.status}")
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # closed without an answer
        finally:
            connection.close()

    async def _read_slowly(self) -> None:
        """Read the answer a few bytes at a time, with small buffers for unread bytes."""
        lines, request = self._drawn(_LINES_READ_SLOWLY)
        place = urlsplit(self.address)
        asking = socket.socket()
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        asking.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_connect(asking, (place.hostname, place.port))
            await loop.sock_sendall(
                asking, request.replace(b"\r\n", b"\r\nconnection: close\r\n", 1)
            )
            read = asyncio.StreamReader()
            while part := await loop.sock_recv(asking, 256):
                read.feed_data(part)
                await asyncio.sleep(0.05)
            read.feed_eof()
            answer = await read_answer(read)
        finally:
            asking.close()
        self._check("read slowly", answer, [self.pool.best[n] for n in lines])

    async def _read_stream(self) -> None:
        (line,), request = self._drawn(1, stream=True)
        connection = await connect(self.address)
        try:
            answer = await connection.ask(request)
        finally:
            connection.close()
        if answer.status != 200:
            self._check("read a stream", answer, [])
            return
        self.statuses[200] += 1
        name, data = answer.body.decode().strip().split("\n\n")[-1].split("\n")
        if name == "event: done":
            found = json.loads(data.removeprefix("data: "))
            self._compare("read a stream", found, [self.pool.greedy[line]])
        else:
            self._blame(f"read a stream: its last event is {name}")

    async def _leave_stream(self) -> None:
        """Close the connection of a stream after its first event, or before it."""
        _, request = self._drawn(1, stream=True)
        connection = await connect(self.address)
        try:
            connection.writer.write(request)
            head = await connection.reader.readuntil(b"\r\n\r\n")
            if self._random.random() < 0.5 and head.startswith(b"HTTP/1.1 200 "):
                await connection.reader.readuntil(b"\n\n")
        finally:
            connection.close()
