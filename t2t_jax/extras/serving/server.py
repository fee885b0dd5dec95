"""The server: its routes, bounds, refusals and metrics, its socket, and its stop on a signal."""

import asyncio
import logging
import math
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from importlib.resources import files

import msgspec
import uvicorn
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from t2t_jax.decoding.open_search import QueueFullError
from t2t_jax.errors import UserError
from t2t_jax.extras.serving.engine import Engine
from t2t_jax.system.signals import StopSignal

log = logging.getLogger("t2t_jax.extras.serving")
"""The log of requests. It never has their texts."""

_CLIENT_GONE = 499  # nginx's status for a client that went away; nobody reads this answer
_POLL_SECONDS = 0.05
_CONNECTIONS = 500  # further ones are refused with 503
_KEEP_ALIVE_SECONDS = 30


class Application:
    """The routes of the server: `app` is an ASGI application."""

    def __init__(self, engine: Engine, *, max_body_bytes: int = 2**20, timeout: float = 60) -> None:
        """Make the routes, and counters that begin at 0.

        Args:
          max_body_bytes: the most bytes of a request's body.
          timeout: the most seconds from the head of a request to its answer.
        """
        self._engine, self._max_body_bytes, self._timeout = engine, max_body_bytes, timeout
        self._page = (files(__package__) / "page.html").read_text("utf-8")
        registry = self._registry = CollectorRegistry()
        self._requests = Counter(
            "t2t_requests", "Requests for translations.", ["status"], registry=registry
        )
        self._seconds = Histogram("t2t_request_seconds", "Time of an answer.", registry=registry)
        self._sentences = Counter("t2t_sentences", "Sentences translated.", registry=registry)
        search = engine.search
        for name, about, value in (
            ("t2t_sentences_waiting", "Sentences that wait.", lambda: search.num_waiting),
            ("t2t_rows_in_use", "Sentences under way.", lambda: search.num_live),
            ("t2t_rows", "Most sentences under way at a time.", lambda: search.num_rows),
        ):
            Gauge(name, about, registry=registry).set_function(value)
        routes = [
            Route("/translate", self._translate, methods=["POST"]),
            Route("/health", self._health),
            Route("/metrics", self._metrics),
            Route("/", self._show_page),
        ]
        self.app = Starlette(routes=routes, exception_handlers={HTTPException: self._refused})

    async def _translate(self, request: Request) -> Response:
        start = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout):
                response = JSONResponse({"translatedText": await self._translation(request)})
        except Exception as error:
            response = await self._refused(request, error)
        seconds = time.monotonic() - start
        self._requests.labels(str(response.status_code)).inc()
        self._seconds.observe(seconds)
        client = request.client.host if request.client else "-"
        log.info("%s POST /translate %d %.0f ms", client, response.status_code, 1000 * seconds)
        return response

    async def _translation(self, request: Request) -> str | list[str]:
        """Return the translation of the field `q` of a request: a text, or a list of texts."""
        try:
            fields = msgspec.json.decode(await self._body(request), type=_Fields)
        except (ValueError, RecursionError) as error:
            message = f'the body is not JSON in UTF-8, as {{"q": "..."}}: {error}'
            raise HTTPException(400, message) from error
        texts = [fields.q] if isinstance(fields.q, str) else fields.q
        try:
            # In a thread, as long texts would hold up the other requests.
            languages = fields.source, fields.target
            prepared = await asyncio.to_thread(self._engine.prepare, texts, *languages)
        except UserError as error:
            raise HTTPException(400, str(error)) from error
        most = self._engine.search.limits.max_waiting
        if (number := len(prepared.parts)) > most:  # a long sentence has several parts
            raise HTTPException(413, f"{number:,} sentences are more than {most:,}; send fewer")
        translations = await self._engine.translate(prepared, self._timeout)
        self._sentences.inc(prepared.num_sentences)
        return translations[0] if isinstance(fields.q, str) else translations

    async def _body(self, request: Request) -> bytes:
        """Read the body, and count its bytes, as the declared length may be wrong."""
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self._max_body_bytes:
                most = f"{self._max_body_bytes:,} bytes"
                raise HTTPException(413, f"the body is larger than {most}; send less")
        return bytes(body)

    async def _health(self, _: Request) -> Response:
        source, target = self._engine.languages
        return JSONResponse({"status": "ok", "source": source, "target": target})

    async def _metrics(self, _: Request) -> Response:
        return Response(generate_latest(self._registry), media_type="text/plain")

    async def _show_page(self, _: Request) -> Response:
        return HTMLResponse(self._page)

    async def _refused(self, _: Request, error: Exception) -> JSONResponse:
        headers = None
        if isinstance(error, HTTPException):
            status, message, headers = error.status_code, error.detail, error.headers
        elif isinstance(error, QueueFullError):
            status, message, headers = 429, f"{error}; try again later", {"Retry-After": "1"}
        elif isinstance(error, TimeoutError):
            status, message = 504, f"the request took longer than {self._timeout:g} s"
        elif isinstance(error, ClientDisconnect):
            status, message = _CLIENT_GONE, "the client went away"
        else:
            status, message = 500, "the server failed; its log says where"
            # Without the message of the error, which may quote a text.
            frames = "".join(traceback.format_tb(error.__traceback__))
            log.error("%s:\n%s", type(error).__name__, frames)
        return JSONResponse({"error": message}, status, headers)


class _Fields(msgspec.Struct, forbid_unknown_fields=True):
    q: str | list[str]
    source: str | None = None
    target: str | None = None


def bound_socket(host: str, port: int) -> socket.socket:
    """Make a socket that is bound to an address; port 0 is any free port."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"cannot listen at --host {host} --port {port}: {reason}; "
            "give another address, or another port"
        ) from error
    return bound


def address_of(bound: socket.socket) -> str:
    """Return the URL of a socket, for a browser."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def write_log() -> None:
    """Write the log of requests to the standard error, one line for each request."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)


def http_server(app: ASGIApp, timeout: float) -> uvicorn.Server:
    """Return the HTTP server of an application, whose requests take at most `timeout` seconds."""
    config = uvicorn.Config(
        app,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=_CONNECTIONS,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=math.ceil(timeout) + 1,
    )
    return uvicorn.Server(config)


def serve(app: ASGIApp, bound: socket.socket, timeout: float, ready: Callable[[], None]) -> int:
    """Serve until a signal comes, and return the exit code.

    On SIGTERM, SIGINT or SIGHUP the socket is closed, and requests under way are answered. A second
    SIGINT ends the program at once.

    Args:
      ready: is called as soon as requests are answered.
    """
    listener = http_server(app, timeout)
    # Uvicorn takes signals on the main thread only, and this program has its own rules for them.
    thread = threading.Thread(target=listener.run, kwargs={"sockets": [bound]}, name="http")
    with StopSignal() as signals:
        thread.start()
        while thread.is_alive() and not listener.started:
            time.sleep(_POLL_SECONDS)
        if listener.started:
            ready()
        while thread.is_alive() and not signals.number:
            time.sleep(_POLL_SECONDS)
        log.info("stops once the requests under way are answered")
        listener.should_exit = True
        thread.join()
    return 0 if signals.number else 1
