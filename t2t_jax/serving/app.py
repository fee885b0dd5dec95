"""The routes of a server, and what all of them share: bounds, errors, counting, logging."""

import asyncio
import json
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from t2t_jax.serving.access import Access
from t2t_jax.serving.answers import INTERNAL_ERROR, Answers
from t2t_jax.serving.bodies import Fields, read_fields, truth_of
from t2t_jax.serving.description import description
from t2t_jax.serving.service import stopping
from t2t_jax.serving.settings import RefusedError

log = logging.getLogger("t2t_jax.serving")
"""Where requests are written down, without their texts."""

_T = TypeVar("_T")
_GONE = 499  # what nginx calls it: nobody reads this answer
_HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


class _ClientGoneError(Exception):
    """The client has closed the connection."""


@dataclass
class Server:
    """What the routes answer with.

    Attributes:
      answers: reads requests and answers them.
      access: lets clients in.
      cors: origins of other pages that may call this server; none by default.
      log_texts: whether the texts of requests are written to the log.
      is_ready: whether requests are taken; False once the server is about to stop.
      under_way: requests that are being answered.
    """

    answers: Answers
    access: Access
    cors: Sequence[str] = ()
    log_texts: bool = False
    is_ready: bool = True
    under_way: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Show how busy the engines are."""
        services = self.answers.languages.services.values()
        self.answers.metrics.watch(lambda: {one.name: one.engine.load() for one in services})

    @cached_property
    def app(self) -> ASGIApp:
        """The application, for any server of ASGI."""
        routes = [
            Route("/translate", self._posted(self.answers.translate), methods=["POST"]),
            Route("/detect", self._posted(self.answers.detect), methods=["POST"]),
            Route("/v1/translations", self._posted(self._translations), methods=["POST"]),
            Route("/languages", self._languages),
            Route("/health", self._health),
            Route("/live", _live),
            Route("/metrics", self._metrics),
            Route("/openapi.json", self._description),
            Route("/docs", _file("docs.html", "text/html")),
            Route("/", _file("page.html", "text/html")),
            Route("/page.css", _file("page.css", "text/css")),
            Route("/page.js", _file("page.js", "text/javascript")),
            Route("/docs.js", _file("docs.js", "text/javascript")),
            Route("/icon.svg", _file("icon.svg", "image/svg+xml")),
        ]
        cors = [
            Middleware(
                CORSMiddleware,
                allow_origins=list(self.cors),
                allow_methods=["GET", "POST"],
                allow_headers=["authorization", "content-type"],
            )
        ]
        handlers: Any = {
            HTTPException: _not_found,
            RefusedError: _refused,
            Exception: _failed,
        }
        app = Starlette(
            routes=routes, middleware=cors if self.cors else [], exception_handlers=handlers
        )
        return _Watched(app, self)

    def _posted(
        self, answer: Callable[[Fields], Awaitable[Any]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint that answers the fields of a request's body."""

        async def endpoint(request: Request) -> Response:
            if not self.is_ready:
                raise stopping()
            try:
                fields = await read_fields(request, self.answers.bounds)
            except ClientDisconnect:
                return self._abandoned()
            self._admit(request, fields)
            if self.log_texts:
                log.info("%s", json.dumps(fields.get("q"), ensure_ascii=True))
            try:
                found = await _while_connected(request, answer(fields))
            except _ClientGoneError:
                return self._abandoned()
            if isinstance(found, Response):
                return found
            return JSONResponse(found)

        return endpoint

    def _abandoned(self) -> Response:
        """What is written down of a request whose client has gone away."""
        self.answers.metrics.abandoned.inc()
        return Response(status_code=_GONE)

    def _admit(self, request: Request, fields: Fields) -> None:
        """Check the API key, and the number of requests."""
        key = fields.get("api_key")
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            key = bearer.strip().encode("latin-1").decode("utf-8", "replace")
        if key is not None and not isinstance(key, str):
            raise RefusedError(400, "api_key is no string")
        address = request.client.host if request.client else ""
        self.access.admit(key or None, address)

    async def _translations(self, fields: Fields) -> Any:
        if not truth_of(fields, "stream"):
            return await self.answers.translations(fields)
        events = await self.answers.streamed(fields)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)

    async def _languages(self, request: Request) -> Response:
        del request
        return JSONResponse(self.answers.languages.described())

    async def _health(self, request: Request) -> Response:
        del request
        if not self.is_ready:
            raise stopping()
        return JSONResponse({"status": "ok"})

    async def _metrics(self, request: Request) -> Response:
        del request
        page = self.answers.metrics.page()
        return Response(page, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _description(self, request: Request) -> Response:
        del request
        return JSONResponse(description(self.answers, needs_key=self.access.needs_key))


async def _live(request: Request) -> Response:
    del request
    return JSONResponse({"status": "ok"})


def _file(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    text = (files(__package__) / "static" / name).read_text("utf-8")

    async def endpoint(request: Request) -> Response:
        del request
        response = HTMLResponse if kind == "text/html" else Response
        return response(text, media_type=kind, headers=_HEADERS | {"cache-control": "no-cache"})

    return endpoint


async def _while_connected(request: Request, work: Awaitable[_T]) -> _T:
    """Wait for work; where the client goes away, cancel it, which frees its rows.

    Raises:
      _ClientGoneError: the client has gone away.
    """

    this, is_gone = asyncio.current_task(), False
    assert this is not None

    async def watch() -> None:
        nonlocal is_gone
        while (await request.receive())["type"] != "http.disconnect":
            pass
        is_gone = True
        this.cancel()

    watching = asyncio.create_task(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if is_gone and not this.uncancel():
            raise _ClientGoneError from None
        raise
    finally:
        watching.cancel()


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = error.detail
    if error.status_code == 404:
        message = f"there is no {request.url.path}; see /docs"
    if error.status_code == 405:
        message = f"{request.url.path} does not take {request.method}; see /docs"
    return JSONResponse({"error": message}, error.status_code, error.headers)


async def _refused(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, RefusedError)
    return JSONResponse({"error": str(error)}, error.status, error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    del request, error
    return JSONResponse({"error": INTERNAL_ERROR}, 500)


class _Watched:
    """Counts and writes down each request, and the exception that one has met."""

    def __init__(self, app: Starlette, server: Server) -> None:
        self._app, self._server = app, server
        self._paths = {route.path for route in app.routes if isinstance(route, Route)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status = time.monotonic(), 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._server.under_way += 1
        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            # The message of an exception may hold a text of the request.
            frames = "".join(traceback.format_tb(error.__traceback__))
            log.error("%s in %s:\n%s", type(error).__name__, scope["path"], frames)
        finally:
            self._server.under_way -= 1
            self._count(scope, status, time.monotonic() - begun)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        metrics, path = self._server.answers.metrics, scope["path"]
        route = path if path in self._paths else "other"
        metrics.requests.labels(route, str(status)).inc()
        metrics.seconds.labels(route).observe(seconds)
        client = scope["client"][0] if scope.get("client") else "-"
        shown = json.dumps(path)[1:-1]
        log.info("%s %s %s %d %.0f ms", client, scope["method"], shown, status, 1000 * seconds)
