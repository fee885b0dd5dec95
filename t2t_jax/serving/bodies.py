"""The bodies of requests: JSON and forms, read within bounds, each field checked for its type."""

import asyncio
import io
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
_FORMS = "application/x-www-form-urlencoded", "multipart/form-data"

Fields = dict[str, Any]
"""The fields of a request, by name; of a form, one that is repeated is a list of strings."""


async def read_fields(request: Request, bounds: Bounds) -> Fields:
    """The fields of a request's body.

    Args:
      request: the request.
      bounds: what is allowed.

    Raises:
      RefusedError: it is too large (413), of another type (415), too slow (408) or malformed
        (400).
    """
    body = await _body(request, bounds)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        return _json(body)
    if kind in _FORMS:
        return _form(body, kind, request.headers["content-type"])
    raise RefusedError(
        415, f"content type {kind!r}: send application/json, or a form ({' or '.join(_FORMS)})"
    )


async def _body(request: Request, bounds: Bounds) -> bytes:
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
        raise _not_utf8(error) from None
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
        if kind == "multipart/form-data":
            pairs = _multipart(body, content_type)
        else:
            pairs = parse_qsl(
                body.decode("ascii"),
                keep_blank_values=True,
                errors="strict",
                max_num_fields=_MOST_FIELDS,
            )
    except UnicodeDecodeError as error:
        raise _not_utf8(error) from None
    except (ValueError, FormParserError) as error:
        raise RefusedError(400, f"the form is malformed: {error}") from None
    fields: Fields = {}
    for name, value in pairs:
        if name in fields:
            before = fields[name]
            fields[name] = [*(before if isinstance(before, list) else [before]), value]
        else:
            fields[name] = value
    return fields


def _multipart(body: bytes, content_type: str) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []

    def on_field(field: Any) -> None:
        pairs.append((field.field_name.decode("utf-8"), (field.value or b"").decode("utf-8")))

    def on_file(file: Any) -> None:
        raise ValueError("a file is sent; send its text as the field q")

    headers = {"Content-Type": content_type.encode("latin-1")}
    python_multipart.parse_form(headers, io.BytesIO(body), on_field, on_file)
    return pairs


def _not_utf8(error: UnicodeDecodeError) -> RefusedError:
    return RefusedError(
        400, f"the body is not UTF-8: byte {error.start + 1} is 0x{error.object[error.start]:02x}"
    )


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
    given = fields[name]
    found = given if isinstance(given, list) else [given]
    for number, text in enumerate(found):
        called = f"{name}[{number}]" if isinstance(given, list) else name
        if not isinstance(text, str):
            raise RefusedError(400, f"{called} is {_kind(text)}; give a string")
        _check_text(called, text)
    if (total := sum(map(len, found))) > bounds.max_characters:
        raise RefusedError(
            400,
            f"{name} has {total:,} characters, more than {bounds.max_characters:,}; send less at "
            "once",
        )
    return found, isinstance(given, list)


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
