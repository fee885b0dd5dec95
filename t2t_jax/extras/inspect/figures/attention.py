"""Pictures of section 3.2, and of figures 3 to 5: scores, masks, and the weights of heads."""

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
    """Draw why scores are divided by sqrt(d_k) (section 3.2.1).

    For random queries and keys whose components have mean 0 and variance 1, the picture shows the
    largest weight of a row, and the size of the softmax's derivative, by d_k.
    """
    figure, (left, right) = canvas(9, 3.3, 2)
    for is_scaled, color in ((True, COLORS[0]), (False, COLORS[1])):
        largest, derivative = np.array([_saturation(d_k, is_scaled) for d_k in _WIDTHS]).T
        name = "divided by sqrt(d_k)" if is_scaled else "not divided"
        left.plot(_WIDTHS, largest, "o-", color=color, label=name)
        right.plot(_WIDTHS, derivative, "o-", color=color, label=name)
    for axes, name in ((left, "largest weight of a row"), (right, "norm of the derivative")):
        axes.set(xscale="log", xlabel="d_k", title=f"{name}, mean", xticks=_WIDTHS, ylim=(0, None))
        axes.set_xticks(_WIDTHS, [str(width) for width in _WIDTHS])
        axes.set_xticks([], minor=True)
    left.legend()
    return figure


def _saturation(d_k: int, is_scaled: bool) -> tuple[float, float]:
    """Compute the mean over queries of the largest weight and the derivative's Frobenius norm."""
    of_query, of_key = jax.random.split(random_key(d_k))
    query = jax.random.normal(of_query, (1, _QUERIES, 1, d_k))
    key = jax.random.normal(of_key, (1, _KEYS, 1, d_k))
    query = query if is_scaled else query * d_k**0.5  # `attention_weights` divides
    weights = attention_weights(query, key)[0, 0]
    # The softmax's derivative is diag(p) - p p^T, which is 0 where one weight is 1.
    squares = (weights**2).sum(-1)
    norm = jnp.sqrt(jnp.maximum(squares - 2 * (weights**3).sum(-1) + squares**2, 0))
    return float(weights.max(-1).mean()), float(norm.mean())


def masks() -> Figure:
    """Draw which positions may attend to which (section 3.2.3), in a row of two sentences."""
    targets = jnp.array([[1] * 5 + [2] * 4 + [0] * 2])
    sources = jnp.array([[1] * 4 + [2] * 6 + [0]])
    figure, axes = canvas(10, 3.6, 3)
    of_kinds = {
        "encoder self-attention": SegmentMask(sources, sources),
        "decoder self-attention": SegmentMask(targets, targets, causal=True),
        "cross-attention": SegmentMask(targets, sources),
    }
    for shown, (name, mask) in zip(axes, of_kinds.items(), strict=True):
        shown.imshow(mask.dense()[0, 0], cmap=MAP, vmin=0, vmax=1)
        shown.set(title=name, xlabel="key", ylabel="query")
    figure.suptitle("Bright: allowed. Two sentences in a row, then padding")
    return figure


def lines_between_words(
    words: Sequence[str], weights: Float[np.ndarray, "h q k"], title: str
) -> Figure:
    """Draw the weights of a layer's heads as lines between words, as in the paper's figures 3 to 5.

    Args:
      words: the subwords, which are both keys and queries.
      weights: the attention weights of the heads.
      title: the title of the picture.
    """
    figure, (axes,) = canvas(max(5, 2.2 + 0.32 * len(words)), 4)
    for head, of_head in enumerate(weights):
        color = COLORS[head % len(COLORS)]
        for query, key in np.argwhere(of_head > 0.05):
            strength = float(of_head[query, key])
            axes.plot([query, key], [1, 0], color=color, alpha=strength, linewidth=1 + strength)
    for y, side in ((1.03, "bottom"), (-0.03, "top")):
        for x, word in enumerate(words):
            axes.text(x, y, word, rotation=90, ha="center", va=side, fontsize=9, parse_math=False)
    axes.set(xlim=(-0.5, len(words) - 0.5), ylim=(-0.6, 1.6))
    axes.axis("off")
    axes.set_title(title, fontsize=10)
    return figure


def cross_attention(maps: AttentionMaps, layer: int) -> Figure:
    """Draw the weights of source subwords for each target subword: the mean of a layer's heads.

    The layers are counted from 0.
    """
    weights = maps.cross[layer].mean(0)
    figure, (axes,) = canvas(max(5, 2.5 + 0.3 * len(maps.source)), 1.8 + 0.25 * len(maps.target))
    image = axes.imshow(weights, cmap=MAP, vmin=0, vmax=1)
    axes.set_xticks(range(len(maps.source)), maps.source, rotation=90, parse_math=False)
    axes.set_yticks(range(len(maps.target)), maps.target, parse_math=False)
    axes.set_title(f"cross-attention, layer {layer + 1}, mean of the heads", fontsize=10)
    figure.colorbar(image, ax=axes)
    return figure
