"""What a server allows its clients, and the refusals of what it does not allow."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Split: TypeAlias = Literal["sentences", "lines"]
"""What is translated as one: each sentence of a line, or each line as it is."""


@dataclass(frozen=True)
class Bounds:
    """What a server allows one request, and all of them together."""

    max_body_bytes: int = 2**20
    """Bytes of a request's body; a larger one is refused with 413."""
    max_characters: int = 50_000
    """Characters of all texts of a request; more are refused with 400."""
    max_lines: int = 2000
    """Lines, or sentences, of all texts of a request; more are refused with 400."""
    max_waiting: int = 4096
    """Sentences that may wait for the search; a request for which there is no room is refused with
    429, and is told when to try again."""
    max_connections: int = 500
    """Connections that may be open; what is asked over more is refused with 503."""
    timeout: float = 60.0
    """Seconds that a request may take; then it is given up, with 504, and its rows are free."""
    requests_per_minute: int = 0
    """Requests of each API key, or without keys of each address; more are refused with 429. 0 is no
    bound."""


class RefusedError(Exception):
    """A request that is not answered as it was meant to be.

    Attributes:
      status: the status of the answer.
      headers: headers of the answer.
    """

    def __init__(self, status: int, message: str, **headers: str) -> None:
        """Make one.

        Args:
          status: the status of the answer.
          message: what was wrong, and the way out: the client sees it.
          headers: headers of the answer, with `_` for `-`.
        """
        super().__init__(message)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
