"""Translated files that wait to be fetched."""

import secrets
import time
from dataclasses import dataclass, field


@dataclass
class Downloads:
    """Files in memory, each under a name that nobody can guess, for ten minutes."""

    most_bytes: int = 64 << 20
    """Most bytes of all files together; the oldest make room for a new one."""
    seconds: float = 600.0
    """The time for which a file is kept."""
    _files: dict[str, tuple[float, bytes]] = field(default_factory=dict, init=False)

    def put(self, content: bytes, suffix: str) -> str:
        """Keep a file, and return its name."""
        self._forget(time.monotonic() - self.seconds, self.most_bytes - len(content))
        name = f"{secrets.token_urlsafe(16)}{suffix}"
        self._files[name] = time.monotonic(), content
        return name

    def get(self, name: str) -> bytes | None:
        """Return the content of a file, or None if there is none of this name any more."""
        self._forget(time.monotonic() - self.seconds, self.most_bytes)
        found = self._files.get(name)
        return None if found is None else found[1]

    def _forget(self, oldest: float, room: int) -> None:
        """Forget what came before a time, and of the rest the oldest, until the others fit."""
        kept = sum(len(content) for _, content in self._files.values())
        for name, (came, content) in [*self._files.items()]:
            if came >= oldest and kept <= room:
                break
            del self._files[name]
            kept -= len(content)
