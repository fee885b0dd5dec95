"""Track which processes have connected, as JAX's service does not report whom it waits for.

Process 0 listens on the port after the one of JAX's service, on the coordinator's address only. The
others connect and send their index. This only serves the error that names the missing processes: if
the port is unavailable, the error says less, and nothing else changes.
"""

import socket
import threading
from contextlib import suppress

from jax._src.distributed import global_state

_CALL_SECONDS = 1.0
_MOST_NAMED = 16


class RollCall:
    """The processes that have connected so far, while JAX waits for the others."""

    def __init__(self) -> None:
        """Start with no process present."""
        self._present: set[int] = set()
        self._is_answered = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="roll call")

    def __enter__(self) -> "RollCall":
        """Start to listen, or to connect, once JAX knows the address of process 0."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop listening or connecting."""
        self._over.set()
        self._thread.join(2 * _CALL_SECONDS)

    def result(self) -> str:
        """Return which processes are missing, as far as this process knows."""
        count, own = global_state.num_processes, global_state.process_id
        if not global_state.coordinator_address:
            return "the place of process 0 is not known yet"
        if own != 0:
            if self._is_answered:
                return "process 0 is there, and says who is missing"
            return f"process 0 does not answer process {own}"
        missing = sorted({*range(count)} - self._present - {0})
        if not self._is_answered:
            return f"process 0 waits for {count - 1} others"
        named = ", ".join(map(str, missing[:_MOST_NAMED])) or "none"
        more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
        return f"{len(missing)} of {count} processes are missing: {named}{more}"

    def _run(self) -> None:
        while not global_state.coordinator_address or global_state.client is None:
            if self._over.wait(0.1):
                return
        host, _, port = global_state.coordinator_address.rpartition(":")
        with suppress(OSError, OverflowError):
            if global_state.process_id == 0:
                self._listen(host.strip("[]"), int(port) + 1)
            else:
                self._call(host.strip("[]"), int(port) + 1)

    def _listen(self, host: str, port: int) -> None:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if str(address[0]).startswith("127.0.1."):  # Debian's address of a host for itself only
            return
        with socket.create_server((str(address[0]), port), family=family) as server:
            server.settimeout(_CALL_SECONDS)
            self._is_answered = True
            while not self._over.is_set():
                with suppress(OSError, ValueError):
                    caller, _ = server.accept()
                    with caller:
                        caller.settimeout(_CALL_SECONDS)
                        self._present.add(int(caller.recv(16)))

    def _call(self, host: str, port: int) -> None:
        while not self._over.wait(_CALL_SECONDS if not self._is_answered else 30 * _CALL_SECONDS):
            with (
                suppress(OSError),
                socket.create_connection((host, port), timeout=_CALL_SECONDS) as line,
            ):
                line.sendall(str(global_state.process_id).encode())
                self._is_answered = True
