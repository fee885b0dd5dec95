"""Arrays for kernels, and what they are compared by: values, and derivatives of a weighted sum."""

import jax
import jax.numpy as jnp
import numpy as np


def normal(seed, *shape):
    return jnp.array(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def values_and_gradients(attend, arrays, cotangent):
    """Return the values, and the derivatives of their sum with given weights by each array."""

    def weighted(*arrays):
        heads = attend(*arrays)
        return (heads.astype(jnp.float32) * cotangent).sum(), heads

    differentiate = jax.value_and_grad(weighted, range(len(arrays)), has_aux=True)
    (_, heads), gradient = jax.jit(differentiate)(*arrays)
    return heads, *gradient


def heads_of(attend):
    """Return attention without the mask of queries: zeros where nothing may be attended to."""

    def weighted_values(*arrays, **options):
        heads, rows = attend(*arrays, **options)
        return heads if rows is None else jnp.where(rows[..., None], heads, 0)

    return weighted_values


def assert_close(found, expected, **tolerances):
    """Compare several arrays as float32."""
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(
            np.asarray(one, np.float32), np.asarray(other, np.float32), **tolerances
        )
