"""The application of a server: its routes, with bounds, errors, counting and logging for all."""

import asyncio
import json
import logging
import time
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from importlib.resources import files
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from t2t_jax.decoding.open_search import ClosedError, QueueFullError
from t2t_jax.serving.access import Access
from t2t_jax.serving.answers import Answers, event
from t2t_jax.serving.bodies import Fields, fields_of, read_body
from t2t_jax.serving.description import description
from t2t_jax.serving.fields import Asked
from t2t_jax.serving.routes import GET_ROUTES, POST_ROUTES, PostRoute
from t2t_jax.serving.settings import Bounds, RefusedError

log = logging.getLogger("t2t_jax.serving")
"""The log of requests, which has their texts only where `Server.log_texts` is set."""

_T = TypeVar("_T")
_GONE = 499  # nginx's status for a client that has gone away; nobody reads this answer
_OUTCOME = "t2t_jax.outcome"
"""The key, in a request's scope, of the status of a stream that fails after its head is sent."""
_HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
_OF_STREAMS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class _Cors(CORSMiddleware):
    """Starlette's rules on calls from pages of other origins (CORS), with refusals in JSON."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """Answer the preflight request that a browser sends before a call."""
        answer = super().preflight_response(request_headers)
        if answer.status_code == 200:
            return answer
        what = bytes(answer.body).decode()  # as "Disallowed CORS origin, method"
        headers = {
            name: value
            for name, value in answer.headers.items()
            if name not in ("content-length", "content-type")
        }
        message = f"this page of another origin may not call the server so: {what}"
        return JSONResponse({"error": message}, answer.status_code, headers)


@dataclass
class Server:
    """The state of a server that its routes share."""

    answers: Answers
    """The functions that answer requests."""
    access: Access
    """The access control."""
    cors: Sequence[str] = ()
    """Origins of other pages that may call this server; none by default."""
    log_texts: bool = False
    """Whether the texts of requests are written to the log."""
    is_ready: bool = True
    """Whether requests are taken; False once the server is about to stop."""
    under_way: int = field(default=0, init=False)
    """The number of requests that are being answered."""

    def __post_init__(self) -> None:
        """Have the metrics show how busy the engines are."""
        for model in self.answers.languages.models:
            self.answers.metrics.watch(model.name, model.load)

    @cached_property
    def app(self) -> ASGIApp:
        """Return the application, for any ASGI server."""
        routes = [
            *(Route(path, self._post(one), methods=["POST"]) for path, one in POST_ROUTES.items()),
            *(Route(path, self._get(one.respond)) for path, one in GET_ROUTES.items()),
            Route("/openapi.json", self._get(Server._description)),
            Route("/docs", _file("docs.html", "text/html")),
            Route("/", _file("page.html", "text/html")),
            Route("/page.css", _file("page.css", "text/css")),
            Route("/page.js", _file("page.js", "text/javascript")),
            Route("/docs.js", _file("docs.js", "text/javascript")),
            Route("/icon.svg", _file("icon.svg", "image/svg+xml")),
        ]
        cors = [
            Middleware(
                _Cors,
                allow_origins=list(self.cors),
                allow_methods=["GET", "POST"],
                allow_headers=["authorization", "content-type"],
            )
        ]
        facts = RefusedError, QueueFullError, ClosedError, TimeoutError, Exception
        handlers: Any = {HTTPException: _not_found, **dict.fromkeys(facts, self._refused)}
        app = Starlette(
            routes=routes, middleware=cors if self.cors else [], exception_handlers=handlers
        )
        app.router.redirect_slashes = False  # a redirect would lead to the header Host's address
        return _Watched(app, self)

    def _post(self, route: PostRoute) -> Callable[[Request], Awaitable[Response]]:
        """Make the endpoint of a route that reads fields from a request's body."""
        bounds, fields = self.answers.bounds, cache(partial(route.fields, self.answers))

        async def answered(request: Request, body: bytes, client: str | None) -> Any:
            given = await fields_of(request, body)
            client = self._admit(request, given) if client is None else client
            if self.log_texts:
                log.info("%s", json.dumps(given.get("q"), default=repr))
            base = str(request.base_url)
            asked = Asked(fields, given, client, base, lenient=route.is_lenient)
            return await route.respond(self.answers, asked)

        async def endpoint(request: Request) -> Response:
            if not self.is_ready:
                raise ClosedError
            client = self._admit_early(request)
            try:
                body = await read_body(request, bounds)
                async with asyncio.timeout(bounds.timeout):
                    found = await _while_connected(request, answered(request, body, client))
            except ClientDisconnect:
                return Response(status_code=_GONE)
            if isinstance(found, AsyncGenerator):
                events = self._with_failure(found, request.scope)
                return StreamingResponse(
                    events, media_type="text/event-stream", headers=_OF_STREAMS
                )
            return JSONResponse(found)

        return endpoint

    def _get(self, respond: Callable[..., Any]) -> Callable[[Request], Awaitable[Response]]:
        """Make the endpoint of a route that reads nothing but its path."""

        async def endpoint(request: Request) -> Response:
            found = respond(self, **request.path_params)
            return found if isinstance(found, Response) else JSONResponse(found)

        return endpoint

    def _admit_early(self, request: Request) -> str | None:
        """Let a client in before the body is read; return None where the body may have its key."""
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if not self.access.needs_key:
            return self.access.admit(None, _address(request.scope))
        if scheme.lower() == "bearer":
            key = bearer.strip().encode("latin-1").decode("utf-8", "replace")
            return self.access.admit(key or None, _address(request.scope))
        self.access.check_guesses(_address(request.scope))
        return None

    def _admit(self, request: Request, fields: Fields) -> str:
        """Check the API key among the fields, and the number of requests."""
        key = fields.get("api_key")
        if key is not None and not isinstance(key, str):
            raise RefusedError(400, "api_key is no string")
        return self.access.admit(key or None, _address(request.scope))

    def _description(self) -> dict[str, Any]:
        return description(self.answers, needs_key=self.access.needs_key)

    async def _refused(self, _: Request, error: Exception) -> Response:
        found = refusal(error, self.answers.bounds)
        return JSONResponse({"error": str(found)}, found.status, found.headers)

    async def _with_failure(
        self, events: AsyncGenerator[str, None], scope: Scope
    ) -> AsyncGenerator[str, None]:
        """Yield the events of a stream; where the stream fails, the last event is `error`."""
        try:
            async with aclosing(events):
                async for one in events:
                    yield one
        except Exception as error:
            found = refusal(error, self.answers.bounds)
            scope[_OUTCOME] = found.status
            if found.status == 500:
                _write_down(error, scope)
            yield event("error", {"status": found.status, "error": str(found)})


def refusal(error: Exception, bounds: Bounds) -> RefusedError:
    """Return the refusal of a request, or the failure of a stream, that an exception leads to."""
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, QueueFullError):
        return RefusedError(429, f"{error}; try again later", Retry_After="1")
    if isinstance(error, ClosedError):
        again = {"Retry_After": "5", "Connection": "close"}
        return RefusedError(503, "the server is stopping; try again", **again)
    if isinstance(error, TimeoutError):
        took = f"the translation took longer than {bounds.timeout:g} s"
        return RefusedError(504, f"{took}; send less at once")
    return RefusedError(500, "the server has failed; it has written down why")


def _address(scope: Scope) -> str:
    """Return the address of the client, which may be one that a trusted proxy names."""
    return scope["client"][0] if scope.get("client") else ""


def _file(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    text = (files(__package__) / "static" / name).read_text("utf-8")

    async def endpoint(_: Request) -> Response:
        return Response(text, media_type=kind, headers=_HEADERS | {"cache-control": "no-cache"})

    return endpoint


async def _while_connected(request: Request, work: Awaitable[_T]) -> _T:
    """Wait for work; if the client goes away, cancel the work, which frees its rows."""

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
            raise ClientDisconnect from None
        raise
    finally:
        watching.cancel()


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = error.detail
    if error.status_code == 404:
        message = f"there is no {_shown(request.scope['path'])}; see /docs"
    if error.status_code == 405:
        message = f"{_shown(request.scope['path'])} does not take {request.method}; see /docs"
    return JSONResponse({"error": message}, error.status_code, error.headers)


class _Watched:
    """An application that counts and logs each request of another one, and its exceptions."""

    def __init__(self, app: Starlette, server: Server) -> None:
        self._app, self._server = app, server
        self._paths = {route.path for route in app.routes if isinstance(route, Route)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status, is_whole = time.monotonic(), 0, False

        async def watched(message: Message) -> None:
            nonlocal status, is_whole
            if message["type"] == "http.response.start":
                status = message["status"]
            is_whole = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        self._server.under_way += 1
        try:
            app: ASGIApp = _has_two_lengths if _is_ambiguous(scope) else self._app
            await app(scope, receive, watched)
        except Exception as error:
            status, is_whole = 500, True
            _write_down(error, scope)
        finally:
            self._server.under_way -= 1
            status = scope.get(_OUTCOME, status) if is_whole else _GONE
            self._count(scope, status, time.monotonic() - begun)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        metrics, path = self._server.answers.metrics, scope["path"]
        route = path if path in self._paths else "other"
        metrics.requests.labels(route, str(status)).inc()
        metrics.seconds.labels(route).observe(seconds)
        if status == _GONE:
            metrics.abandoned.inc()
        client, method = _shown(_address(scope) or "-"), scope["method"]
        log.info("%s %s %s %d %.0f ms", client, method, _shown(path), status, 1000 * seconds)


def _write_down(error: Exception, scope: Scope) -> None:
    """Log the place of an exception, without its message, which may hold a text of the request."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    log.error("%s in %s:\n%s", type(error).__name__, _shown(scope["path"]), frames)


def _is_ambiguous(scope: Scope) -> bool:
    """Return whether a proxy may see another end of a request than this server (RFC 9112, 6.1)."""
    names = [name for name, _ in scope["headers"]]
    is_old = scope["http_version"] == "1.0"
    return b"transfer-encoding" in names and (is_old or b"content-length" in names)


async def _has_two_lengths(scope: Scope, receive: Receive, send: Send) -> None:
    message = "Transfer-Encoding with Content-Length, or in HTTP/1.0; send one of the two"
    await JSONResponse({"error": message}, 400, {"connection": "close"})(scope, receive, send)


def _shown(given: str) -> str:
    """Escape the line breaks and the control codes in a string that a client has given."""
    return json.dumps(given)[1:-1]
