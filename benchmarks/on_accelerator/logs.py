"""The speed of a run, from its log."""

import statistics
from itertools import pairwise
from pathlib import Path

from t2t_jax.workdir import read_log


def seconds_of_a_step(workdir: Path) -> float:
    """Return the median over a run's log, without its first line, which has the compilation."""
    lines = [record for record in read_log(workdir) if record["of"] == "train"]
    return statistics.median(
        line["target_tokens"] / line["target_tokens_per_second"] / (line["step"] - before["step"])
        for before, line in pairwise(lines)
    )
