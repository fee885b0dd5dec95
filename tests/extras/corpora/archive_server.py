"""Local servers: one that answers as a script says, and one of small archives, which can hang.

The archives have the layout of the public corpora.
"""

import gzip
import hashlib
import io
import re
import socket
import tarfile
import threading
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain

from t2t_jax.extras.corpora import prepare

BYTES = gzip.compress(bytes(range(256)) * 1000, 0, mtime=0)
"""A file whose content nobody reads."""
NOT_ALL = "416 Range", "Content-Length: 0"


def digest_of(content, kind="sha256"):
    return f"{kind}:{hashlib.new(kind, content).hexdigest()}"


def answer(status, *headers, body=b""):
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode("latin-1") + body


def sent(first, body, upto=None, tag="1"):
    """A right answer for what is asked, cut after some bytes."""
    begin = first or 0
    ranged = f"Content-Range: bytes {begin}-{len(body) - 1}/{len(body)}"
    headers = [f"Content-Length: {len(body) - begin}", f'ETag: "{tag}"']
    part = body[begin:] if upto is None else body[begin : begin + upto]
    status = "200 OK" if first is None else "206 Partial"
    return answer(status, *headers, *([] if first is None else [ranged]), body=part)


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        """Print nothing."""

    def do_GET(self):
        self.close_connection = True
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        self.server.asked.append((self.path, int(asked[1]) if asked else None))
        for part in self.server.parts(*self.server.asked[-1]):
            self.wfile.write(part)


class Scripted(ThreadingHTTPServer):
    """Answers with the bytes that a script gives for the number of a request and its first byte."""

    daemon_threads = True

    def __init__(self, script, host="127.0.0.1"):
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, 0), _Handler)
        self.script, self.asked, self.may_end = script, [], threading.Event()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def parts(self, path, first):
        yield self.script(len(self.asked), first)

    def handle_error(self, *_):
        """A client that was killed, or has heard enough, is no error."""


class Files(Scripted):
    """Files by name; the requests of some numbers get half of one, and then nothing."""

    def __init__(self, files):
        super().__init__(None)
        self.files, self.hangs, self.hung = files, (), threading.Semaphore(0)

    def parts(self, path, first):
        content = self.files.get(path.lstrip("/"))
        if content is None:
            yield answer("404 Not Found", "Content-Length: 0")
        elif first and first >= len(content):
            yield answer(*NOT_ALL)
        elif len(self.asked) in self.hangs:
            yield sent(first, content, upto=(len(content) - (first or 0)) // 2)
            self.hung.release()
            self.may_end.wait()
        else:
            yield sent(first, content)


@contextmanager
def serving(server=None):
    """A context with a server that runs: the one given, or one that has one file."""
    with server or Files({"file": BYTES}) as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running
        running.may_end.set()
        running.shutdown()


def sentences(text):
    """Five sentences of a side, with what is hard in its format."""
    name = f"{text.archive.name}:{text.member or text.language}"
    language = (
        text.language or name.removesuffix(".gz").removesuffix(".sgm").removesuffix(".xml")[-2:]
    )
    return [
        f"{stem} {language} {number}" for number, stem in enumerate(("A & B", "é", "<b>", "d", "e"))
    ]


def _content(text):
    """The bytes of a text in the format that its name says."""
    lines = sentences(text)
    if text.member.endswith((".sgm", ".xml")):
        segments = [f'<seg id="{n}">  {line} </seg>' for n, line in enumerate(lines)]
        return "\n".join(["<refset>", '<doc docid="x">', *segments, "</doc>"]).encode()
    if "train.tags" in text.member:
        lines = ["<url>http://example</url>", *(f" {line} " for line in lines if "<" not in line)]
        lines.insert(3, "  <title>a talk</title>")
    plain = "".join(f"{line}\n" for line in lines).encode()
    return gzip.compress(plain) if text.member.endswith(".gz") else plain


def _memory():
    """A translation memory as OPUS has it."""
    units = [
        f'<tu><tuv xml:lang="en"><seg>{english}</seg></tuv>\n'
        f'<tuv xml:lang="ro"><seg>{romanian}</seg></tuv></tu>'
        for english, romanian in [("one &amp; two", "unu  și doi"), ("three", "")]
    ]
    head = '<?xml version="1.0" encoding="UTF-8" ?>\n<tmx version="1.4"><header /><body>\n'
    return gzip.compress((head + "\n".join(units) + "</body></tmx>").encode())


def small(corpus):
    """The archives of a corpus with little in them, by name."""
    parts = chain(corpus.train, *corpus.evaluation.values())
    texts = [text for part in parts for text in part]
    files = {}
    for archive in prepare.archives_of(corpus):
        own = [text for text in texts if text.archive == archive]
        if own[0].language:
            files[archive.name] = _memory()
        elif not own[0].member:
            files[archive.name] = gzip.compress(_content(own[0]))
        else:
            buffer = io.BytesIO()
            with tarfile.open(
                fileobj=buffer, mode="w:gz" if archive.name.endswith("gz") else "w"
            ) as tar:
                for text in own[::-1]:  # in another order than they are asked for
                    info = tarfile.TarInfo(text.member)
                    info.size = len(_content(text))
                    tar.addfile(info, io.BytesIO(_content(text)))
            files[archive.name] = buffer.getvalue()
    return files


def resized(corpus, files):
    """The corpus with the sizes and sums of the small archives."""

    def text(text):
        content = files[text.archive.name]
        known = {"size": len(content), "digest": digest_of(content)}
        return replace(text, archive=replace(text.archive, **known))

    def parts(parts):
        return tuple(type(part)(*map(text, part)) for part in parts)

    evaluation = {split: parts(of) for split, of in corpus.evaluation.items()}
    return replace(corpus, train=parts(corpus.train), test_sets=evaluation)
