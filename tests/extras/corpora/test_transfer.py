"""Servers that lie: each transfer ends after few requests, with the right file or one line."""

import gzip
import os
import random
import re

import pytest

from t2t_jax.errors import UserError
from t2t_jax.extras.corpora import transfer
from t2t_jax.extras.corpora.catalogue import Archive
from t2t_jax.extras.corpora.transfer import fetch_archive
from tests.extras.corpora.archive_server import NOT_ALL, Scripted, answer, digest_of, serving
from tests.extras.corpora.archive_server import sent as right

BODY, OTHER = (gzip.compress(random.Random(n).randbytes(10_217), 0, mtime=0) for n in range(2))
_MOST_REQUESTS = 60
"""Far more than any of these servers is asked, but the one that sends a byte at a time."""


def sent(first, body=BODY, **options):
    return right(first, body, **options)


def chunked(*chunks, end=b"0\r\n\r\n"):
    framed = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return answer("200 OK", "Transfer-Encoding: chunked", body=framed + end)


def cut_once(then):
    """The first answer is cut after 1,000 bytes; what follows is up to the case."""
    return lambda number, first: sent(None, upto=1000) if number == 1 else then(first)


def cut_unless_asked_for_the_rest(then):
    return lambda _, first: sent(None, upto=1000) if first is None else then


def in_turn(*answers):
    """The answers to requests one after the other, each for what is asked."""
    return lambda number, first: answers[number - 1](first)


def cut(first):
    return sent(first, upto=1000)


def failed(status):
    return lambda _: answer(status, "Content-Length: 0")


def too_long():
    return answer("200 OK", f"Content-Length: {len(BODY) + 5000}", body=BODY)


def moved(location):
    return lambda *_: answer("302 Found", f"Location: {location}", "Content-Length: 0")


RIGHT = {
    "the whole file": lambda _, first: sent(first),
    "the rest each time": in_turn(*[cut] * 5, sent),  # each brings bytes
    "too busy": in_turn(failed("503 Busy"), failed("429 Too many"), sent),
    "failures between": in_turn(cut, failed("500 No"), cut, *[failed("500 No")] * 2, sent),
    "a lie about the length": lambda number, first: (
        too_long() if number == 1 else answer(*NOT_ALL) if first == len(BODY) else sent(first)
    ),
    "an earlier range": in_turn(cut, lambda first: sent(first - 500), sent),
    "a range for the whole file": lambda _, first: sent(first or 0),
    "the whole file for a range": cut_once(lambda _: sent(None)),
    "a range without a total": cut_once(
        lambda first: answer(
            "206 P", f"Content-Range: bytes {first}-10239/*", 'ETag: "1"', body=BODY[first:]
        )
    ),
    "chunks": lambda *_: chunked(BODY[:5000], BODY[5000:]),
    "chunks that are cut": lambda number, _: chunked(BODY, end=b"" if number < 3 else b"0\r\n\r\n"),
    "a range that cannot be, once": cut_once(
        lambda first: sent(None) if first is None else answer(*NOT_ALL)
    ),
    "another range, once": cut_once(lambda first: sent(None) if first is None else sent(first + 9)),
    "a move to letters beyond ASCII": lambda number, first: (
        moved("/b\xfccher")() if number == 1 else sent(first)
    ),
    "no length": lambda *_: answer("200 OK", body=BODY),
    "an encoding": lambda *_: answer("200 OK", "Content-Encoding: gzip", body=BODY),
    "a length of 5,000 digits": lambda *_: answer(
        "200 OK", f"Content-Length: {'9' * 5000}", body=BODY
    ),
}
REFUSED = {
    "cut, and then a wrong range": (
        cut_unless_asked_for_the_rest(sent(99_999)),
        "sent other bytes than requested|ended after 1,000 of",
    ),
    "cut, and then nothing follows": (
        cut_unless_asked_for_the_rest(answer(*NOT_ALL)),
        "has a shorter file|ended after 1,000 of",
    ),
    "cut again and again, without ranges": (lambda *_: sent(None, upto=1000), "1,000 of 10,240"),
    "a byte at a time": (lambda _, first: sent(first, upto=1), "of 10,240 bytes"),
    "nothing satisfies": (lambda *_: answer(*NOT_ALL), "has a shorter file"),
    "an empty file": (lambda *_: answer("200 OK", "Content-Length: 0"), "is empty|0 of 10,240"),
    "no content": (lambda *_: answer("204 None"), "is empty|0 of 10,240"),
    "a broken chunk": (lambda *_: answer("200 OK", "Transfer-Encoding: chunked", body=b"zz"), ""),
    "a move in a circle": (moved("/file"), "302 .*infinite loop"),
    "a move to nowhere": (lambda *_: answer("302 Found", "Content-Length: 0"), "answers 302"),
    "a move to a long name": (moved(f"http://{'a' * 70}.invalid/"), "redirect, is invalid"),
    "a move to a file": (moved("file:///etc/passwd"), "is not allowed"),
    "colours in the reason": (lambda *_: answer("404 \x1b[31mred\x07"), r"answers 404 \[31mred;"),
    "no HTTP": (lambda *_: b"hello\r\n", "cannot be fetched: hello"),
    "nothing at all": (lambda *_: b"", "closed connection"),
    "a thousand headers": (lambda *_: answer("200 OK", *["X: 1"] * 1000), "than 100 headers"),
}
KNOWN = {
    "known": {"size": len(BODY), "digest": digest_of(BODY)},
    "sum known": {"digest": digest_of(BODY)},
    "unknown": {},
}


@pytest.fixture(autouse=True)
def few_requests(monkeypatch):
    monkeypatch.setattr(transfer, "_MOST_REQUESTS", _MOST_REQUESTS)
    monkeypatch.setattr(transfer, "_PATIENCE", (0.0, 0.0))


def _fetch(server, directory, known, **options):
    archive = Archive(f"http://127.0.0.1:{server.server_port}/file", **KNOWN[known])
    return fetch_archive(archive, directory, **options)


def _refused(server, directory, known):
    with pytest.raises(UserError) as refusal:
        _fetch(server, directory, known)
    assert str(refusal.value).isprintable()
    assert not (directory / "file").exists()
    return str(refusal.value)


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("case", RIGHT)
def test_a_file_is_right_whatever_a_server_answers(tmp_path, case, known):
    seen = []
    with serving(Scripted(RIGHT[case])) as server:
        assert _fetch(server, tmp_path, known, progress=seen.append).read_bytes() == BODY
        assert len(server.asked) < 8
        assert seen[-1] == len(BODY)
        assert [path.name for path in tmp_path.iterdir()] == ["file"]
        num_requests = len(server.asked)
        assert _fetch(server, tmp_path, known).read_bytes() == BODY
        assert len(server.asked) == num_requests


def test_what_has_arrived_is_kept_and_the_next_call_asks_for_the_rest(tmp_path):
    script = in_turn(cut, *[failed("500 No")] * 3, lambda first: sent(first) if first else b"")
    with serving(Scripted(script)) as server:
        said = _refused(server, tmp_path, "sum known")
        assert re.search("answers 500 .*; 1,000 bytes are kept: run the same", said)
        assert (tmp_path / "file.part").read_bytes() == BODY[:1000]
        assert _fetch(server, tmp_path, "sum known").read_bytes() == BODY


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("case", REFUSED)
def test_a_server_that_lies_is_given_up_in_one_line(tmp_path, case, known):
    script, message = REFUSED[case]
    with serving(Scripted(script)) as server:
        assert re.search(message, _refused(server, tmp_path, known))
        assert len(server.asked) <= (_MOST_REQUESTS if case == "a byte at a time" else 12)


@pytest.mark.parametrize("known", ["sum known", "unknown"])
def test_parts_of_two_files_are_not_joined(tmp_path, known):
    """Neither the published sum nor the checksum at the end of a gzip file would be right."""
    with serving(Scripted(lambda _, first: sent(first))) as server:
        (tmp_path / "file.part").write_bytes(OTHER[:5000])
        said = _refused(server, tmp_path, known)
        assert re.search("is not the published file|is damaged .*; it was removed: run the", said)
        assert _fetch(server, tmp_path, known).read_bytes() == BODY
        assert [first for _, first in server.asked] == [5000, None]


def test_a_mirror_may_have_an_ipv6_address_and_letters_beyond_ascii(tmp_path):
    try:
        with serving(Scripted(lambda _, first: sent(first), host="::1")) as server:
            mirror = f"http://[::1]:{server.server_port}/Bücher und mehr/100%25/"
            assert fetch_archive(Archive("http://x/file"), tmp_path, mirror).read_bytes() == BODY
            assert server.asked == [("/B%C3%BCcher%20und%20mehr/100%25/file", None)]
    except OSError as error:
        pytest.skip(f"this machine has no IPv6: {error}")
    there = tmp_path / "Übersetzung"
    there.mkdir()
    (there / "other").write_bytes(BODY)
    assert (
        fetch_archive(Archive("http://x/other"), tmp_path, f"file://{there}").read_bytes() == BODY
    )


@pytest.mark.parametrize(
    ("mirror", "message"),
    [
        ("http://[::1/x", r"--mirror=http://\[::1/x is not a URL \(Invalid IPv6 URL\); check it"),
        ("http://[zz]/x", "is not a URL .*zz"),
        ("http://127.0.0.1:port/x", "redirect, is invalid .nonnumeric port"),
        ("http://a..b/x", "redirect, is invalid"),
        ("mailto:x", "is not a URL; begin it with https://"),
    ],
)
def test_a_mirror_that_is_no_address_is_refused(tmp_path, mirror, message):
    with pytest.raises(UserError, match=message) as refusal:
        fetch_archive(Archive("http://x/file"), tmp_path, mirror)
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize("name", ["file", "file.part"])
@pytest.mark.parametrize("kind", ["pipe", "directory"])
def test_what_is_no_file_in_place_of_an_archive_is_refused(tmp_path, name, kind):
    make = os.mkfifo if kind == "pipe" else os.mkdir
    make(tmp_path / name)
    with pytest.raises(UserError, match=f"{name} cannot be read: it is a directory, a pipe"):
        fetch_archive(Archive("http://x/file"), tmp_path)
