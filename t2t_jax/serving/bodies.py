"""Readers of requests' bodies and queries: they return fields by name, and keep to bounds."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import python_multipart
from python_multipart.exceptions import FormParserError
from starlette.requests import Request

from t2t_jax.serving.settings import Bounds, RefusedError

_MOST_FIELDS = 10_000
_SMALL = 2**14
"""The most bytes of a body that the event loop parses: another thread would cost more."""
_FORMS = "application/x-www-form-urlencoded", "multipart/form-data"

Fields = dict[str, Any]
"""The fields of a request, by name; a field that a form repeats is a list of strings."""


class SentFile(NamedTuple):
    """A file that a form has sent."""

    name: str
    """The name that the client gives it."""
    content: bytes


async def fields_of(request: Request, body: bytes) -> Fields:
    """Return the fields of a request: those of its JSON, or of its form and its query together.

    A large body is parsed in another thread.

    Raises:
      RefusedError: the body is of another type (415) or malformed (400).
    """
    if len(body) <= _SMALL:
        return _fields(request, body)
    return await asyncio.to_thread(_fields, request, body)


def _fields(request: Request, body: bytes) -> Fields:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        return _json(body)
    with _refusing("query", "the query is malformed"):
        query = _gathered(_pairs(request.scope["query_string"]))
    if kind in _FORMS:
        return _form(body, kind, request.headers["content-type"]) | query
    if query and not body:
        return query
    raise RefusedError(
        415, f"content type {kind!r}: send application/json, or a form ({' or '.join(_FORMS)})"
    )


async def read_body(request: Request, bounds: Bounds) -> bytes:
    """Read the body of a request, within bounds.

    Raises:
      RefusedError: the body is too large (413) or too slow (408).
      ClientDisconnect: the client went away before the end of the body.
    """
    limit = bounds.max_body_bytes
    too_large = f"the body is larger than {limit:,} bytes; send less at once"
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > limit:
        raise RefusedError(413, too_large)
    body = bytearray()
    try:
        async with asyncio.timeout(bounds.timeout):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise RefusedError(413, too_large)
    except TimeoutError:
        raise RefusedError(
            408, f"the body did not arrive within {bounds.timeout:g} s", Connection="close"
        ) from None
    return bytes(body)


def _json(body: bytes) -> Fields:
    try:
        with _refusing("body", "the body is not JSON"):
            found = json.loads(body.decode("utf-8"), object_pairs_hook=_without_repeats)
    except RecursionError:
        raise RefusedError(400, "the JSON is nested too deeply") from None
    if not isinstance(found, dict):
        raise RefusedError(400, 'the body is not a JSON object; send one, as {"q": "..."}')
    return found


def _without_repeats(pairs: list[tuple[str, Any]]) -> Fields:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field is given twice")
    return fields


def _form(body: bytes, kind: str, content_type: str) -> Fields:
    is_urlencoded = kind == "application/x-www-form-urlencoded"
    with _refusing("body", "the form is malformed"):
        return _gathered(_pairs(body) if is_urlencoded else _multipart(body, content_type))


def _pairs(encoded: bytes) -> list[tuple[str, str | SentFile]]:
    return [
        *parse_qsl(
            encoded.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MOST_FIELDS,
        )
    ]


def _multipart(body: bytes, content_type: str) -> list[tuple[str, str | SentFile]]:
    pairs: list[tuple[str, str | SentFile]] = []
    is_whole = False

    def on_field(field: Any) -> None:
        pairs.append((field.field_name.decode("utf-8"), (field.value or b"").decode("utf-8")))

    def on_file(file: Any) -> None:
        file.file_object.seek(0)
        sent = SentFile(file.file_name.decode("utf-8"), file.file_object.read())
        pairs.append((file.field_name.decode("utf-8"), sent))

    def on_end() -> None:
        nonlocal is_whole
        is_whole = True

    headers = {"Content-Type": content_type.encode("latin-1")}
    in_memory: Any = {"MAX_MEMORY_FILE_SIZE": len(body)}
    parser = python_multipart.create_form_parser(headers, on_field, on_file, config=in_memory)
    parser.on_end = on_end
    parser.write(body)
    parser.finalize()
    if not is_whole:
        raise ValueError("its last boundary is missing")
    return pairs


def _gathered(pairs: Sequence[tuple[str, str | SentFile]]) -> Fields:
    """Return the fields by name; the values of a repeated field are a list."""
    values: dict[str, list[str | SentFile]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return {name: found if len(found) > 1 else found[0] for name, found in values.items()}


@contextmanager
def _refusing(what: str, problem: str) -> Iterator[None]:
    """Refuse a request whose body or query cannot be read."""
    try:
        yield
    except UnicodeDecodeError as error:
        byte = f"byte {error.start + 1} is 0x{error.object[error.start]:02x}"
        raise RefusedError(400, f"the {what} is not UTF-8: {byte}") from None
    except (ValueError, FormParserError) as error:
        raise RefusedError(400, f"{problem}: {error}") from None
