"""What successive halving would have chosen in a grid that was trained whole, and what it saves.

    python benchmarks/halving.py --config benchmarks/halving_grid.py runs/halving_grid
    python benchmarks/halving.py --config GRID.py DIR --halving rungs=4,keep=0.5 --json

It reads the logs of a finished grid: the perplexity of a cell at a rung is that of its last
evaluation on dev up to the rung (`evaluation.every_steps`), of the parameters at that step. The
regret is the perplexity of the row that halving would have kept to the end, less that of the best
row. The saving is the share of the training steps that it would not have taken. The base is trained
to its end in either case, as every row is compared with it.
"""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from t2t_jax.config.file import load_grid
from t2t_jax.errors import UserError
from t2t_jax.sweep.cell import Cell, cells, num_seeds_in
from t2t_jax.sweep.halving import Halving, levels
from t2t_jax.sweep.rules import by_variant
from t2t_jax.workdir import read_log


def evaluated(cell: Cell, step: int) -> float | None:
    """Return the perplexity of a cell's last evaluation up to a step, or that of its result."""
    if step >= cell.until and (result := cell.result()) is not None:
        return float(result["perplexity"])
    found = [r for r in read_log(cell.workdir) if r["of"] == "dev" and r["step"] <= step]
    if not found:
        raise UserError(
            f"{cell.workdir} has no evaluation on dev up to the rung at step {step}; ask for fewer "
            "rungs, or for a larger share to keep"
        )
    score = found[-1]["perplexity"]
    return math.inf if score is None else float(score)


def replayed(workdir: Path, config: str, text: str) -> dict[str, object]:
    """Return what a halving would have done in a grid's directory."""
    grid, halving = load_grid(config), Halving.of(text)
    every = by_variant(cells(grid, workdir, num_seeds_in(grid, workdir)))
    whole = {
        name: [cell for cell in own if cell.result() is not None] for name, own in every.items()
    }
    group = [name for name, own in whole.items() if own and name != grid.base]
    if not whole[grid.base] or len(group) < 2:
        raise UserError(f"{workdir} has too few finished rows of {config}; train the grid first")
    steps = halving.steps(grid.variants[grid.base])

    def mean_at(name: str, step: int) -> float | None:
        return statistics.fmean(evaluated(cell, step) or math.inf for cell in whole[name])

    reached = levels(group, steps, halving, mean_at)
    end = {name: mean_at(name, steps[-1]) or math.inf for name in group}
    ranked = sorted(group, key=end.__getitem__)
    kept = min(reached[-1], key=end.__getitem__)
    taken = steps[-1] + sum(
        max(step for step, names in zip(steps, reached, strict=True) if name in names)
        for name in group
    )
    return {
        "halving": text,
        "rows": len(group) + 1,
        "seeds": max(map(len, whole.values())),
        "steps of the rungs": steps,
        "rows at the rungs": [len(names) + 1 for names in reached],
        "kept to the end": ", ".join(reached[-1]),
        "best of them": kept,
        "best of all": ranked[0],
        "rank of the best of them": ranked.index(kept) + 1,
        "regret": end[kept] - end[ranked[0]],
        "range of the rows": end[ranked[-1]] - end[ranked[0]],
        "share of steps saved": 1 - taken / (steps[-1] * (len(group) + 1)),
    }


def main(arguments: Sequence[str]) -> int:
    """Print what halvings would have done, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workdir", type=Path, help="directory of a grid that was trained whole")
    parser.add_argument("--config", required=True, help="config file of the grid")
    parser.add_argument("--halving", nargs="+", default=["rungs=3,keep=0.33"])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    for text in given.halving:
        try:
            found = replayed(given.workdir, given.config, text)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        if given.json:
            print(json.dumps(found))
            continue
        for name, value in found.items():
            print(f"{name:26}{value:.3f}" if isinstance(value, float) else f"{name:26}{value}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
