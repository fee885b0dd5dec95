"""The curves of a run, drawn as text."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from t2t_jax.run.report.page import Section
from t2t_jax.system.records import Record

# Bits of the Braille characters: those of the dots of a character, 4 rows of 2.
_BRAILLE, _DOTS = 0x2800, np.array([[1, 8], [2, 16], [4, 32], [64, 128]])


def curves_section(log: Sequence[Record]) -> Section:
    """Return the section that plots loss and learning rate over the logged steps."""
    curves = {
        "loss in training, label-smoothed, nats per target subword": ("train", "loss"),
        "loss on dev, label-smoothed, nats per target subword": ("dev", "loss"),
        "learning rate": ("train", "learning_rate"),
    }
    plots = []
    for title, (of, name) in curves.items():
        steps, values = series(log, of, "step", name)
        if len(steps) > 1:
            plots.append(f"{title}\n{plot_curves(steps, values)}")
    return Section("Curves", [] if plots else ["Nothing to plot yet."], plots=plots)


def series(log: Sequence[Record], of: str, *names: str) -> Float[np.ndarray, "names records"]:
    """Return figures of the records of one kind that have all of them.

    Args:
      of: the kind of record: train, or the split that was evaluated.
      names: fields of the records; null counts as missing.
    """
    rows = [[record.get(name) for name in names] for record in log if record.get("of") == of]
    known = [row for row in rows if all(isinstance(value, int | float) for value in row)]
    # Beyond, the range of an axis has no float.
    return np.array(known, np.float64).clip(-1e300, 1e300).reshape(-1, len(names)).T


def plot_curves(
    x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"], width: int = 64, height: int = 6
) -> str:
    """Draw a curve as lines of Braille characters, each of 2 columns and 4 rows of dots.

    Args:
      x: the steps of the curve, rising.
      y: the values of the curve, finite.
      width: characters across, without the labels.
      height: lines, at least 2, without the last line, which shows the range of `x`.
    """
    low, high = float(y.min()), float(y.max())
    curve = np.interp(np.linspace(x[0], x[-1], 2 * width), x, y)
    level = np.rint((curve - low) / ((high - low) or 1) * (4 * height - 1))
    before = np.append(level[:1], level[:-1])
    row = np.arange(4 * height)[::-1, None]
    dots = (np.minimum(level, before) <= row) & (row <= np.maximum(level, before))
    cells = (dots.reshape(height, 4, width, 2) * _DOTS[:, None]).sum((1, 3))
    labels = [f"{high:.3g}", *[""] * (height - 2), f"{low:.3g}"]
    lines = [
        f"{label:>10} {''.join(map(chr, line))}"
        for label, line in zip(labels, _BRAILLE + cells, strict=True)
    ]
    first, last = f"step {x[0]:,.0f}", f"{x[-1]:,.0f}"
    return "\n".join([*lines, " " * 11 + first + last.rjust(width - len(first))])
