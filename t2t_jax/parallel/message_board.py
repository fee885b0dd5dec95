"""Messages between processes, in the store of JAX's coordination service.

Process 0 keeps the store. Unlike an exchange between devices, it answers while another process is
dead or stuck. A single process has no store: its messages are lost, and it reads none.
"""

from jax._src.distributed import global_state  # it has no public name


def leave(key: str, text: str) -> None:
    """Write a text under a key, and replace the previous one.

    Raises:
      JaxRuntimeError: process 0 is gone.
    """
    if global_state.client is not None:
        global_state.client.key_value_set(f"t2t_jax/{key}", text, allow_overwrite=True)


def texts_under(key: str) -> dict[int, str]:
    """Return the texts under keys of the form `KEY/NUMBER`, by number.

    Raises:
      JaxRuntimeError: process 0 is gone.
    """
    if global_state.client is None:
        return {}
    found = global_state.client.key_value_dir_get(f"t2t_jax/{key}/")
    return {int(name.rpartition("/")[2]): text for name, text in found}
