"""Plot the importance of attention heads."""

import numpy as np
from matplotlib.figure import Figure

from t2t_jax.config.model import PARTS
from t2t_jax.extras.inspect.heads import HeadReport
from t2t_jax.system.drawing import COLORS, MAP, canvas


def plot_importance(report: HeadReport) -> Figure:
    """Plot each head's importance, and BLEU or loss with more and more heads masked."""
    figure, (*map_axes, curve_axes) = canvas(12, 3.2, len(PARTS) + 1)
    max_importance = max(head.importance for head in report.heads)
    for axes, name in zip(map_axes, PARTS, strict=True):
        heads = [head for head in report.heads if head.attention == name]
        table = np.array([head.importance for head in heads]).reshape(1 + heads[-1].layer, -1)
        image = axes.imshow(table, cmap=MAP, vmin=0, vmax=max_importance)
        axes.set(title=name, xlabel="head", ylabel="layer")
        axes.set_xticks(range(table.shape[1]), [str(n + 1) for n in range(table.shape[1])])
        axes.set_yticks(range(table.shape[0]), [str(n + 1) for n in range(table.shape[0])])
    figure.colorbar(image, ax=map_axes, label="importance", shrink=0.8)
    percentages = [100 * point.share for point in report.curve]
    if report.bleu is None:
        curve_axes.plot(percentages, [point.loss for point in report.curve], "o-", color=COLORS[0])
        curve_axes.set(ylabel="loss, nats a token")
    else:
        scores = np.array([point.bleu for point in report.curve], float)
        curve_axes.plot(percentages, scores, "o-", color=COLORS[0])
        curve_axes.set(ylabel="sacreBLEU, greedy", ylim=(0, None))
    curve_axes.set(xlabel="% of the heads", title="without the least important")
    return figure
