"""Connections to the server: how many there may be, and how long one may take to ask."""

import asyncio
import json
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

SECONDS_FOR_HEADERS = 30.0
"""Seconds within which the line and the headers of a request have to arrive."""
MOST_HEADER_BYTES = 65_536
"""Bytes that the line and the headers of a request may have; of more, as many again are read."""


class Connection(HttpToolsProtocol):
    """A connection of HTTP/1.1, which is closed where it stays silent or asks too slowly.

    Uvicorn by itself waits for ever for a request that has begun and does not go on, and keeps all
    that came of it. What it says of too many connections (`limit_concurrency`) is no JSON, and not
    when to try again.
    """

    def __init__(self, *given: Any, **settings: Any) -> None:
        """Take the bound on connections from Uvicorn."""
        super().__init__(*given, **settings)
        self._most, self.limit_concurrency = self.limit_concurrency, None
        self._waits: asyncio.TimerHandle | None = None
        self._unanswered = 0  # bytes that came while no request was being answered

    def connection_made(self, transport: Any) -> None:
        """Wait for a request."""
        joining: Any = _Joining(transport, self.loop)
        super().connection_made(joining)
        if self._most is not None and len(self.connections) > self._most:
            self.app = _refusal(503, f"more than {self._most} connections are open")
        self._look()

    def data_received(self, data: bytes) -> None:
        """Read on; the time for a request does not begin anew with each byte of it."""
        for begin in range(0, len(data), MOST_HEADER_BYTES):
            if self.transport.is_closing():
                return
            part = data[begin : begin + MOST_HEADER_BYTES]
            self._unanswered += len(part)
            super().data_received(part)
            self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._stop()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request of HTTP, and close the connection; Uvicorn's words say less."""
        del msg
        self._refuse("this is no request of HTTP/1.1")

    def _refuse(self, reason: str) -> None:
        body = json.dumps({"error": reason}).encode("ascii")
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        self.transport.close()

    def _look(self) -> None:
        """Give a request that has not come as a whole its time, and its room."""
        if self.cycle is not None and not self.cycle.response_complete:  # it is being answered
            self._stop()
            self._unanswered = 0
        elif self._unanswered > MOST_HEADER_BYTES and not self.transport.is_closing():
            self._refuse(f"the headers have more than {MOST_HEADER_BYTES:,} bytes")
        elif self._waits is None:
            self._waits = self.loop.call_later(SECONDS_FOR_HEADERS, self._close)

    def _stop(self) -> None:
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None

    def _close(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


class _Joining:
    """A transport that sends what is written within one turn of the event loop together.

    Uvicorn writes the head of an answer and then its body: two system calls, each of which wakes
    the client.
    """

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        """Everything else is as it is there."""
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send bytes before the loop goes on waiting."""
        if not self._parts:
            self._loop.call_soon(self._send)
        self._parts.append(data)

    def close(self) -> None:
        """Send what was written, and close the connection."""
        self._send()
        self._transport.close()

    def _send(self) -> None:
        if self._parts:
            data = b"".join(self._parts)
            self._parts.clear()
            self._transport.write(data)


def _refusal(status: int, reason: str) -> ASGIApp:
    headers = {"retry-after": "1", "connection": "close"}
    return JSONResponse({"error": f"{reason}; try again later"}, status, headers)
