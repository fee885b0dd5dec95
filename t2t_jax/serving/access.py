"""Access to a server: API keys from a file, and bounds on the requests of a client a minute."""

import hmac
import math
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from t2t_jax.errors import UserError
from t2t_jax.serving.settings import RefusedError

_MOST_CLIENTS = 10_000  # clients whose rates are known at a time
_WRONG_KEYS = 30
"""Most wrong keys a minute that an address may try; then other keys from it are refused."""


class Access:
    """An access control that checks clients' API keys and bounds their requests a minute."""

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
          requests_per_minute: the bound for each key, or without keys for each address; 0 is no
            bound. As many requests may come at once.
          clock: returns the time, in seconds.

        Raises:
          UserError: the file has no keys, or is no text.
        """
        self._keys = keys
        self._digests: list[str] = []
        self.read_keys()
        self._requests = _Rate(requests_per_minute, clock)
        self._guesses = _Rate(_WRONG_KEYS, clock)
        self._come: dict[tuple[str, str], None] = {}  # addresses with right keys they have given

    def read_keys(self) -> None:
        """Read the file of keys again; where it has none, refuse it and keep those from before."""
        if self._keys is not None:
            self._digests = _digests(self._keys)

    @property
    def needs_key(self) -> bool:
        """Return whether clients need an API key."""
        return self._keys is not None

    def check_guesses(self, address: str) -> None:
        """Refuse an address that has given too many wrong keys (429), before the body is read."""
        if self.needs_key and (wait := self._guesses.wait(address)):
            raise _too_many(_WRONG_KEYS, "wrong API keys", wait)

    def admit(self, key: str | None, address: str) -> str:
        """Let a request in, or refuse it, by its API key (None if it has none) and its address.

        An address that has given too many wrong keys is not told whether another key is right. Keys
        that it has used rightly before still work, as clients behind a proxy share an address.

        Returns:
          The client's identifier: the digest of its key, or without keys its address.

        Raises:
          RefusedError: the key is missing or wrong (401, 403), or requests are too many (429).
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
            # The key is compared with all keys in constant time, which reveals nothing of them.
            found = [hmac.compare_digest(client, known) for known in self._digests]
            self._check_key(client, address, is_right=any(found))
        if wait := self._requests.take(client):
            raise _too_many(self._requests.per_minute, "requests", wait)
        return client

    def _check_key(self, digest: str, address: str, *, is_right: bool) -> None:
        if not (is_right and (address, digest) in self._come):
            self.check_guesses(address)
        if not is_right:
            self._guesses.take(address)
            raise RefusedError(403, "the API key is wrong")
        self._come[address, digest] = self._come.pop((address, digest), None)
        while len(self._come) > _MOST_CLIENTS:
            del self._come[next(iter(self._come))]


class _Rate:
    """A bound on each client's events a minute (a token bucket); as many may come at once."""

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        """Set the number of events a minute; 0 is no bound."""
        self.per_minute, self._clock = per_minute, clock
        self._left: dict[str, tuple[float, float]] = {}  # what is left, and when that was so

    def wait(self, client: str) -> float:
        """Return the seconds until a client may have one more event; 0 is now."""
        if not self.per_minute:
            return 0.0
        return max(0.0, 1 - self._now(client)) * 60 / self.per_minute

    def take(self, client: str) -> float:
        """Count an event of a client and return 0, or return the seconds until it may come."""
        if not self.per_minute:
            return 0.0
        wait, left = self.wait(client), self._now(client)
        self._left.pop(client, None)
        self._left[client] = left - (not wait), self._clock()
        while len(self._left) > _MOST_CLIENTS:  # drop the client that has asked least recently
            del self._left[next(iter(self._left))]
        return wait

    def _now(self, client: str) -> float:
        most = float(self.per_minute)
        left, before = self._left.get(client, (most, 0.0))
        return min(most, left + (self._clock() - before) * most / 60)


def _too_many(number: int, what: str, wait: float) -> RefusedError:
    seconds = math.ceil(wait)  # less would be refused again
    message = f"more than {number} {what} a minute; try again in {seconds} s"
    return RefusedError(429, message, Retry_After=str(seconds))


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
