"""A local server of small archives in the layout of the public corpora, which can hang."""

import gzip
import hashlib
import io
import tarfile
import threading
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain

from t2t_jax.data.download import prepare

BYTES = bytes(range(256)) * 1000
"""A file without any structure."""


def digest_of(content, kind="sha256"):
    return f"{kind}:{hashlib.new(kind, content).hexdigest()}"


class Server(ThreadingHTTPServer):
    """Files by name; the requests of some numbers get half of one, and then nothing."""

    daemon_threads = True

    def __init__(self, files):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files, self.hangs, self.asked = files, (), []
        self.hung, self.may_end = threading.Semaphore(0), threading.Event()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_):
        """A client that was killed is no error."""


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_):
        """Print nothing."""

    def do_GET(self):
        name, wanted = self.path.lstrip("/"), self.headers.get("Range", "")
        self.server.asked.append((name, wanted))
        if name not in self.server.files:
            self.send_error(404)
            return
        content = self.server.files[name]
        first = int(wanted.removeprefix("bytes=").rstrip("-") or 0) if wanted else 0
        if first >= len(content) > 0:
            self.send_error(416)
            return
        body = content[first:]
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if len(self.server.asked) in self.server.hangs:
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self.server.hung.release()
            self.server.may_end.wait()
        else:
            self.wfile.write(body)


@contextmanager
def serving():
    """A context with a server that runs, and has one file."""
    with Server({"file": BYTES}) as running:
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
    texts = [text for part in parts for text in (part.source, part.target)]
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
        return tuple(
            replace(part, source=text(part.source), target=text(part.target)) for part in parts
        )

    evaluation = {split: parts(of) for split, of in corpus.evaluation.items()}
    return replace(corpus, train=parts(corpus.train), test_sets=evaluation)
