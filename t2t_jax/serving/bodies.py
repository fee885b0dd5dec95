"""The fields of requests: JSON, forms and queries, read within bounds, each of its type."""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

import python_multipart
from python_multipart.exceptions import FormParserError
from starlette.requests import Request

from t2t_jax.serving.settings import Bounds, RefusedError

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_MOST_FIELDS = 10_000
_SMALL = 2**14
"""Bytes of a body that is parsed within the event loop: another thread would cost more."""
_FORMS = "application/x-www-form-urlencoded", "multipart/form-data"

Fields = dict[str, Any]
"""The fields of a request, by name; of a form, one that is repeated is a list of strings."""


def query_fields(request: Request) -> Fields:
    """The fields that a request has in its address, after the question mark.

    Args:
      request: the request.

    Raises:
      RefusedError: they are malformed (400).
    """
    try:
        return _gathered(_pairs(request.scope["query_string"]))
    except UnicodeDecodeError as error:
        raise _not_utf8("query", error) from None
    except ValueError as error:
        raise RefusedError(400, f"the query is malformed: {error}") from None


async def fields_of(request: Request, body: bytes) -> Fields:
    """The fields of a request: those of its JSON, or else of its form and its query together.

    Args:
      request: the request.
      body: its body, from `read_body`. Another thread parses one that is large.

    Raises:
      RefusedError: it is of another type (415) or malformed (400).
    """
    if len(body) <= _SMALL:
        return _fields(request, body)
    return await asyncio.to_thread(_fields, request, body)


def _fields(request: Request, body: bytes) -> Fields:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        return _json(body)
    query = query_fields(request)
    if kind in _FORMS:
        return _form(body, kind, request.headers["content-type"]) | query
    if query and not body:
        return query
    raise RefusedError(
        415, f"content type {kind!r}: send application/json, or a form ({' or '.join(_FORMS)})"
    )


async def read_body(request: Request, bounds: Bounds) -> bytes:
    """The body of a request.

    Args:
      request: the request.
      bounds: what is allowed.

    Raises:
      RefusedError: it is too large (413) or too slow (408).
      ClientDisconnect: the client went away before its end.
    """
    limit = bounds.max_body_bytes
    refusal = RefusedError(413, f"the body is larger than {limit:,} bytes; send less at once")
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > limit:
        raise refusal
    body = bytearray()
    try:
        async with asyncio.timeout(bounds.timeout):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise refusal
    except TimeoutError:
        raise RefusedError(
            408, f"the body did not arrive within {bounds.timeout:g} s", Connection="close"
        ) from None
    return bytes(body)


def _json(body: bytes) -> Fields:
    try:
        found = json.loads(body.decode("utf-8"), object_pairs_hook=_without_repeats)
    except UnicodeDecodeError as error:
        raise _not_utf8("body", error) from None
    except RecursionError:
        raise RefusedError(400, "the JSON is nested too deeply") from None
    except ValueError as error:
        raise RefusedError(400, f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise RefusedError(400, 'the body is not a JSON object; send one, as {"q": "..."}')
    return found


def _without_repeats(pairs: list[tuple[str, Any]]) -> Fields:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field is given twice")
    return fields


def _form(body: bytes, kind: str, content_type: str) -> Fields:
    try:
        is_urlencoded = kind == "application/x-www-form-urlencoded"
        return _gathered(_pairs(body) if is_urlencoded else _multipart(body, content_type))
    except UnicodeDecodeError as error:
        raise _not_utf8("body", error) from None
    except (ValueError, FormParserError) as error:
        raise RefusedError(400, f"the form is malformed: {error}") from None


def _pairs(encoded: bytes) -> list[tuple[str, str]]:
    return parse_qsl(
        encoded.decode("ascii"),
        keep_blank_values=True,
        errors="strict",
        max_num_fields=_MOST_FIELDS,
    )


def _multipart(body: bytes, content_type: str) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    is_whole = False

    def on_field(field: Any) -> None:
        pairs.append((field.field_name.decode("utf-8"), (field.value or b"").decode("utf-8")))

    def on_file(file: Any) -> None:
        raise ValueError("a file is sent; send its text as the field q")

    def on_end() -> None:
        nonlocal is_whole
        is_whole = True

    headers = {"Content-Type": content_type.encode("latin-1")}
    parser = python_multipart.create_form_parser(headers, on_field, on_file)
    parser.on_end = on_end
    parser.write(body)
    parser.finalize()
    if not is_whole:
        raise ValueError("its last boundary is missing")
    return pairs


def _gathered(pairs: Sequence[tuple[str, str]]) -> Fields:
    """The fields by their names; one that is there several times is a list."""
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return {name: found if len(found) > 1 else found[0] for name, found in values.items()}


def _not_utf8(what: str, error: UnicodeDecodeError) -> RefusedError:
    byte = error.object[error.start]
    return RefusedError(400, f"the {what} is not UTF-8: byte {error.start + 1} is 0x{byte:02x}")


def known_fields(fields: Fields, known: Sequence[str]) -> Fields:
    """The fields that are read and say something; others of LibreTranslate's clients are passed by.

    Args:
      fields: the fields of a request.
      known: the names of those that are read.
    """
    return {
        name: value
        for name, value in fields.items()
        if name in known and (name == "q" or value not in (None, ""))
    }


def check_known(fields: Fields, known: Sequence[str]) -> None:
    """Refuse a field that nobody reads.

    Args:
      fields: the fields of a request.
      known: the names of those that are read.

    Raises:
      RefusedError: there is such a field.
    """
    for name in fields:
        if name not in known:
            raise RefusedError(400, f"unknown field {name!r:.80}; there are {', '.join(known)}")


def texts_of(fields: Fields, name: str, bounds: Bounds) -> tuple[list[str], bool]:
    """A text or a list of texts, and whether it is a list.

    Args:
      fields: the fields of a request.
      name: the name of the field.
      bounds: what is allowed.

    Raises:
      RefusedError: it is missing, something else, no text, or longer than allowed.
    """
    if name not in fields:
        raise RefusedError(400, f"{name} is missing: the text to translate, or a list of texts")
    value = fields[name]
    found = value if isinstance(value, list) else [value]
    if len(found) > bounds.max_lines:
        raise RefusedError(
            400,
            f"{name} has {len(found):,} texts, more than {bounds.max_lines:,}; send less at once",
        )
    for number, text in enumerate(found):
        called = f"{name}[{number}]" if isinstance(value, list) else name
        if not isinstance(text, str):
            raise RefusedError(400, f"{called} is {_kind(text)}; give a string")
        _check_text(called, text)
    if (total := sum(map(len, found))) > bounds.max_characters:
        raise RefusedError(
            400,
            f"{name} has {total:,} characters, more than {bounds.max_characters:,}; send less at "
            "once",
        )
    return found, isinstance(value, list)


def _check_text(called: str, text: str) -> None:
    for pattern, what in (
        (_CONTROL, "the control character"),
        (_SURROGATE, "half of a surrogate pair,"),
    ):
        if found := pattern.search(text):
            code = f"U+{ord(found[0]):04X}"
            raise RefusedError(
                400, f"{called} has {what} {code} at character {found.start() + 1}; remove it"
            )


def text_of(fields: Fields, name: str, default: str | None = None) -> str:
    """A short text.

    Args:
      fields: the fields of a request.
      name: the name of the field.
      default: what it is where it is missing; None refuses that.

    Raises:
      RefusedError: it is missing, or something else.
    """
    value = fields.get(name, default)
    if value is None:
        raise RefusedError(400, f"{name} is missing")
    if not isinstance(value, str):
        raise RefusedError(400, f"{name} is {_kind(value)}; give a string")
    _check_text(name, value)
    return value


def choice_of(fields: Fields, name: str, choices: Sequence[str]) -> str:
    """One of some words; the first of them where the field is missing.

    Args:
      fields: the fields of a request.
      name: the name of the field.
      choices: the words.

    Raises:
      RefusedError: it is something else.
    """
    value = text_of(fields, name, choices[0])
    if value not in choices:
        raise RefusedError(400, f"{name}={value!r:.80} is none of {', '.join(choices)}")
    return value


def number_of(fields: Fields, name: str, default: int, low: int, high: int) -> int:
    """A whole number; in a form, its digits.

    Args:
      fields: the fields of a request.
      name: the name of the field.
      default: what it is where it is missing.
      low: the least value allowed.
      high: the greatest.

    Raises:
      RefusedError: it is something else, too low or too high.
    """
    value = fields.get(name, default)
    if isinstance(value, str) and re.fullmatch("-?[0-9]{1,9}", value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise RefusedError(400, f"{name} is {_kind(value)}; give a whole number")
    if not low <= value <= high:
        raise RefusedError(400, f"{name}={value} is outside [{low}, {high}]")
    return value


def truth_of(fields: Fields, name: str) -> bool:
    """True or false; false where the field is missing.

    Args:
      fields: the fields of a request.
      name: the name of the field.

    Raises:
      RefusedError: it is something else.
    """
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise RefusedError(400, f"{name} is {_kind(value)}; give true or false")
    return value


def _kind(value: Any) -> str:
    """What JSON calls a value."""
    kinds: Mapping[type, str] = {
        type(None): "null",
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "an object",
    }
    return kinds[type(value)]
