"""Pictures of formulas: positions (section 3.5), the learning rate and the target of the loss."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from t2t_jax.config import TrainingConfig
from t2t_jax.functional.loss import label_smoothed_cross_entropy
from t2t_jax.functional.position import sinusoidal_positions
from t2t_jax.system.drawing import COLORS, MAP, canvas
from t2t_jax.training.schedule import learning_rate, scheduled_rate


def waves(d_model: int, length: int = 100) -> Figure:
    """Draw a few columns of the encodings: sine waves, slower from column to column."""
    table = np.asarray(sinusoidal_positions(length, d_model))
    figure, (axes,) = canvas(8, 3)
    columns = sorted({min(d_model - 1, d_model * part // 64) for part in (0, 4, 8, 16)})
    for column, color in zip(columns, COLORS, strict=False):
        axes.plot(table[:, column], color=color, label=f"column {column}")
    axes.set(xlabel="position", ylabel="encoding", xlim=(0, length - 1))
    axes.set_title(f"Positions as waves, d_model = {d_model} (section 3.5)")
    axes.legend(loc="upper right")
    return figure


def heat_map(d_model: int, length: int = 100) -> Figure:
    """Draw all numbers of the encodings, with a row for each position."""
    figure, (axes,) = canvas(8, 3.5)
    table = np.asarray(sinusoidal_positions(length, d_model))
    image = axes.imshow(table, aspect="auto", cmap=MAP, vmin=-1, vmax=1, interpolation="nearest")
    axes.set(xlabel="column", ylabel="position")
    axes.set_title("Position encodings: sines in even columns, cosines in odd ones")
    figure.colorbar(image, ax=axes)
    return figure


def products_by_distance(d_model: int, length: int = 100) -> Figure:
    """Draw the dot products of encodings, which depend on the distance of two positions alone.

    A pair of sine and cosine of the same frequency gives sin a sin b + cos a cos b = cos(a - b).
    """
    table = np.asarray(sinusoidal_positions(length, d_model))
    figure, (left, right) = canvas(9, 3.5, 2)
    products = table @ table.T
    image = left.imshow(products, cmap=MAP, interpolation="nearest")
    left.set(xlabel="position", ylabel="position", title="dot product of two encodings")
    figure.colorbar(image, ax=left)
    middle = length // 2
    apart = np.arange(length) - middle
    right.plot(apart, products[middle], color=COLORS[0])
    right.set(xlabel="distance", ylabel="dot product", title=f"from position {middle}")
    return figure


_ENTRIES = 12


def schedule(training: TrainingConfig, d_model: int) -> Figure:
    """Draw equation 3 for several lengths of the warmup, and the schedule of a run."""
    warmup, last = training.warmup_steps, max(training.num_train_steps, 2)
    steps = np.unique(np.linspace(1, last, 500).astype(np.int32))
    figure, (axes,) = canvas(8, 3.5)
    for length, color in zip((warmup // 2, warmup, 2 * warmup), COLORS, strict=False):
        of_warmup = partial(learning_rate, d_model=d_model, warmup_steps=max(length, 1))
        rates = jax.vmap(of_warmup)(jnp.asarray(steps))
        axes.plot(steps, rates, color=color, label=f"equation 3, warmup {max(length, 1):,}")
    rates = jax.vmap(partial(scheduled_rate, training, d_model))(jnp.asarray(steps))
    axes.plot(steps, rates, color="black", linestyle=":", label="the run's own")
    axes.set(xlabel="step", ylabel="learning rate", ylim=(0, None))
    axes.set_title(f"The schedule, d_model = {d_model} (section 5.3)")
    axes.legend()
    return figure


def label_smoothing(epsilon: float) -> Figure:
    """Draw the target with which the loss compares the model's probabilities (section 5.4).

    The target is computed from the loss, whose gradient by the logits is their softmax minus it.
    """
    target = jnp.asarray(_ENTRIES // 3)
    figure, axes = canvas(8, 3, 2)
    for shown, rate in zip(axes, (0.0, epsilon), strict=True):
        shown.bar(range(_ENTRIES), _target(target, rate), color=COLORS[0])
        shown.set(xlabel="entry of the vocabulary", ylim=(0, 1.05), title=f"eps = {rate}")
    axes[0].set_ylabel("probability in the target")
    return figure


def _target(target: jax.Array, epsilon: float) -> np.ndarray:
    logits = jnp.zeros(_ENTRIES)
    gradient = jax.grad(lambda x: label_smoothed_cross_entropy(x, target, epsilon)[0])(logits)
    return np.asarray(jax.nn.softmax(logits) - gradient)
