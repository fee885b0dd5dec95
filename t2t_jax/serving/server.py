"""A server from start to end: its socket, its signals, the loading of models, and its stop."""

import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from t2t_jax.errors import UserError
from t2t_jax.serving.app import Server, log
from t2t_jax.serving.connections import Connection
from t2t_jax.serving.engine import Engine
from t2t_jax.serving.service import ServedModel
from t2t_jax.serving.settings import Bounds
from t2t_jax.system.host import return_freed_memory, trim_heap
from t2t_jax.system.signals import ServerSignal

_POLL = 0.05  # seconds between two looks at signals
_TRIM = 10.0
"""Seconds between two times at which memory that requests have freed is returned to the system."""
_BACKLOG = 2048  # connections that wait to be accepted
_LIVE = JSONResponse({"status": "ok"}, headers={"connection": "close"})
_STARTING = JSONResponse(
    {"error": "the server is starting; try again"}, 503, {"retry-after": "5", "connection": "close"}
)

Load = Callable[[ServedModel], Engine]
"""A function that loads the newest checkpoint of a model's run into an engine that is ready."""


Make = Callable[[], Server]
"""A function that loads all models and makes the server."""


def bound_socket(host: str, port: int) -> socket.socket:
    """Make a socket that listens at an address, which no other program can take from now on.

    Port 0 is any that is free. An address at which the program cannot listen is refused.

    Raises:
      UserError: the program cannot listen at the address.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
            found.listen(_BACKLOG)
        except OSError:
            found.close()
            raise
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(
            f"cannot listen at --host {host} --port {port}: {why}; "
            "give another address, or another port"
        ) from error
    return found


def address_of(bound: socket.socket) -> str:
    """Return the URL of a socket, for a browser."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@dataclass
class Entrance:
    """The application from the moment that the socket listens; it answers 503 until models load."""

    server: Server | None = None
    """The server that answers; None while models are loaded."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with the server, or with 503 while there is none."""
        answer: ASGIApp = _STARTING if self.server is None else self.server.app
        if self.server is None and scope.get("path") == "/live":
            answer = _LIVE
        await answer(scope, receive, send)


def settings(
    entrance: Entrance, bounds: Bounds, trusted_proxies: Sequence[str] = ()
) -> uvicorn.Config:
    """Return the settings of Uvicorn; the header X-Forwarded-For of trusted proxies is believed."""
    return uvicorn.Config(
        entrance,
        http=Connection,
        ws="none",
        limit_concurrency=bounds.max_connections,
        log_config=None,
        access_log=False,
        lifespan="off",
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=list(trusted_proxies),
        server_header=False,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=30,
    )


class _Uvicorn(uvicorn.Server):
    """A server of Uvicorn that leaves signals to this program."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take no signals."""
        yield


def run_server(
    make: Make,
    bound: socket.socket,
    bounds: Bounds,
    load: Load,
    ready: Callable[[], None],
    trusted_proxies: Sequence[str] = (),
) -> int:
    """Serve until SIGTERM or SIGINT and return 0; SIGHUP loads the newest checkpoints.

    While models are loaded, requests are refused with 503, SIGTERM and SIGINT end the program at
    once, and SIGHUP has the models loaded again afterwards. On a later SIGTERM or SIGINT, new
    requests are refused with 503, and so is `/health`; those under way are finished.

    The models are made in a thread of their own, and `ready` is called once requests are taken. The
    header X-Forwarded-For of trusted proxies is believed. The socket is closed in the end.

    Raises:
      UserError: the models cannot be loaded.
    """
    with ServerSignal() as signals:
        entrance = Entrance()
        listener = _Uvicorn(settings(entrance, bounds, trusted_proxies))
        asyncio.run(_serve(make, entrance, listener, bound, load, ready, signals))
    return 0


async def _serve(
    make: Make,
    entrance: Entrance,
    listener: uvicorn.Server,
    bound: socket.socket,
    load: Load,
    ready: Callable[[], None],
    signals: ServerSignal,
) -> None:
    serving = asyncio.create_task(listener.serve(sockets=[bound]))
    try:
        server = entrance.server = await asyncio.to_thread(make)
    except BaseException:
        listener.should_exit = listener.force_exit = True
        await serving
        raise
    signals.is_serving = True
    trimming = asyncio.create_task(_trimmed())
    ready()
    reloading: asyncio.Task[None] | None = None
    while not signals.number and not serving.done():
        if signals.reload and (reloading is None or reloading.done()):
            signals.reload = False
            reloading = asyncio.create_task(_reload(server, load))
        await asyncio.sleep(_POLL)
    trimming.cancel()
    await _drained(server)
    listener.should_exit = True
    await serving
    for model in server.answers.languages.models:
        await asyncio.to_thread(model.engine.close)


async def _trimmed() -> None:
    """Return freed memory to the system periodically, which the process would keep otherwise."""
    while True:
        await asyncio.to_thread(trim_heap)
        await asyncio.sleep(_TRIM)


async def _drained(server: Server) -> None:
    """Refuse new requests, and wait until those under way have been answered."""
    server.is_ready = False
    log.info("stops once the %d requests under way are answered", server.under_way)
    loop = asyncio.get_running_loop()
    end = loop.time() + server.answers.bounds.timeout
    while server.under_way and loop.time() < end:
        await asyncio.sleep(_POLL)


async def _reload(server: Server, load: Load) -> None:
    """Replace the checkpoint that is served of each run by the newest one, and read the keys."""
    metrics = server.answers.metrics
    try:
        server.access.read_keys()
    except (UserError, OSError) as error:
        log.error("the API keys stay as they are: %s", error)
    for model in server.answers.languages.models:
        try:
            engine = await asyncio.to_thread(load, model)
        except Exception as error:  # what is served goes on
            metrics.reloads.labels("failed").inc()
            log.error("%s stays as it is: %s", model.name, error)
            continue
        before, model.engine = model.engine, engine  # requests under way keep the old one
        metrics.reloads.labels("done").inc()
        log.info("%s is reloaded", model.name)
        await asyncio.to_thread(before.close)
        del before
        await asyncio.to_thread(return_freed_memory)


def write_log() -> None:
    """Have the log of requests written to the standard error, one line for each request."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    for name in ("uvicorn.error", "python_multipart"):  # the log above says it, too
        logging.getLogger(name).setLevel(logging.ERROR)
