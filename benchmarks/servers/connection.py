"""A client of HTTP/1.1 that costs little, as it shares the processor with the measured server."""

import asyncio
import json
from typing import Any, NamedTuple
from urllib.parse import urlsplit

CLOSED = (ConnectionError, asyncio.IncompleteReadError, TimeoutError)
"""The errors raised where a server closes a connection, or does not answer."""


class Answer(NamedTuple):
    """The answer to a request."""

    status: int
    headers: dict[str, str]
    """The values of the headers, by their names in lower case."""
    body: bytes

    @property
    def is_refusal(self) -> bool:
        """Return whether the server refuses, by load or before its end, and says when to retry."""
        return self.status in (429, 503) and "retry-after" in self.headers

    @property
    def translation(self) -> str:
        """Return the best translation in an answer of `/v1/translations` on one text."""
        found: str = json.loads(self.body)["translations"][0]["hypotheses"][0]["text"]
        return found


class Connection:
    """A connection that is kept for one request after another."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Keep the streams; see `connect`."""
        self.reader, self.writer = reader, writer

    @property
    def is_open(self) -> bool:
        """Return whether neither side is known to have closed the connection."""
        return not (self.reader.at_eof() or self.writer.is_closing())

    async def ask(self, request: bytes) -> Answer:
        """Send a request, and wait for its answer.

        Args:
          request: all bytes of the request.

        Raises:
          ConnectionError, IncompleteReadError: the server has closed the connection.
        """
        self.writer.write(request)
        await self.writer.drain()
        return await self.answer()

    async def answer(self) -> Answer:
        """Wait for the answer to a request that was sent.

        Raises:
          ConnectionError, IncompleteReadError: the server has closed the connection.
        """
        answer = await read_answer(self.reader)
        if answer.headers.get("connection") == "close":
            self.writer.close()
        return answer

    def close(self) -> None:
        """Close the connection."""
        self.writer.close()


class Idle:
    """Connections to one server that are kept, so that one request after another uses them."""

    def __init__(self, address: str) -> None:
        """Keep no connections yet.

        Args:
          address: the address of the server.
        """
        self._address, self._kept = address, list[Connection]()

    async def ask(self, request: bytes) -> Answer:
        """Send a request on a connection that is kept, or a new one, and wait for its answer.

        Args:
          request: all bytes of the request.

        Raises:
          ConnectionError, IncompleteReadError: the server has closed the connection.
        """
        while self._kept:
            connection = self._kept.pop()
            if connection.is_open:
                break
        else:
            connection = await connect(self._address)
        try:
            answer = await connection.ask(request)
        except BaseException:
            connection.close()
            raise
        if connection.is_open:
            self._kept.append(connection)
        return answer

    def close(self) -> None:
        """Close all connections that are kept."""
        for connection in self._kept:
            connection.close()


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """Read an answer.

    Args:
      reader: where it comes.

    Raises:
      ConnectionError, IncompleteReadError: the server has closed the connection.
    """
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    parted = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in parted}
    if headers.get("transfer-encoding") == "chunked":
        body = await _chunks(reader)
    else:
        body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Answer(int(first.split()[1]), headers, body)


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return bytes(body)


async def connect(address: str) -> Connection:
    """Open a connection.

    Args:
      address: the address of a server, as http://127.0.0.1:5000.

    Raises:
      ConnectionError: nobody listens there.
    """
    parts = urlsplit(address)
    return Connection(*await asyncio.open_connection(parts.hostname, parts.port))


def posted(path: str, fields: dict[str, Any]) -> bytes:
    """Return the bytes of a request that posts JSON.

    Args:
      path: the path, as /translate.
      fields: the fields of the JSON object.
    """
    body = json.dumps(fields).encode()
    return head(path, len(body)) + body


def head(path: str, length: int, kind: str = "application/json") -> bytes:
    """Return the bytes of a POST request ahead of its body.

    Args:
      path: the path.
      length: the number of bytes of the body.
      kind: the type of the body's content.
    """
    lines = f"POST {path} HTTP/1.1", "host: 127.0.0.1", f"content-type: {kind}"
    return "\r\n".join([*lines, f"content-length: {length}", "", ""]).encode()


def of_line(line: str, pair: tuple[str, str], **fields: Any) -> bytes:
    """Return the bytes of a request for the translation of a line, as by offline translation.

    Args:
      line: the line.
      pair: the codes of source and target language.
      fields: more fields of the request.
    """
    source, target = pair
    asked = {"q": line, "source": source, "target": target, "split": "lines"}
    return posted("/v1/translations", asked | fields)
