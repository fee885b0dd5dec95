"""A test of cuDNN's fused attention on the attached devices."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

_QUERY_COUNTS = 1, 4
"""Numbers of queries to test: of greedy search and of beam search."""


@cache
def takes_few_queries(device: Any) -> bool:
    """Return whether cuDNN's fused attention supports few queries with many keys, as in decoding.

    The test takes less than a second per device. Devices that are not attached pass it.
    """
    if device not in jax.local_devices():
        return True
    key = jnp.zeros((2, 64, 1, 64), jnp.bfloat16, device=device)
    for num_queries in _QUERY_COUNTS:
        mask = jnp.ones((2, 1, num_queries, 64), bool, device=device)
        try:
            heads = jax.jit(jax.nn.dot_product_attention, static_argnames="implementation")(
                key[:, :num_queries], key, key, mask=mask, implementation="cudnn"
            )
            heads.block_until_ready()
        except (jax.errors.JaxRuntimeError, NotImplementedError, RuntimeError):
            return False
    return True
