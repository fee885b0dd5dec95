"""Plot the importance of attention heads."""

import numpy as np
from matplotlib.figure import Figure

from t2t_jax.config.model import PARTS
from t2t_jax.extras.inspect.heads import HeadReport
from t2t_jax.system.drawing import COLORS, MAP, canvas


def plot_importance(report: HeadReport) -> Figure:
    """Plot the importance of every head, and the score as the least important are masked."""
    figure, (*maps, curve) = canvas(12, 3.2, len(PARTS) + 1)
    largest = max(head.importance for head in report.heads)
    for axes, name in zip(maps, PARTS, strict=True):
        heads = [head for head in report.heads if head.attention == name]
        table = np.array([head.importance for head in heads]).reshape(1 + heads[-1].layer, -1)
        image = axes.imshow(table, cmap=MAP, vmin=0, vmax=largest)
        axes.set(title=name, xlabel="head", ylabel="layer")
        axes.set_xticks(range(table.shape[1]), [str(n + 1) for n in range(table.shape[1])])
        axes.set_yticks(range(table.shape[0]), [str(n + 1) for n in range(table.shape[0])])
    figure.colorbar(image, ax=maps, label="importance", shrink=0.8)
    shares = [100 * point.share for point in report.curve]
    if report.bleu is None:
        curve.plot(shares, [point.loss for point in report.curve], "o-", color=COLORS[0])
        curve.set(ylabel="loss, nats a token")
    else:
        scores = np.array([point.bleu for point in report.curve], float)
        curve.plot(shares, scores, "o-", color=COLORS[0])
        curve.set(ylabel="sacreBLEU, greedy", ylim=(0, None))
    curve.set(xlabel="% of the heads", title="without the least important")
    return figure
