"""The parts of a run that Python gives to `train`, besides the config."""

from collections.abc import Sequence
from dataclasses import dataclass

from t2t_jax.config.field_types import check_callable
from t2t_jax.errors import UserError, quote
from t2t_jax.run.hooks import Hook
from t2t_jax.training.objective import MetricsFunction, name_of


@dataclass(frozen=True)
class RunParts:
    """Functions and data of the user; see `train`.

    Raises:
      UserError: one cannot be called as it will be.
    """

    metrics: MetricsFunction | None = None
    hooks: Sequence[Hook] = ()
    data: object = None
    """The corpus, as `data.own` describes it; None is the corpus of the config."""

    def __post_init__(self) -> None:
        """Check the form of the functions."""
        if not isinstance(self.hooks, Sequence):
            raise UserError(f"hooks={quote(self.hooks)} is not a list; give hooks=[function, ...]")
        if self.metrics is not None:
            check_callable(f"metrics={quote(self.metrics)}", self.metrics, "outputs, batch")
        for index, hook in enumerate(self.hooks):
            check_callable(f"hooks[{index}]={quote(hook)}", hook, "step, metrics, state")

    def names(self) -> str:
        """Return the names of the functions, which all processes share."""
        functions = (self.metrics, *self.hooks)
        return repr([None if part is None else name_of(part) for part in functions])


NO_PARTS = RunParts()
"""The parts of a run that only its config defines."""
