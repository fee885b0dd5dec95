"""Requests that no server can answer: each has to be refused with a status from 400 to 499."""

import json
from collections.abc import Mapping

from servers.connection import head, posted

_PATH = "/v1/translations"
_GOOD = {"q": "a", "target": "de"}


def _with_body(body: bytes, kind: str = "application/json") -> bytes:
    return head(_PATH, len(body), kind) + body


BAD_REQUESTS: Mapping[str, bytes] = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
    "a header that is too long": b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"x" * 200_000 + b"\r\n\r\n",
    "a length below zero": b"POST /translate HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
    "no such path": b"GET /nowhere HTTP/1.1\r\nhost: a\r\n\r\n",
    "no such method": b"GET /translate HTTP/1.1\r\nhost: a\r\n\r\n",
    "a body that is too large": head(_PATH, 2**30),
    "no content type that is known": _with_body(b"a", "text/csv"),
    "no JSON": _with_body(b'{"q": '),
    "no object": _with_body(b"[]"),
    "nested too deeply": _with_body(b"[" * 100_000),
    "no UTF-8": _with_body(b'{"q": "\xff"}'),
    "no text": posted(_PATH, {"target": "de"}),
    "no language": posted(_PATH, {"q": "a"}),
    "a number": posted(_PATH, _GOOD | {"q": 1}),
    "a control character": posted(_PATH, _GOOD | {"q": "a\x00"}),
    "half of a surrogate pair": posted(_PATH, _GOOD | {"q": "a\ud800"}),
    "too many characters": posted(_PATH, _GOOD | {"q": "a" * 100_000}),
    "too many lines": posted(_PATH, _GOOD | {"q": "a\n" * 4_000, "split": "lines"}),
    "an unknown field": posted(_PATH, _GOOD | {"p": "a"}),
    "an unknown language": posted(_PATH, _GOOD | {"target": "xx"}),
    "no translation at all": posted(_PATH, _GOOD | {"num_best": 0}),
    "a beam that there is none of": posted(_PATH, _GOOD | {"beam_size": 999}),
    "a stream of several": posted(_PATH, _GOOD | {"num_best": 2, "stream": True}),
    "a malformed form": _with_body(b"q=%ff&target=de", "application/x-www-form-urlencoded"),
    "a malformed form in parts": _with_body(b"--b\r\n", "multipart/form-data; boundary=c"),
    "a field twice": _with_body(json.dumps(_GOOD)[:-1].encode() + b', "q": "b"}'),
}
"""The bytes of each bad request, by the name of its fault."""
