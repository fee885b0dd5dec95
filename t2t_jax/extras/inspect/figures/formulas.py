"""Draw positional encodings, learning rate schedules and label smoothing."""

import math
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from t2t_jax.config import TrainingConfig
from t2t_jax.functional.loss import label_smoothed_cross_entropy
from t2t_jax.functional.position import sinusoidal_positions
from t2t_jax.system.drawing import COLORS, MAP, canvas
from t2t_jax.training.schedule import learning_rate, scheduled_rate


def waves(d_model: int, length: int = 100) -> Figure:
    """Plot some columns of the sinusoidal position encodings over `length` positions."""
    table = np.asarray(sinusoidal_positions(length, d_model))
    figure, (axes,) = canvas(8, 3)
    columns = sorted({min(d_model - 1, d_model * part // 64) for part in (0, 4, 8, 16)})
    for column, color in zip(columns, COLORS, strict=False):
        axes.plot(table[:, column], ".-", color=color, label=f"column {column}")
    axes.set(xlabel="position", ylabel="encoding", xlim=(0, length - 1))
    axes.set_title(f"Positions as waves, d_model = {d_model} (section 3.5)")
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))  # beside the waves
    return figure


def clocks(positions: Sequence[int] = (0, 1, 2, 10, 11, 100)) -> Figure:
    """Draw position encodings as clocks: a pair of columns is a hand, which starts at the top."""
    d_model = 8
    table = np.asarray(sinusoidal_positions(max(positions) + 1, d_model))
    figure, panels = canvas(1.7 * len(positions), 2.7, len(positions))
    for axes, position in zip(panels, positions, strict=True):
        axes.add_patch(Circle((0, 0), 1, fill=False, color="gray"))
        for pair, (sine, cosine) in enumerate(table[position].reshape(-1, 2)):
            turn = 2 * np.pi * 10_000 ** (2 * pair / d_model)
            label = f"columns {2 * pair} and {2 * pair + 1}: a turn in {turn:,.1f} positions"
            ends = np.array([[0, sine], [0, cosine]]) * (0.95 - 0.15 * pair)
            axes.plot(*ends, color=COLORS[pair], linewidth=2 + 1.5 * pair, label=label)
        axes.set(title=f"position {position}", aspect="equal")
        axes.axis("off")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def heat_map(d_model: int, length: int = 100) -> Figure:
    """Draw the sinusoidal position encodings as a heat map, with a row for each position."""
    figure, (axes,) = canvas(8, 3.5)
    table = np.asarray(sinusoidal_positions(length, d_model))
    image = axes.imshow(table, aspect="auto", cmap=MAP, vmin=-1, vmax=1, interpolation="nearest")
    axes.set(xlabel="column", ylabel="position")
    axes.set_title("Position encodings: sine in even columns, cosine in odd columns")
    figure.colorbar(image, ax=axes)
    return figure


def products_by_distance(d_model: int, length: int = 100) -> Figure:
    """Draw the dot products of position encodings, which depend only on the distance.

    Reason: sin a sin b + cos a cos b = cos(a - b).
    """
    table = np.asarray(sinusoidal_positions(length, d_model))
    figure, (map_axes, curve_axes) = canvas(9, 3.5, 2)
    products = table @ table.T
    image = map_axes.imshow(products, cmap=MAP, interpolation="nearest")
    map_axes.set(xlabel="position", ylabel="position", title="dot product of two encodings")
    figure.colorbar(image, ax=map_axes)
    middle = length // 2
    distances = np.arange(length) - middle
    curve_axes.plot(distances, products[middle], color=COLORS[0])
    curve_axes.set(xlabel="distance", ylabel="dot product", title=f"from position {middle}")
    return figure


_ENTRIES = 12


def schedule(training: TrainingConfig, d_model: int) -> Figure:
    """Plot equation 3 with three warmup lengths, and the learning rate schedule of a run."""
    warmup, num_steps = training.warmup_steps, max(training.num_train_steps, 2)
    steps = np.unique(np.linspace(1, num_steps, 500).astype(np.int32))
    figure, (axes,) = canvas(8, 3.5)
    for warmup_length, color in zip((warmup // 2, warmup, 2 * warmup), COLORS, strict=False):
        rate_of = partial(learning_rate, d_model=d_model, warmup_steps=max(warmup_length, 1))
        rates = jax.vmap(rate_of)(jnp.asarray(steps))
        axes.plot(steps, rates, color=color, label=f"equation 3, warmup {max(warmup_length, 1):,}")
    rates = jax.vmap(partial(scheduled_rate, training, d_model))(jnp.asarray(steps))
    axes.plot(steps, rates, color="black", linestyle=":", label="the run")
    axes.set(xlabel="step", ylabel="learning rate", ylim=(0, None))
    axes.set_title(f"The schedule, d_model = {d_model} (section 5.3)")
    axes.legend()
    return figure


def label_smoothing(epsilon: float, vocab_size: int = 37_000) -> Figure:
    """Draw the target distribution with and without label smoothing (section 5.4).

    Also draws the entropy and calibration of a model that predicts its mean target exactly.
    """
    figure, (target_axes, entropy_axes, calibration_axes) = canvas(12, 3.5, 3)
    entries = np.arange(_ENTRIES)
    truth, rates = np.linspace(0, 1, 50), np.linspace(0, 0.3, 50)
    for rate, offset, color in zip((0.0, epsilon), (-0.2, 0.2), COLORS, strict=False):
        label = f"eps = {rate}"
        target = _target(jnp.asarray(_ENTRIES // 3), rate)
        target_axes.bar(entries + offset, target, 0.4, color=color, label=label)
        # Averaged over the true next tokens, the smoothed target is the optimum of the loss.
        predicted = (1 - rate) * truth + rate / vocab_size
        calibration_axes.plot(predicted, truth, color=color, label=label)
        entropy_axes.plot(rate, _entropy(rate, vocab_size), "o", color=color, label=label)
    entropy_axes.plot(rates, [_entropy(rate, vocab_size) for rate in rates], color="black")
    target_axes.set(xlabel="vocabulary entry", ylabel="probability", title="target of one token")
    entropy_axes.set(xlabel="eps", ylabel="nats", title="entropy where one token is certain")
    calibration_axes.set(
        xlabel="predicted probability", ylabel="true probability", title="calibration"
    )
    for axes in figure.axes:
        axes.legend()
    return figure


def _entropy(epsilon: float, vocab_size: int) -> float:
    """Compute the entropy in nats of (1 - epsilon) one_hot + epsilon / vocab_size."""
    off_target = max(epsilon, 1e-12) / vocab_size  # the limit of x log(x) at 0 is 0
    target = 1 - epsilon + off_target
    return -target * math.log(target) - (vocab_size - 1) * off_target * math.log(off_target)


def _target(target: jax.Array, epsilon: float) -> np.ndarray:
    # The gradient of the loss with respect to the logits is softmax(logits) - target.
    logits = jnp.zeros(_ENTRIES)
    gradient = jax.grad(lambda x: label_smoothed_cross_entropy(x, target, epsilon)[0])(logits)
    return np.asarray(jax.nn.softmax(logits) - gradient)
