"""A trial of cuDNN's fused attention on the devices at hand."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

_QUERIES = 1, 4
"""Numbers of queries that are tried: those of a greedy search and of a beam."""


@cache
def takes_few_queries(device: Any) -> bool:
    """Return whether cuDNN's fused attention computes few queries and many keys, as in decoding.

    Each device is tried once, in less than a second. Devices that are only described are assumed
    to compute them.
    """
    if device not in jax.local_devices():
        return True
    key = jnp.zeros((2, 64, 1, 64), jnp.bfloat16, device=device)
    for number in _QUERIES:
        mask = jnp.ones((2, 1, number, 64), bool, device=device)
        try:
            found = jax.jit(jax.nn.dot_product_attention, static_argnames="implementation")(
                key[:, :number], key, key, mask=mask, implementation="cudnn"
            )
            found.block_until_ready()
        except (jax.errors.JaxRuntimeError, NotImplementedError, RuntimeError):
            return False
    return True
