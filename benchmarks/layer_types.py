"""The layer types of the paper's Table 1, each as a function of its parameters and an input.

The paper compares layers that map a row of n vectors of width d to another such row (section 4).
Its complexities of attention leave out the four projections, of n d^2 each. So attention is here
with projections, and without, where queries, keys and values are the input itself cut into heads.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from t2t_jax.config import ModelConfig
from t2t_jax.functional.attention import merge_heads, split_heads
from t2t_jax.functional.masks import attention_mask
from t2t_jax.kernels.cpu import CPU
from t2t_jax.kernels.reference import Kernels
from t2t_jax.modules.attention import Context, Mask, MultiHeadAttention

Layer: TypeAlias = Callable[[Any, jax.Array], jax.Array]
"""A function of parameters and an input `[b, n, d]`, which returns an array of the same shape."""


class LayerType(NamedTuple):
    """A layer type: the paper's facts on the type, and a layer to measure.

    Attributes:
      name: the name of the layer, with the sizes that it depends on.
      complexity: the paper's complexity per layer, of n positions and width d.
      exponent: the exponent of n in the complexity.
      sequential: the paper's number of sequential operations.
      path: the paper's maximum path length between two positions.
      path_length: a function from the number of positions to the path length here: the layers, or
        the steps of a recurrent layer, between the first position and the last.
      params: parameters of the layer.
      apply: the function of the layer.
      formula: the same function as XLA computes it, where `apply` may call a fused kernel.
    """

    name: str
    complexity: str
    exponent: int
    sequential: str
    path: str
    path_length: Callable[[int], int]
    params: Any
    apply: Layer
    formula: Layer


def layer_types(
    model: ModelConfig, kernels: Kernels, window: int, kernel_width: int
) -> list[LayerType]:
    """Return the layer types of Table 1, and the separable convolution of section 4.

    Args:
      model: the config with the width, heads and dtype.
      kernels: the functions that compute attention and matmuls.
      window: places in each direction that restricted self-attention attends to, the position's own
        included; the neighbourhood has size r = 2 window - 1.
      kernel_width: the width of a convolution in positions, an odd number.
    """
    return [*_attention_types(model, kernels, window), *_convolution_types(model, kernel_width)]


def _attention_types(model: ModelConfig, kernels: Kernels, window: int) -> Iterator[LayerType]:
    everything = ("O(n^2 d)", 2, "O(1)", "O(1)", lambda n: 1)
    # A position attends to those less than `window` places away.
    restricted = ("O(r n d)", 1, "O(1)", "O(n/r)", partial(_hops, window - 1))
    module = MultiHeadAttention(model.attention)
    example = jnp.zeros((1, 1, model.d_model), model.dtype)
    params = _parameters(module, example, _context(example, kernels, None))
    computed_by = kernels, CPU
    for name, facts, bound in [
        ("self-attention", everything, None),
        (f"restricted self-attention, r = {2 * window - 1}", restricted, window),
    ]:
        alone = [partial(_attention_alone, model.num_heads, k, bound) for k in computed_by]
        whole = [partial(_attention_layer, module, k, bound) for k in computed_by]
        yield LayerType(name, *facts, {}, *alone)
        yield LayerType(f"{name}, with projections", *facts, params, *whole)


def _convolution_types(model: ModelConfig, kernel_width: int) -> Iterator[LayerType]:
    """Yield the recurrent layer, which is an LSTM, and the two convolutions."""
    width, dtype = model.d_model, model.dtype
    # A cell keeps its state in the dtype of its parameters.
    lstm = nn.RNN(nn.OptimizedLSTMCell(width, dtype=dtype, param_dtype=dtype))
    convolution = partial(nn.Conv, width, (kernel_width,), dtype=dtype)
    depthwise = convolution(feature_group_count=width)
    separable = nn.Sequential([depthwise, nn.Dense(width, dtype=dtype)])
    hops = partial(_hops, kernel_width // 2)
    k = f"k = {kernel_width}"
    for name, *facts, module in [
        ("recurrent (LSTM)", "O(n d^2)", 1, "O(n)", "O(n)", lambda n: n, lstm),
        (f"convolutional, {k}", "O(k n d^2)", 1, "O(1)", "O(log_k n)", hops, convolution()),
        (
            *(f"separable convolution, {k}", "O(k n d + n d^2)", 1),
            *("O(1)", "O(log_k n)", hops, separable),
        ),
    ]:
        params = _parameters(module, jnp.zeros((1, 1, width), dtype))
        layer = partial(_apply, module)
        yield LayerType(name, *facts, params, layer, layer)


def _parameters(module: nn.Module, *arguments: Any) -> Any:
    """Return random parameters of a module, as its own initial ones take seconds to compile."""
    shapes = jax.eval_shape(lambda: nn.unbox(module.init(jax.random.key(0), *arguments)))["params"]
    generator = np.random.default_rng(0)

    def normal(shape: jax.ShapeDtypeStruct) -> jax.Array:
        deviation = math.prod(shape.shape[:-1]) ** -0.5  # the outputs have variance 1
        return jnp.asarray(deviation * generator.standard_normal(shape.shape), shape.dtype)

    return jax.tree.map(normal, shapes)


def _hops(reach: int, length: int) -> int:
    """Return the layers between both ends of a row, each with a reach of positions on each side."""
    return max(1, math.ceil((length - 1) / reach))


def _apply(module: nn.Module, params: Any, x: jax.Array) -> jax.Array:
    return module.apply({"params": params}, x)


def _mask(x: jax.Array, window: int | None) -> Mask:
    """Return the mask of one sentence in each row, without padding."""
    segments = jnp.ones(x.shape[:2], jnp.int32)
    return attention_mask(segments, segments, window=window)


def _attention_alone(
    num_heads: int, kernels: Kernels, window: int | None, params: Any, x: jax.Array
) -> jax.Array:
    heads = split_heads(x, num_heads)
    return merge_heads(kernels.attention(heads, heads, heads, _mask(x, window))[0])


def _attention_layer(
    module: MultiHeadAttention, kernels: Kernels, window: int | None, params: Any, x: jax.Array
) -> jax.Array:
    return module.apply({"params": params}, x, _context(x, kernels, window))


def _context(x: jax.Array, kernels: Kernels, window: int | None) -> Context:
    return Context(mask=_mask(x, window), kernels=kernels)
