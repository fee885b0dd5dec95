"""Messages between processes, in the key-value store of JAX's coordination service.

Process 0 serves the store. The store answers even while another process is dead or stuck, unlike a
device collective. Without a store (a single process, or a lost process 0), writes do nothing and
reads return no messages.
"""

from contextlib import suppress

from jax._src.distributed import global_state  # it has no public name
from jax.errors import JaxRuntimeError


def leave(key: str, text: str) -> None:
    """Write a text under a key of the store that all processes read; replace older text."""
    if global_state.client is not None:
        with suppress(JaxRuntimeError):
            global_state.client.key_value_set(f"t2t_jax/{key}", text, allow_overwrite=True)


def wait_for_all(key: str, milliseconds: int) -> None:
    """Wait until all processes have called this function with the same key."""
    if global_state.client is not None:
        global_state.client.wait_at_barrier(f"t2t_jax/{key}", milliseconds)


def texts_under(key: str) -> dict[int, str]:
    """Return the messages with keys `KEY/NUMBER`, by number; {} without a reachable store."""
    if global_state.client is not None:
        with suppress(JaxRuntimeError):
            entries = global_state.client.key_value_dir_get(f"t2t_jax/{key}/")
            return {int(name.rpartition("/")[2]): text for name, text in entries}
    return {}
