"""The figures of runs that are plotted over the steps in a terminal."""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from t2t_jax.config import Config
from t2t_jax.run.history import History, dev_score, score_name
from t2t_jax.system.records import Record
from t2t_jax.tasks import task_of


class Figure(NamedTuple):
    """A figure in the records of a run."""

    title: str
    """The name of the figure, with its unit."""
    on_dev: bool
    """Whether it is of the evaluations on dev, and not of the steps of training."""
    of: Callable[[Record], float | None]
    """A function that returns the figure of a record; None if it was not finite."""

    def points(self, history: History) -> list[tuple[int, float]]:
        """Return the steps at which a run has the figure, rising, each with its value."""
        records = history.evaluations if self.on_dev else history.training
        found = ((record["step"], self.of(record)) for record in records)
        return [(step, one) for step, one in found if one is not None and math.isfinite(one)]


def unit_of(configs: Iterable[Config]) -> str:
    """Return the name of what the models predict, such as token; "target" if it differs."""
    units = {task_of(one.data.corpus, one.data.task).unit for one in configs}
    unit = units.pop() if len(units) == 1 else "target"
    return "token" if unit == "subword" else unit


def figures_of(histories: Iterable[History], unit: str) -> list[Figure]:
    """Return the figures to plot; a run may lack some.

    Args:
      unit: the name of what the models predict.
    """
    evaluations = [record for history in histories for record in history.evaluations]
    score = score_name(evaluations[-1]) if evaluations else "score"
    speed = "target tokens/s" if unit == "token" else f"{unit}s/s"
    return [
        Figure(f"training loss, nats per {unit}", False, lambda r: r.get("nll")),
        Figure("perplexity on dev", True, lambda r: r.get("perplexity")),
        Figure(f"{score} on dev", True, dev_score),
        Figure("gradient norm", False, lambda r: r.get("gradient_norm")),
        Figure(speed, False, lambda r: r.get("target_tokens_per_second")),
        Figure("learning rate", False, lambda r: r.get("learning_rate")),
    ]
