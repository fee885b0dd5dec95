"""Write the page and the figure of the grid `configs/mup_small.py`: the best rate by width.

    python benchmarks/mup.py runs/mup_small docs/results --note "2 cores of ..."

The page is mup_small.md, and the figure mup_small.png: the perplexity on dev over the learning
rate, a curve for each width, in the standard parametrisation and in muP.
"""

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

from t2t_jax.config.file import load_grid
from t2t_jax.errors import UserError, needs_extra
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.system.console import markdown_row
from t2t_jax.system.program import run

_CONFIG = Path(__file__).parents[1] / "configs" / "mup_small.py"

Curves = dict[tuple[str, int], dict[float, float]]
"""The perplexity by learning rate, of each parametrisation and width."""

_PAGE = """# The best learning rate by width: standard and muP, on two cores

```bash
t2t-jax sweep --config configs/mup_small.py --workdir runs/mup_small --jobs 2
python benchmarks/mup.py runs/mup_small docs/results
```

The grid finds the best learning rate of four widths, in the standard parametrization and in
[muP](../widths.md). The grid trains models of Multi30k with one seed (`configs/mup_small.py`). At
width 64, the standard parametrization and muP are identical.

The grid ran on
{note}.

![Perplexity on dev over the learning rate, by width](mup_small.png)

The table lists the best rate of each width, and its distance from width 64 in factors of 2:

{best}

The table lists the dev perplexity by peak learning rate:

{table}

With one seed, the ranking of neighboring learning rates is uncertain. Longer training runs may give
other results than these runs of {steps} steps.
"""


def read_curves(workdir: Path) -> Curves:
    """Read the perplexities of the finished cells of a grid from its table.csv.

    Raises:
      UserError: there is no such table.
    """
    path = workdir / "table.csv"
    if not path.exists():
        raise UserError(f"{path} is missing; run t2t-jax sweep --workdir {workdir} --report first")
    with path.open(encoding="utf-8") as file:
        found = {row["variant"]: float(row["perplexity_mean"]) for row in csv.DictReader(file)}
    curves: Curves = {}
    for name, config in load_grid(str(_CONFIG)).variants.items():
        model, rate = config.model, config.training.peak_learning_rate
        if name in found and rate is not None:
            at_base = model.d_model == model.base_width
            for kind in ("standard", "mup") if at_base else (model.parametrisation,):
                curves.setdefault((kind, model.d_model), {})[rate] = found[name]
    return dict(sorted(curves.items(), key=lambda one: (one[0][0] != "standard", one[0][1])))


def drawn(curves: Curves) -> bytes:
    """Draw a panel for each parametrisation, with a curve for each width and its best rate.

    Returns:
      The figure as PNG.

    Raises:
      UserError: matplotlib is not installed.
    """
    with needs_extra("plots", "mup_small.png"):
        from t2t_jax.system.drawing import COLORS, canvas, encode_figure

    figure, axes = canvas(9, 3.8, 2)
    axes[1].sharey(axes[0])
    widths = sorted({width for _, width in curves})
    for place, kind in zip(axes, ("standard", "mup"), strict=True):
        for color, width in zip(COLORS, widths, strict=False):
            points = sorted(curves.get((kind, width), {}).items())
            if points:
                best = min(points, key=lambda point: point[1])
                x, y = zip(*points, strict=True)
                place.plot(x, y, ".-", color=color, label=str(width))
                place.plot(*best, "*", markersize=13, color=color)
        place.set(xscale="log", yscale="log", xlabel="peak learning rate", title=kind)
        place.legend(title="d_model")
    axes[0].set_ylabel("perplexity on dev")
    return encode_figure(figure, "png")


def page(curves: Curves, note: str) -> str:
    """Return the page: the best rate of each width, and every figure."""
    rates = sorted({rate for points in curves.values() for rate in points})
    best = {key: min(points, key=points.__getitem__) for key, points in curves.items()}
    least = min(width for _, width in curves)
    places = {key: rates.index(rate) for key, rate in best.items()}
    moved = [
        [*key, f"{best[key]:g}", f"{places[key] - places[key[0], least]:+d}"] for key in curves
    ]
    rows = [
        [kind, width, *(f"{points[rate]:.2f}" if rate in points else "" for rate in rates)]
        for (kind, width), points in curves.items()
    ]
    steps = next(iter(load_grid(str(_CONFIG)).variants.values())).training.num_train_steps
    return _PAGE.format(
        note=note,
        steps=steps,
        best=_markdown(["parametrisation", "d_model", "best rate", "moved by"], moved),
        table=_markdown(["parametrisation", "d_model", *(f"{rate:g}" for rate in rates)], rows),
    )


def _markdown(heads: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    lines = [markdown_row([*map(str, line)]) for line in (heads, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(heads), *lines[1:]])


def main(arguments: Sequence[str]) -> int:
    """Read the grid and write both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workdir", type=Path, help="the directory of the grid")
    parser.add_argument("out", type=Path, help="the directory of the page and the figure")
    parser.add_argument("--note", default="", help="hardware, date and time")
    asked = parser.parse_args(arguments)
    curves = read_curves(asked.workdir)
    write_whole(asked.out / "mup_small.png", drawn(curves))
    write_whole(asked.out / "mup_small.md", page(curves, asked.note).encode())
    return 0


if __name__ == "__main__":
    run(main)
