"""The bounds of a server on its clients' requests, and the refusals of requests."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Split: TypeAlias = Literal["sentences", "lines"]
"""The unit of translation: each sentence of a line, or each whole line."""


@dataclass(frozen=True)
class Bounds:
    """The bounds of a server on one request, and on all of them together."""

    max_body_bytes: int = 2**20
    """Most bytes of a request's body; a larger body is refused with 413."""
    max_characters: int = 50_000
    """Most characters of all texts of a request; more are refused with 400."""
    max_lines: int = 2000
    """Most lines, or sentences, of all texts of a request; more are refused with 400."""
    max_waiting: int = 4096
    """Most sentences that may wait for the search; a request without room is refused with 429, and
    is told when to try again."""
    max_connections: int = 500
    """Most connections that may be open; requests over further ones are refused with 503."""
    timeout: float = 60.0
    """Most seconds that a request may take; then it is refused with 504, and its rows are freed."""
    requests_per_minute: int = 0
    """Most requests a minute of each API key, or without keys of each address; more are refused
    with 429. 0 is no bound."""


class RefusedError(Exception):
    """The refusal of a request.

    Attributes:
      status: the status of the answer.
      headers: headers of the answer.
    """

    def __init__(self, status: int, message: str, **headers: str) -> None:
        """Make a refusal.

        The client sees the message: what was wrong, and the way out. Names of headers have `_` for
        `-`.
        """
        super().__init__(message)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
