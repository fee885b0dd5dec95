"""Connections to the server: how many there may be, and how long one may take to ask."""

import asyncio
import json
from typing import Any

import h11
from starlette.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from t2t_jax.serving.app import log

SECONDS_FOR_HEADERS = 30.0
"""Seconds within which the line and the headers of a request have to arrive."""

_NO_REQUEST = "this is no request of HTTP/1.1, or its headers are too long"


class Connection(H11Protocol):
    """A connection of HTTP/1.1, which is closed where it stays silent or asks too slowly.

    Uvicorn by itself waits for ever for a request that has begun and does not go on. What it says
    of too many connections (`limit_concurrency`) is no JSON, and not when to try again.
    """

    def __init__(self, *given: Any, **settings: Any) -> None:
        """Take the bound on connections from Uvicorn."""
        super().__init__(*given, **settings)
        self._most, self.limit_concurrency = self.limit_concurrency, None
        self._waits: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Wait for a request."""
        super().connection_made(transport)
        if self._most is not None and len(self.connections) > self._most:
            message = f"more than {self._most} connections are open; try again later"
            headers = {"retry-after": "1", "connection": "close"}
            self.app = JSONResponse({"error": message}, 503, headers)
        self._look()

    def data_received(self, data: bytes) -> None:
        """Read on; the time for a request does not begin anew with each byte of it."""
        super().data_received(data)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._stop()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request, and close the connection; Uvicorn's own answer is no JSON."""
        del msg
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):  # else an answer has begun
            body = json.dumps({"error": _NO_REQUEST}).encode("ascii")
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            head = h11.Response(status_code=400, headers=headers, reason="Bad Request")
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
        self.transport.close()
        log.info("%s - - 400: %s", self.client[0] if self.client else "-", _NO_REQUEST)

    def _look(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._stop()
        elif self._waits is None:
            self._waits = self.loop.call_later(SECONDS_FOR_HEADERS, self._close)

    def _stop(self) -> None:
        if self._waits is not None:
            self._waits.cancel()
            self._waits = None

    def _close(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
