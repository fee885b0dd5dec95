"""Plot attention weights, with a panel for each layer and head."""

from typing import Literal

import numpy as np

from t2t_jax.decoding.attention_maps import AttentionMaps
from t2t_jax.errors import UserError, did_you_mean
from t2t_jax.system.drawing import MAP, Picture

_MOST_SUBWORDS = 100  # larger panels would be thousands of pixels wide


def heads(maps: AttentionMaps, attention: Literal["encoder", "decoder", "cross"]) -> Picture:
    """Plot the weights of one kind of attention, with a panel for each layer and head."""
    axis_labels = {
        "encoder": (maps.source, maps.source),
        "decoder": (maps.target, ["<s>", *maps.target[:-1]]),
        "cross": (maps.target, maps.source),
    }
    if attention not in axis_labels:
        choices = f"there are {', '.join(axis_labels)}"
        raise UserError(
            f"there is no attention {attention!r}; {did_you_mean(attention, axis_labels, choices)}"
        )
    queries, keys = axis_labels[attention]
    if max(len(queries), len(keys)) > _MOST_SUBWORDS:
        raise UserError(
            f"a picture of {len(queries)} x {len(keys)} subwords is too large to read; the limit "
            f"is {_MOST_SUBWORDS} subwords on each axis"
        )
    weights = getattr(maps, attention)  # [layers, heads, queries, keys]
    rows, columns = weights.shape[:2]
    size = columns * (0.8 + 0.16 * len(keys)), 1 + rows * (0.4 + 0.16 * len(queries))
    figure = Picture(figsize=size, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for (layer, head), axes in zip(np.ndindex(rows, columns), panels.flat, strict=True):
        image = axes.imshow(weights[layer, head], cmap=MAP, vmin=0, vmax=1)
        axes.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=9)
    # Panels share their axes, and drawing thousands of hidden labels takes seconds.
    for axes in panels[-1]:
        axes.set_xticks(range(len(keys)), keys, rotation=90, fontsize=8, parse_math=False)
    for axes in panels[:, 0]:
        axes.set_yticks(range(len(queries)), queries, fontsize=8, parse_math=False)
    figure.colorbar(image, ax=panels, label=f"{attention} attention; each row sums to 1")
    return figure
