"""The server as a program: its socket, its log, and its stop on a signal."""

import logging
import math
import socket
import sys
import threading
import time
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from t2t_jax.errors import UserError
from t2t_jax.extras.serving.app import log
from t2t_jax.system.signals import StopSignal

_POLL_SECONDS = 0.05
_CONNECTIONS = 500  # further ones are refused with 503
_KEEP_ALIVE_SECONDS = 30


def bound_socket(host: str, port: int) -> socket.socket:
    """Make a socket that is bound to an address; port 0 is any free port."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except (OSError, TypeError) as error:  # of a name that cannot be encoded
        bound.close()
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
