"""The HTTP server: routes, limits, error responses, metrics, the socket and stop signals."""

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

from t2t_jax.errors import UserError
from t2t_jax.extras.serving.engine import Engine, QueueFullError
from t2t_jax.system.signals import StopSignal

log = logging.getLogger("t2t_jax.extras.serving")
"""The request log, which never contains texts of requests."""

_CLIENT_GONE = 499  # nginx's status for a client that disconnected; nobody reads the response
_POLL_SECONDS = 0.05
_CONNECTIONS = 500  # more connections get status 503
_KEEP_ALIVE_SECONDS = 30


class Application:
    """The ASGI application `app`, with the routes of the server."""

    def __init__(self, engine: Engine, *, max_body_bytes: int = 2**20, timeout: float = 60) -> None:
        """Create the routes and the metrics.

        Args:
          timeout: the maximum seconds from a request's header to its response.
        """
        self._engine, self._max_body_bytes, self._timeout = engine, max_body_bytes, timeout
        self._page = (files(__package__) / "page.html").read_text("utf-8")
        registry = self._registry = CollectorRegistry()
        self._requests = Counter(
            "t2t_requests", "Requests for translations.", ["status"], registry=registry
        )
        self._seconds = Histogram("t2t_request_seconds", "Time of a response.", registry=registry)
        self._sentences = Counter("t2t_sentences", "Sentences translated.", registry=registry)
        for name, description, read_gauge in (
            ("t2t_sentences_waiting", "Waiting sentences.", lambda: engine.num_waiting),
            ("t2t_rows_in_use", "Sentences in the batch.", lambda: engine.num_translating),
            ("t2t_rows", "Maximum number of sentences in a batch.", lambda: engine.rows),
        ):
            Gauge(name, description, registry=registry).set_function(read_gauge)
        routes = [
            Route("/translate", self._translate, methods=["POST"]),
            Route("/health", self._health),
            Route("/metrics", self._metrics),
            Route("/", self._show_page),
        ]
        self.app = Starlette(routes=routes, exception_handlers={HTTPException: self._refuse})

    async def _translate(self, request: Request) -> Response:
        start = time.monotonic()
        try:
            async with asyncio.timeout(self._timeout):
                response = JSONResponse({"translatedText": await self._translate_body(request)})
        except Exception as error:
            response = await self._refuse(request, error)
        seconds = time.monotonic() - start
        self._requests.labels(str(response.status_code)).inc()
        self._seconds.observe(seconds)
        client = request.client.host if request.client else "-"
        log.info("%s POST /translate %d %.0f ms", client, response.status_code, 1000 * seconds)
        return response

    async def _translate_body(self, request: Request) -> str | list[str]:
        """Translate the field `q` of a request body: a text, or a list of texts."""
        try:
            fields = msgspec.json.decode(await self._body(request), type=_RequestFields)
        except (ValueError, RecursionError) as error:
            message = f'the body is not JSON in UTF-8, as {{"q": "..."}}: {error}'
            raise HTTPException(400, message) from error
        texts = [fields.q] if isinstance(fields.q, str) else fields.q
        try:
            # A thread keeps long texts from blocking other requests.
            languages = fields.source, fields.target
            prepared = await asyncio.to_thread(self._engine.prepare, texts, *languages)
        except UserError as error:
            raise HTTPException(400, str(error)) from error
        limit = self._engine.max_waiting
        if (num_parts := len(prepared.parts)) > limit:  # a long sentence has several parts
            raise HTTPException(413, f"{num_parts:,} sentences are more than {limit:,}; send fewer")
        translations = await self._engine.translate(prepared)
        self._sentences.inc(prepared.num_sentences)
        return translations[0] if isinstance(fields.q, str) else translations

    async def _body(self, request: Request) -> bytes:
        """Read a request's body; refuse a longer one than allowed, even if it declares less."""
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self._max_body_bytes:
                limit = f"{self._max_body_bytes:,} bytes"
                raise HTTPException(413, f"the body is larger than {limit}; send less")
        return bytes(body)

    async def _health(self, _: Request) -> Response:
        source, target = self._engine.languages
        return JSONResponse({"status": "ok", "source": source, "target": target})

    async def _metrics(self, _: Request) -> Response:
        return Response(generate_latest(self._registry), media_type="text/plain")

    async def _show_page(self, _: Request) -> Response:
        return HTMLResponse(self._page)

    async def _refuse(self, _: Request, error: Exception) -> JSONResponse:
        headers = None
        if isinstance(error, HTTPException):
            status, message, headers = error.status_code, error.detail, error.headers
        elif isinstance(error, QueueFullError):
            status, message, headers = 429, f"{error}; try again later", {"Retry-After": "1"}
        elif isinstance(error, TimeoutError):
            status, message = 504, f"the request took longer than {self._timeout:g} s"
        elif isinstance(error, ClientDisconnect):
            status, message = _CLIENT_GONE, "the client disconnected"
        else:
            status, message = 500, "the server failed; its log says where"
            # The error message is not logged, because it may quote a text.
            frames = "".join(traceback.format_tb(error.__traceback__))
            log.error("%s:\n%s", type(error).__name__, frames)
        return JSONResponse({"error": message}, status, headers)


class _RequestFields(msgspec.Struct, forbid_unknown_fields=True):
    q: str | list[str]
    source: str | None = None
    target: str | None = None


def bind_socket(host: str, port: int) -> socket.socket:
    """Create a socket that is bound to an address; port 0 is any free port."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
        except OSError:
            sock.close()
            raise
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"cannot listen at --host {host} --port {port}: {reason}; "
            "give another address, or another port"
        ) from error
    return sock


def url_of(sock: socket.socket) -> str:
    """Return the URL of a socket, for a browser."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def log_requests() -> None:
    """Log one line per request to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)


def http_server(app: ASGIApp, timeout: float) -> uvicorn.Server:
    """Return a server of an application whose requests take at most `timeout` seconds."""
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


def serve(app: ASGIApp, sock: socket.socket, timeout: float, on_ready: Callable[[], None]) -> int:
    """Serve an application until a signal arrives, and return the exit code.

    On SIGTERM, SIGINT or SIGHUP, the server closes the socket and finishes active requests. A
    second SIGINT ends the program at once.

    Args:
      on_ready: called when the server accepts requests.
    """
    server = http_server(app, timeout)
    # Uvicorn installs its signal handlers on the main thread only; in another thread it installs
    # none, and `StopSignal` handles all signals.
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, name="http")
    with StopSignal() as signals:
        thread.start()
        while thread.is_alive() and not server.started:
            time.sleep(_POLL_SECONDS)
        if server.started:
            on_ready()
        while thread.is_alive() and not signals.number:
            time.sleep(_POLL_SECONDS)
        log.info("the server stops after its active requests")
        server.should_exit = True
        thread.join()
    return 0 if signals.number else 1
