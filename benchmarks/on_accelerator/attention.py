"""Attention as XLA computes it from its products and softmax, beside fused kernels.

These are cuDNN's, and for short rows the one of `t2t_jax.kernels.short_rows`. Normal random
queries, keys and values of 8 heads of 64, a causal mask over sentences of different lengths with
padding after them, derivatives by a random cotangent; all in bfloat16. Errors are ||x - reference||
/ ||reference||, with float32 as the reference. Where there is no cuDNN, JAX's own implementation
takes its place, and the kernel for short rows is left out.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import measuring
from workload import jax

from on_accelerator.sizes import QUEUED, repeats
from t2t_jax.config import ParallelConfig
from t2t_jax.functional.attention import scaled_dot_product_attention
from t2t_jax.kernels import short_rows
from t2t_jax.kernels.attention import cudnn_form, fused_attention
from t2t_jax.kernels.choice import kernels_of
from t2t_jax.kernels.gpu import GPU
from t2t_jax.parallel.axes import on_mesh
from t2t_jax.parallel.mesh import make_mesh

jnp = jax.numpy


def measure(tiny: bool) -> Iterator[dict[str, Any]]:
    """Measure this part, and yield its rows."""
    mesh = make_mesh(ParallelConfig())
    has_cudnn = cudnn_form in kernels_of(mesh, "bfloat16").attention.forms

    def fused(*arrays: Any) -> Any:
        heads, rows = fused_attention(*arrays, implementation="cudnn" if has_cudnn else "xla")
        return heads if rows is None else jnp.where(rows[..., None], heads, 0)

    def short(*arrays: Any) -> Any:
        with on_mesh(mesh):
            return short_rows.short_attention(*arrays)

    name = "cuDNN's" if has_cudnn else "JAX's own, as there is no cuDNN"
    shapes = [(784, 32), (392, 64), (196, 128), (98, 256), (12, 2048)]
    for rows, length in [(2, 16)] if tiny else shapes:
        arrays, mask, cotangent = _random(rows, length)
        all_of_them = {"products and softmax": lambda *x: GPU.attention(*x)[0], name: fused}
        with on_mesh(mesh):
            if has_cudnn and short_rows.fits(*arrays, mask):
                all_of_them["for short rows"] = short
        calls = {of: _with_gradients(each, mask, cotangent) for of, each in all_of_them.items()}
        exact = _with_gradients(scaled_dot_product_attention, mask, cotangent)(
            *(x.astype(jnp.float32) for x in arrays)
        )
        waiting = {of: partial(_wait, call, arrays) for of, call in calls.items()}
        seconds = measuring.in_turns(waiting, repeats(tiny))
        for of, call in calls.items():
            forward, *backward = (
                _error(x, right) for x, right in zip(call(*arrays), exact, strict=True)
            )
            yield {
                "table": "attention, forward and backward",
                "batch": f"{rows}x{length}",
                "kernel": of,
                "error": forward,
                "largest error of a gradient": max(backward),
                "milliseconds": 1e3 * min(seconds[of]) / QUEUED,
            }


def _random(rows: int, length: int) -> tuple[list[jax.Array], jax.Array, jax.Array]:
    """Return random queries, keys and values, a mask, and a cotangent."""
    shape = rows, length, 8, 64
    keys = jax.random.split(jax.random.key(0), 5)
    *arrays, cotangent = (jax.random.normal(key, shape, jnp.bfloat16) for key in keys[:4])
    lengths = jax.random.randint(keys[4], (rows, 1, 1, 1), length // 2, length + 1)
    place = jnp.arange(length)
    shown = (place <= place[:, None]) & (place[:, None] < lengths)
    return arrays, shown, cotangent


def _with_gradients(
    function: Callable[..., jax.Array], mask: jax.Array, cotangent: jax.Array
) -> Callable[..., tuple[jax.Array, ...]]:
    def call(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        heads, pull = jax.vjp(lambda *x: function(*x, mask), *arrays)
        return heads, *pull(cotangent.astype(heads.dtype))

    return jax.jit(call)


def _wait(call: Callable[..., Any], arrays: list[jax.Array]) -> None:
    for _ in range(QUEUED):
        results = call(*arrays)
    jax.block_until_ready(results)


def _error(found: jax.Array, right: jax.Array) -> float:
    difference = found.astype(jnp.float32) - right
    return float(jnp.linalg.norm(difference.ravel()) / jnp.linalg.norm(right.ravel()))
