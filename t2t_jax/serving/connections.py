"""Connections to the server, with bounds on their number, and on the time to ask and to read."""

import json
from typing import Any

import h11
from starlette.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from t2t_jax.serving.app import log

SECONDS_FOR_HEADERS = 30.0
"""Seconds within which the line and the headers of a request have to arrive, from the beginning of
the connection, or from the end of the answer before."""
SECONDS_FOR_ANSWER = 60.0
"""Seconds that a client may take, all in all, to read an answer that does not fit into buffers."""

_NO_REQUEST = "this is no request of HTTP/1.1, or its headers are too long"


class Connection(H11Protocol):
    """A connection of HTTP/1.1, which is closed if its client sends or reads too slowly.

    Uvicorn by itself waits for ever for a request that has begun and does not go on, for the rest
    of a body that was answered before its end, and for a client that does not read. Its refusal of
    too many connections (`limit_concurrency`) is no JSON, and does not say when to try again.
    """

    def __init__(self, *given: Any, **settings: Any) -> None:
        """Take the bound on connections from Uvicorn."""
        super().__init__(*given, **settings)
        self._most, self.limit_concurrency = self.limit_concurrency, None
        self._asking: Any = None
        self._reading: Any = None
        self._left, self._paused = SECONDS_FOR_ANSWER, 0.0

    def connection_made(self, transport: Any) -> None:
        """Wait for a request."""
        super().connection_made(transport)
        if self._most is not None and len(self.connections) > self._most:
            message = f"more than {self._most} connections are open; try again later"
            headers = {"retry-after": "1", "connection": "close"}
            self.app = JSONResponse({"error": message}, 503, headers)
        self._look()

    def data_received(self, data: bytes) -> None:
        """Read more data; the time for a request does not begin anew with each byte."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Wait for the next request; the time for it includes any rest of the present one."""
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        """Wait for the client to read; its time does not begin anew when it has read a part."""
        super().pause_writing()
        self._paused = self.loop.time()
        self._reading = self.loop.call_later(self._left, self._end)

    def resume_writing(self) -> None:
        """Stop the timer of a client that has read, and keep the rest of its time."""
        super().resume_writing()
        _stop(self._reading)
        self._reading = None
        self._left = max(0.0, self._left - (self.loop.time() - self._paused))
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers, as the connection is over."""
        _stop(self._asking)
        _stop(self._reading)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are no request, with JSON in place of Uvicorn's text, and close."""
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
        if self.cycle is not None and not self.cycle.response_complete:
            if self._asking is not None:
                _stop(self._asking)
                self._asking, self._left = None, SECONDS_FOR_ANSWER
        elif self._asking is None and self._reading is None:
            self._asking = self.loop.call_later(SECONDS_FOR_HEADERS, self._end)

    def _end(self) -> None:
        """End the connection, and discard any data that the client does not read."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()


def _stop(timer: Any) -> None:  # a handle of asyncio, or of uvloop, or None
    if timer is not None:
        timer.cancel()
