"""The directory of a grid, written by hand: finished cells, and cells that ended in other ways."""

import json
from pathlib import Path

from t2t_jax.config import Config, to_dict
from tests.sweep.test_cell import RESULT

HOSTILE = "</script><img src=x onerror=alert(1)><b>a & b</b>"
BASE = Config().replace({"training.num_train_steps": 40})
VARIANTS = {
    "base": BASE,
    "A-h1": BASE.replace({"model.num_heads": 1}),
    "hostile": BASE.replace({"data.corpus": f"text:{HOSTILE}", "model.d_ff": 64}),
    "late": BASE.replace({"training.seed": 5}),
}
SECONDS = {"start": 30.0, "steps": 3540.0, "evaluation": 30.0}


def loss(variant: str, seed: int, step: int) -> float:
    """The loss in the log of a cell."""
    return 6 / step + list(VARIANTS).index(variant) + seed * 0.1 + (step % 3) * 0.01 * seed


def write_grid(grid: Path) -> None:
    """Write a grid: base and A-h1 with two seeds, and others that have no result.

    A second seed of A-h1 has failed in training, hostile is under way, late was stopped, and of
    lost there is only what its process printed.
    """
    write_cell(grid, "base", 0, 5.0)
    write_cell(grid, "base", 1, 5.2)
    write_cell(grid, "A-h1", 0, 6.0)
    write_cell(grid, "A-h1", 1, None, ended="ValueError: NaN", code=None)
    write_cell(grid, "hostile", 0, None)
    write_cell(grid, "late", 5, None, ended="stopped by SIGTERM", code=143)
    (grid / "lost").mkdir()
    (grid / "lost" / "seed0.log").write_text("begin\nerror: corpus directory x does not exist\n\n")


def write_cell(
    grid: Path,
    variant: str,
    seed: int,
    perplexity: float | None,
    *,
    ended: str | None = None,
    code: int | None = None,
    steps: int = 40,
) -> None:
    """Write the files of a run, with a result if it has a perplexity."""
    run = grid / variant / f"seed{seed}"
    (run / "jobs").mkdir(parents=True)
    config = VARIANTS[variant].replace({"training.seed": seed})
    (run / "config.json").write_text(config.to_json(), encoding="utf-8")
    records = [
        {"step": step, "of": "train", "time": 1.8e9 + step, "nll": loss(variant, seed, step)}
        for step in range(1, steps + 1)
    ]
    records += [{"step": 40, "of": "dev", "time": 1.8e9, "perplexity": 5.0, "bleu": 20.0}]
    (run / "log.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in records))
    job = {
        **{"begun": 1.8e9, "written": 1.8e9 + 3600, "first_step": 0, "step": steps, "devices": 1},
        **{"seconds": SECONDS, "at": [], "ended": ended, "exit_code": code},
    }
    (run / "jobs" / "1.json").write_text(json.dumps(job))
    if perplexity is not None:
        answers = [f"{HOSTILE} {variant} {number}" for number in range(2)]
        told = {"perplexity": perplexity, "hypotheses": answers, "steps": steps}
        result = {**RESULT, **told, "config": to_dict(config)}
        (run / "result.json").write_text(json.dumps(result))
