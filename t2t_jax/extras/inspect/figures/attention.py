"""Draw softmax saturation, masks and attention weights (section 3.2 and figures 3 to 5)."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from t2t_jax.decoding.attention_maps import AttentionMaps
from t2t_jax.functional.attention import attention_weights
from t2t_jax.functional.masks import SegmentMask
from t2t_jax.parallel.jax_settings import random_key
from t2t_jax.system.drawing import COLORS, MAP, canvas

_WIDTHS = (4, 16, 64, 256, 1024)
_KEYS = 32
_QUERIES = 1000


def softmax_saturation() -> Figure:
    """Plot the softmax of random scores with and without division by sqrt(d_k) (section 3.2.1)."""
    # Queries and keys have variance 1. Without the division, the gradient vanishes as d_k grows.
    figure, (weight_axes, norm_axes) = canvas(9, 3.3, 2)
    for is_scaled, color in ((True, COLORS[0]), (False, COLORS[1])):
        weights, norms = np.array([_saturation(d_k, is_scaled) for d_k in _WIDTHS]).T
        name = "divided by sqrt(d_k)" if is_scaled else "not divided"
        weight_axes.plot(_WIDTHS, weights, "o-", color=color, label=name)
        norm_axes.plot(_WIDTHS, norms, "o-", color=color, label=name)
    for axes, name in ((weight_axes, "largest weight"), (norm_axes, "norm of the derivative")):
        axes.set(xscale="log", xlabel="d_k", title=f"mean {name}", xticks=_WIDTHS, ylim=(0, None))
        axes.set_xticks(_WIDTHS, [str(width) for width in _WIDTHS])
        axes.set_xticks([], minor=True)
    weight_axes.legend()
    return figure


def _saturation(d_k: int, is_scaled: bool) -> tuple[float, float]:
    """Return means over random queries of the largest weight and the softmax derivative's norm."""
    query_rng, key_rng = jax.random.split(random_key(d_k))
    query = jax.random.normal(query_rng, (1, _QUERIES, 1, d_k))
    key = jax.random.normal(key_rng, (1, _KEYS, 1, d_k))
    query = query if is_scaled else query * d_k**0.5  # `attention_weights` divides by it
    weights = attention_weights(query, key)[0, 0]
    # The derivative of the softmax is diag(p) - p p^T, which is 0 if one weight is 1.
    sums_of_squares = (weights**2).sum(-1)
    norm = jnp.sqrt(jnp.maximum(sums_of_squares - 2 * (weights**3).sum(-1) + sums_of_squares**2, 0))
    return float(weights.max(-1).mean()), float(norm.mean())


def masks() -> Figure:
    """Draw the attention masks (section 3.2.3) of a batch row with two sentences."""
    targets = jnp.array([[1] * 5 + [2] * 4 + [0] * 2])
    sources = jnp.array([[1] * 4 + [2] * 6 + [0]])
    figure, panels = canvas(10, 3.9, 3)
    attention_masks = {
        "encoder self-attention": SegmentMask(sources, sources),
        "decoder self-attention": SegmentMask(targets, targets, causal=True),
        "cross-attention": SegmentMask(targets, sources),
    }
    for axes, (name, mask) in zip(panels, attention_masks.items(), strict=True):
        axes.imshow(mask.dense()[0, 0], cmap=MAP, vmin=0, vmax=1)
        axes.set(title=name, xlabel="key", ylabel="query")
    figure.suptitle("Bright: the query may attend to the key. Two sentences, then padding")
    return figure


def lines_between_words(
    words: Sequence[str], weights: Float[np.ndarray, "h q k"], title: str
) -> Figure:
    """Draw self-attention weights as lines between subwords, like figures 3 to 5 of the paper.

    Args:
      words: the subwords, which are both queries and keys.
      weights: the attention weights of the heads of a layer.
    """
    figure, (axes,) = canvas(max(5, 2.2 + 0.32 * len(words)), 4)
    for head, head_weights in enumerate(weights):
        color = COLORS[head % len(COLORS)]
        for query, key in np.argwhere(head_weights > 0.05):
            weight = float(head_weights[query, key])
            axes.plot([query, key], [1, 0], color=color, alpha=weight, linewidth=1 + weight)
    for y, side in ((1.03, "bottom"), (-0.03, "top")):
        for x, word in enumerate(words):
            axes.text(x, y, word, rotation=90, ha="center", va=side, fontsize=9, parse_math=False)
    axes.set(xlim=(-0.5, len(words) - 0.5), ylim=(-0.6, 1.6))
    axes.axis("off")
    axes.set_title(title, fontsize=10)
    return figure


def cross_attention(maps: AttentionMaps, layer: int) -> Figure:
    """Draw a heat map of the cross-attention weights of a layer (from 0), averaged over heads."""
    weights = maps.cross[layer].mean(0)
    figure, (axes,) = canvas(max(5, 2.5 + 0.3 * len(maps.source)), 1.8 + 0.25 * len(maps.target))
    image = axes.imshow(weights, cmap=MAP, vmin=0, vmax=1)
    axes.set_xticks(range(len(maps.source)), maps.source, rotation=90, parse_math=False)
    axes.set_yticks(range(len(maps.target)), maps.target, parse_math=False)
    axes.set_title(f"cross-attention, layer {layer + 1}, mean of the heads", fontsize=10)
    figure.colorbar(image, ax=axes)
    return figure
