"""A server from start to end: its socket, its signals, its models, and how it stops."""

import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from t2t_jax.errors import UserError
from t2t_jax.serving.app import Server, log
from t2t_jax.serving.connections import Connection
from t2t_jax.serving.engine import Engine
from t2t_jax.serving.service import Service
from t2t_jax.system.host import return_freed_memory
from t2t_jax.system.signals import ServerSignal

_POLL = 0.05  # seconds between two looks at signals

Load = Callable[[Service], Engine]
"""Makes an engine of the newest checkpoint of a service's run, ready for requests."""


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that is bound to an address, and does not listen yet.

    Args:
      host: name or address of an interface.
      port: the port; 0 is any that is free.

    Raises:
      UserError: the address cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        raise UserError(
            f"cannot listen at --host {host} --port {port}: {error.strerror or error}; "
            "give another address, or another port"
        ) from error
    return found


def settings(server: Server) -> uvicorn.Config:
    """How Uvicorn serves.

    Args:
      server: what answers.
    """
    return uvicorn.Config(
        server.app,
        http=Connection,
        ws="none",
        limit_concurrency=server.answers.bounds.max_connections,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=30,
    )


class _Uvicorn(uvicorn.Server):
    """Uvicorn, which leaves signals to this program."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take no signals."""
        yield


def run(server: Server, bound: socket.socket, load: Load, ready: Callable[[], None]) -> int:
    """Serve until SIGTERM or SIGINT; SIGHUP loads the newest checkpoints.

    On SIGTERM new requests are refused with 503, and so is `/health`; those under way are finished.

    Args:
      server: what answers.
      bound: the socket, which is closed in the end.
      load: makes the engine that takes the place of a service's.
      ready: is called once requests are taken.

    Returns:
      The exit code: 0.
    """
    with ServerSignal() as signals:
        asyncio.run(_serve(server, bound, load, ready, signals))
    return 0


async def _serve(
    server: Server,
    bound: socket.socket,
    load: Load,
    ready: Callable[[], None],
    signals: ServerSignal,
) -> None:
    listener = _Uvicorn(settings(server))
    serving = asyncio.create_task(listener.serve(sockets=[bound]))
    reloading: asyncio.Task[None] | None = None
    said = False
    while not signals.number and not serving.done():
        if listener.started and not said:
            said = True
            ready()
        if signals.reload and (reloading is None or reloading.done()):
            signals.reload = False
            reloading = asyncio.create_task(_reload(server, load))
        await asyncio.sleep(_POLL)
    await _drained(server)
    listener.should_exit = True
    await serving
    for service in server.answers.languages.services.values():
        await asyncio.to_thread(service.engine.close)


async def _drained(server: Server) -> None:
    """Refuse new requests, and wait until those under way have been answered."""
    server.is_ready = False
    log.info("stops once the %d requests under way are answered", server.under_way)
    loop = asyncio.get_running_loop()
    end = loop.time() + server.answers.bounds.timeout
    while server.under_way and loop.time() < end:
        await asyncio.sleep(_POLL)


async def _reload(server: Server, load: Load) -> None:
    """Put the newest checkpoint of each run in the place of the one that is served."""
    metrics = server.answers.metrics
    try:
        server.access.read_keys()
    except (UserError, OSError) as error:
        log.error("the API keys stay as they are: %s", error)
    for service in server.answers.languages.services.values():
        try:
            before = service.replace(await asyncio.to_thread(load, service))
        except Exception as error:  # what is served goes on
            metrics.reloads.labels("failed").inc()
            log.error("%s stays as it is: %s", service.name, error)
            continue
        metrics.reloads.labels("done").inc()
        log.info("%s is reloaded", service.name)
        await asyncio.to_thread(before.close)
        del before
        await asyncio.to_thread(return_freed_memory)


def write_log() -> None:
    """Write the log of requests to the standard error, a line each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    for name in ("uvicorn.error", "python_multipart"):  # the log above says it, too
        logging.getLogger(name).setLevel(logging.ERROR)
