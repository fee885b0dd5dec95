"""The section `training` of a config: optimiser, schedule and regularisation."""

from dataclasses import dataclass, field
from typing import Literal

from t2t_jax.config.checks import FITS, MAY_CHANGE, POSITIVE, Section, left_open, require, within
from t2t_jax.config.tables import OPTIMIZERS, OptimizerName

_SCHEDULES_WITH_AN_END = ("cosine", "linear", "wsd")
# At a beta of 1 or an epsilon of 0 an update is 0 / 0.
_BETA, _EPSILON = within(0, 0.999999), FITS | within(1e-30)
_SEED = within(0, 2**31 - 1)

SeedField = Literal["init_seed", "order_seed", "dropout_seed"]
SEED_FIELDS: tuple[SeedField, ...] = "init_seed", "order_seed", "dropout_seed"
"""The fields with the seed of one use of random numbers."""


@dataclass(frozen=True)
class TrainingConfig(Section):
    """The optimiser, schedule and regularisation (sections 5.3 and 5.4, and docs/recipe.md)."""

    num_train_steps: int = field(default=100_000, metadata=MAY_CHANGE | FITS | within(1))
    """Steps to train (base: 100,000; big: 300,000)."""
    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant", "wsd"] = "inverse_sqrt"
    """How the learning rate falls after the warmup: with the inverse square root of the step
    (equation 3), as a cosine, linearly, not at all, or linearly at the end alone (wsd)."""
    warmup_steps: int = field(default=4000, metadata=FITS | within(1))
    """Steps of linear warmup (equation 3), after which the learning rate has its peak."""
    learning_rate_factor: float = field(default=1.0, metadata=FITS | within(0))
    """Factor on equation 3, which gives every schedule its peak; the paper has 1."""
    peak_learning_rate: float | None = field(default=None, metadata=FITS | POSITIVE)
    """Learning rate at the end of the warmup; None leaves it to equation 3."""
    schedule_steps: int | None = field(default=None, metadata=left_open(None) | FITS | POSITIVE)
    """Step at which cosine, linear and wsd reach 0; None is the num_train_steps with which the run
    starts, and a run that goes on for more steps keeps it."""
    decay_fraction: float = field(default=0.1, metadata=within(1e-6, 1))
    """Share of schedule_steps, at their end, in which wsd falls to 0."""
    optimizer: OptimizerName = "adam"
    """Rule by which gradients become updates; the paper has Adam."""
    weight_decay: float = field(default=0.0, metadata=FITS | within(0))
    """Share of every matrix of the layers that a step takes away, times the learning rate; the
    optimizer "adam" has no weight decay."""
    adam_beta1: float = field(default=0.9, metadata=_BETA)
    """Adam's beta_1, and Lion's."""
    adam_beta2: float = field(default=0.98, metadata=_BETA)
    """Adam's beta_2, and Lion's."""
    adam_epsilon: float = field(default=1e-9, metadata=_EPSILON)
    """Adam's epsilon."""
    clip_gradient_norm: float | None = field(default=None, metadata=FITS | POSITIVE)
    """Largest norm of the gradient of the mean loss, over all parameters: a longer gradient is
    scaled down to it; None leaves gradients as they are."""
    ema_decay: float | None = None
    """Decay of a moving average of the parameters, which evaluation and use then read instead of
    the parameters; None keeps no such average."""
    label_smoothing: float = field(default=0.1, metadata=within(0, 0.99))
    """Probability mass epsilon_ls that is spread evenly over the vocabulary."""
    source_loss: bool = False
    """For a decoder alone that translates or parses: learn to predict the sources too, after their
    first token, and not the targets alone. Losses on dev are over targets in either case."""
    init_from: str | None = None
    """Run to start from, as for `t2t_jax.load`, such as "demo"; its parameters and its vocabulary
    replace random parameters and a new vocabulary. Optimiser state and step start anew."""
    init_step: int | None = None
    """Step of the last of the checkpoints of init_from that are averaged; None is the newest."""
    freeze: tuple[str, ...] = ()
    """Parameters that are not trained: paths of parameters or modules as in
    `t2t_jax.load(RUN).params`, such as embedding or encoder/*, in which * stands for anything. The
    layers of a stack are one parameter."""
    seed: int = field(default=0, metadata=_SEED)
    """Seed of all that is random: initialisation, dropout and the order of the data."""
    init_seed: int | None = field(default=None, metadata=_SEED)
    """Seed of the initial parameters; None is training.seed."""
    order_seed: int | None = field(default=None, metadata=_SEED)
    """Seed of the order of the data, how examples share rows, and which subwords masked language
    modelling hides; None is training.seed."""
    dropout_seed: int | None = field(default=None, metadata=_SEED)
    """Seed of dropout; None is training.seed."""
    max_nonfinite_steps: int = field(default=5, metadata=MAY_CHANGE | within(1))
    """Steps in a row with a non-finite loss or gradient (each is skipped) that end the run."""
    log_every_steps: int = field(default=100, metadata=MAY_CHANGE | within(1))
    """Steps between lines of the log."""
    stop_after_evaluations_without_gain: int | None = field(
        default=None, metadata=MAY_CHANGE | POSITIVE
    )
    """Evaluations on dev in a row without a better score after which the run ends early; None
    trains all num_train_steps."""

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        require(
            self.ema_decay is None or 0 < self.ema_decay < 1,
            f"training.ema_decay={self.ema_decay} is outside (0, 1); use None to keep no average",
        )
        require(
            self.init_from is not None or self.init_step is None,
            f"training.init_step={self.init_step} is a step of another run; name that run with "
            "training.init_from",
        )
        self._check_schedule()
        self._check_optimizer()

    def _check_schedule(self) -> None:
        require(
            self.peak_learning_rate is None or self.learning_rate_factor == 1,
            f"training.learning_rate_factor={self.learning_rate_factor} has no effect beside "
            f"peak_learning_rate={self.peak_learning_rate}; leave one of them out",
        )
        end = self.schedule_end
        if end is None:
            require(
                self.schedule_steps is None,
                f"training.schedule_steps={self.schedule_steps} has no effect on schedule="
                f"{self.schedule!r}, which has no end; leave it out, or use 'cosine', 'linear' or "
                "'wsd'",
            )
            return
        source = "num_train_steps" if self.schedule_steps is None else "schedule_steps"
        require(
            end > self.warmup_steps,
            f"training.{source}={end} ends schedule={self.schedule!r} before it falls, as "
            f"warmup_steps={self.warmup_steps}; raise {source} or lower warmup_steps",
        )
        require(
            self.schedule != "wsd" or (1 - self.decay_fraction) * end >= self.warmup_steps,
            f"training.decay_fraction={self.decay_fraction} of {source}={end} begins before the "
            f"end of warmup_steps={self.warmup_steps}; lower decay_fraction or warmup_steps",
        )

    def _check_optimizer(self) -> None:
        facts = OPTIMIZERS[self.optimizer]
        require(
            self.weight_decay == 0 or facts.decays,
            f"training.weight_decay={self.weight_decay} has no effect with optimizer="
            f"{self.optimizer!r}; use optimizer='adamw', which is Adam with weight decay",
        )
        require(
            self.adam_beta2 >= facts.least_beta2,
            f"training.adam_beta2={self.adam_beta2} leaves too little of earlier gradients for "
            f"optimizer={self.optimizer!r}; use {facts.least_beta2} or more",
        )

    def effective_seed(self, field: SeedField) -> int:
        """Return the seed of one use of random numbers: the value of its field, or else `seed`."""
        value: int | None = getattr(self, field)
        return self.seed if value is None else value

    @property
    def schedule_end(self) -> int | None:
        """Return the step at which the learning rate becomes 0; None for a schedule without end."""
        if self.schedule not in _SCHEDULES_WITH_AN_END:
            return None
        return self.num_train_steps if self.schedule_steps is None else self.schedule_steps
