"""What the log of a run tells of its speed."""

import statistics
from itertools import pairwise
from pathlib import Path

from t2t_jax.workdir import read_log


def seconds_of_a_step(workdir: Path) -> float:
    """The median over the lines of a run's log, without the first, which has the compilation."""
    lines = [record for record in read_log(workdir) if record["of"] == "train"]
    return statistics.median(
        line["target_tokens"] / line["target_tokens_per_second"] / (line["step"] - before["step"])
        for before, line in pairwise(lines)
    )
