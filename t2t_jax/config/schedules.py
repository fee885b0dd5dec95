"""The learning-rate schedules: their parameters, and the facts that checks and grids read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from t2t_jax.config.field_types import check_callable, check_range, require
from t2t_jax.config.registry import Registry

if TYPE_CHECKING:
    from t2t_jax.config.training import TrainingConfig

_FORMULAS = "t2t_jax.training.schedule"


@dataclass(frozen=True)
class Schedule:
    """Base class of schedules with the warmup of equation 3: P * min(n / warmup_steps, s(n)).

    P is the peak rate at step `warmup_steps`. The method `decay(n, warmup_steps, end)` of a
    subclass returns s(n), at least 1 before the peak, for float steps n; `end` is `schedule_end`.
    """

    decay: ClassVar[Callable[..., Any] | str]
    """The method, or the import path of a function that takes the schedule as first argument."""
    has_end: ClassVar[bool] = False
    """Whether the rate becomes 0 at step `training.schedule_end`."""
    predicts_early: ClassVar[bool] = True
    """Whether scores before the end predict the final score, as `--halving` needs."""
    note_before_end: ClassVar[str] = ""
    """A note for tables of runs that stopped before the end."""
    rate: ClassVar[Callable[..., Any] | None] = None
    """A function of the step that replaces peak, warmup and decay; None for most schedules."""
    has_parameters: ClassVar[bool] = True
    """Whether the fields of the row are parameters."""

    def __init_subclass__(cls) -> None:
        """Refuse a class without a decay, and one with a `__call__`, which nothing would read."""
        require(
            (hasattr(cls, "decay") or cls.rate is not None) and "__call__" not in vars(cls),
            f"{cls.__name__} is a t2t_jax.Schedule: give it the method decay(n, warmup_steps, end) "
            "and no __call__, or no base class and the method __call__(step)",
        )

    def check(self, training: "TrainingConfig") -> None:
        """Refuse, with a `UserError`, a training section that does not suit the schedule."""


@dataclass(frozen=True)
class OwnRate(Schedule):
    """A learning rate that depends only on the step."""

    function: Callable[..., Any]
    """The function, or an object with the method `__call__`."""

    @property
    def rate(self) -> Callable[..., Any]:  # type: ignore[override]
        """Return the function."""
        return self.function


@dataclass(frozen=True)
class InverseSqrt(Schedule):
    """The schedule of the paper (equation 3)."""

    decay = f"{_FORMULAS}:inverse_sqrt"


@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine from the peak to 0 (Loshchilov and Hutter 2017)."""

    decay, has_end, predicts_early = f"{_FORMULAS}:cosine", True, False


@dataclass(frozen=True)
class Linear(Schedule):
    """A line from the peak to 0."""

    decay, has_end, predicts_early = f"{_FORMULAS}:linear", True, False


@dataclass(frozen=True)
class Constant(Schedule):
    """The peak rate after the warmup."""

    decay = f"{_FORMULAS}:constant"


@dataclass(frozen=True)
class Wsd(Schedule):
    """Warmup-stable-decay: constant, then a line to 0."""

    decay_fraction: float = 0.1
    """Last fraction of the steps, in which the rate falls to 0."""

    decay, has_end = f"{_FORMULAS}:warmup_stable_decay", True
    note_before_end = "With the schedule wsd, this is before the decay of the learning rate."

    def __post_init__(self) -> None:
        """Check the fraction."""
        check_range(f"decay_fraction={self.decay_fraction}", self.decay_fraction, 1e-6, 1)

    def check(self, training: "TrainingConfig") -> None:
        """Refuse a decay that begins within the warmup."""
        end = training.schedule_end
        require(
            end is None or (1 - self.decay_fraction) * end >= training.warmup_steps,
            f"decay_fraction={self.decay_fraction} of training.schedule={training.schedule!r} "
            f"begins before the end of warmup_steps={training.warmup_steps}; lower decay_fraction "
            "or warmup_steps",
        )


def _own_schedule(part: Any, title: str) -> Schedule:
    form = " that returns the learning rate, or a t2t_jax.Schedule with the method decay"
    check_callable(title, part, "step", form)
    return OwnRate(part)


SCHEDULES: Registry[Schedule] = Registry(
    "schedule",
    "schedules",
    Schedule,
    _own_schedule,
    True,
    inverse_sqrt=InverseSqrt(),
    cosine=Cosine(),
    linear=Linear(),
    constant=Constant(),
    wsd=Wsd(),
)
"""The schedules, by the value of `training.schedule`; docs/recipe.md has their formulas."""
