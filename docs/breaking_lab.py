"""Write the results of `configs/breaking_lab.py` into docs/results/breaking_lab.md.

    python docs/breaking_lab.py runs/lab    store the scores and outputs of the sweeps, and write
    python docs/breaking_lab.py             write the page from the stored results

`runs/lab` has a directory for the sweep of each task.
"""

import csv
import re
import subprocess
import sys
from pathlib import Path
from textwrap import shorten

import t2t_jax

PAGE = Path(__file__).parent / "results/breaking_lab.md"
STORED = PAGE.with_suffix("")

PARTS = {
    "": "nothing",
    "-scale": "division by √d_k",
    "-mask": "causal mask",
    "-positions": "positions",
    "-residuals": "residual connections",
    "-norms": "layer normalization",
    "-warmup": "warmup",
    "-smoothing": "label smoothing",
    "-heads": "several heads",
    "-dropout": "dropout",
    "-feed-forward": "feed-forward networks",
}
"""The endings of the variants' names, with what each variant leaves out."""

SOURCES = {
    "copy": "h o c a f",
    "reverse": "d g n b a h k",
    "sort": "m c a p c b",
    "recall": "g 4 b 7 e 1",
    "text": "The file could not be opened.",
}
"""A source of each task, whose outputs are stored."""

SHOWN = "reverse", "recall", "text"
"""The tasks whose outputs the page shows."""


def store(sweeps: Path) -> None:
    """Store scores, statistics and outputs of finished sweeps beside the page."""
    STORED.mkdir(exist_ok=True)
    seeds = []
    for task in SOURCES:
        sweep = sweeps / task
        command = [sys.executable, "-m", "t2t_jax", "sweep", str(sweep), "--report"]
        subprocess.run([*command, "--only", f"{task}*", "--base", task], check=True)
        metric = "bleu" if task == "text" else "metric_score"
        scores = {
            "perplexity": "perplexity_mean",
            "perplexity_p": "perplexity_p_adjusted",
            "score": f"{metric}_mean",
            "score_p": f"{metric}_p_adjusted",
        }
        rows = {row["variant"]: row for row in _read(sweep / "table.csv")}
        table = [
            {
                "variant": task + ending,
                **{name: rows[task + ending][column] for name, column in scores.items()},
                "output": _output(sweep / f"{task}{ending}" / "seed0", SOURCES[task]),
            }
            for ending in PARTS
        ]
        _write(STORED / f"{task}.csv", table)
        seeds += [
            {name: row[name] for name in ("variant", "seed", "perplexity")} | {"score": row[metric]}
            for row in _read(sweep / "seeds.csv")
            if row["state"] == "done"
        ]
    _write(STORED / "seeds.csv", seeds)


def scores_table() -> str:
    """Return perplexities and scores of all tasks, in bold where they differ from the base's."""
    lines = [f"| left out | {' | '.join(SOURCES)} |", "|---" * (len(SOURCES) + 1) + "|"]
    tables = [_read(STORED / f"{task}.csv") for task in SOURCES]
    for left_out, *rows in zip(PARTS.values(), *tables, strict=True):
        cells = [f"{_cell(row, 'perplexity', 2)}, {_cell(row, 'score', 1)}" for row in rows]
        lines.append(f"| {left_out} | {' | '.join(cells)} |")
    return "\n".join(lines)


def outputs(task: str) -> str:
    """Return the source of a task, and the output of each variant."""
    lines = {"source": SOURCES[task]} | dict(
        zip(PARTS.values(), (r["output"] for r in _read(STORED / f"{task}.csv")), strict=True)
    )
    # Broken models repeat tokens up to the maximum length.
    return "\n".join(f"{name:22}{shorten(text, 60) or '(nothing)'}" for name, text in lines.items())


def page() -> str:
    """Return the page with the stored results."""
    text = PAGE.read_text("utf-8")
    blocks = {r"^\| left out \|.*?(?=\n\n)": scores_table()}
    for task in SHOWN:
        first_line = re.escape(f"{'source':22}{SOURCES[task]}")
        blocks[rf"(?<=^```text\n){first_line}$.*?(?=\n```)"] = outputs(task)
    for pattern, block in blocks.items():
        text, count = re.subn(pattern, lambda _, block=block: block, text, flags=re.S | re.M)
        assert count == 1, pattern
    return text


def _cell(row: dict[str, str], measure: str, digits: int) -> str:
    value, p = row[measure], row[f"{measure}_p"]
    number = f"{float(value):.{digits}f}"
    return f"**{number}**" if p and float(p) < 0.05 else number


def _output(run: Path, source: str) -> str:
    translator = t2t_jax.load(run, register=[run / "registered/architecture.py"])
    [output] = translator.translate([source])
    return output


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _write(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    if sys.argv[1:]:
        store(Path(sys.argv[1]))
    PAGE.write_text(page(), "utf-8")
