"""Who may use a server, and how often: API keys from a file, and a bound on requests a minute."""

import hmac
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from t2t_jax.errors import UserError
from t2t_jax.serving.settings import RefusedError

_MOST_CLIENTS = 10_000  # whose rates are known at a time


class Access:
    """Lets clients in by their API key, and holds them to a number of requests a minute."""

    def __init__(
        self,
        keys: Path | None = None,
        requests_per_minute: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the keys.

        Args:
          keys: a file with a key in each line; blank lines and those that begin with `#` are left
            out. None lets everybody in.
          requests_per_minute: the bound for each key, or without keys for each address; 0 is none.
            As many may come at once.
          clock: the time, in seconds.

        Raises:
          UserError: the file has no keys, or is no text.
        """
        self._keys = keys
        self._digests: list[str] = []
        self.read_keys()
        self._rate, self._clock = requests_per_minute, clock
        self._left: dict[str, tuple[float, float]] = {}  # requests that are left, and when it was

    def read_keys(self) -> None:
        """Read the file of keys, which may have changed.

        Raises:
          UserError: it has no keys, or is no text; those from before are kept.
        """
        if self._keys is not None:
            self._digests = _digests(self._keys)

    @property
    def needs_key(self) -> bool:
        """Whether there are keys."""
        return self._keys is not None

    def admit(self, key: str | None, address: str) -> None:
        """Let a request in.

        Args:
          key: the API key that it has; None is none.
          address: the address of its client.

        Raises:
          RefusedError: its key is missing or wrong (401, 403), or there were too many (429).
        """
        client = address
        if self.needs_key:
            if key is None:
                raise RefusedError(
                    401,
                    "an API key is needed: give it as api_key, or in the header Authorization: "
                    "Bearer KEY",
                    WWW_Authenticate="Bearer",
                )
            client = _digest(key)
            # All are compared, each in the same time, so that the time says nothing of the keys.
            found = [hmac.compare_digest(client, known) for known in self._digests]
            if not any(found):
                raise RefusedError(403, "the API key is wrong")
        if self._rate:
            self._count(client)

    def _count(self, client: str) -> None:
        now = self._clock()
        left, before = self._left.pop(client, (float(self._rate), now))
        left = min(float(self._rate), left + (now - before) * self._rate / 60)
        if left < 1:
            self._left[client] = left, now
            wait = (1 - left) * 60 / self._rate
            raise RefusedError(
                429,
                f"more than {self._rate} requests a minute; try again in {wait:.0f} s",
                Retry_After=str(max(1, round(wait))),
            )
        self._left[client] = left - 1, now
        while len(self._left) > _MOST_CLIENTS:  # the one that has asked least recently
            del self._left[next(iter(self._left))]


def _digests(keys: Path) -> list[str]:
    try:
        lines = [line.strip() for line in keys.read_text("utf-8").splitlines()]
    except UnicodeDecodeError as error:
        raise UserError(f"{keys} is not UTF-8; write one API key in each line") from error
    found = [_digest(line) for line in lines if line and not line.startswith("#")]
    if not found:
        raise UserError(f"{keys} has no API keys; write one in each line")
    return found


def _digest(key: str) -> str:
    return sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
