"""The config section `training`: optimizer, schedule and regularization."""

from dataclasses import dataclass, field
from typing import Literal

from t2t_jax.config.checks import FITS, MAY_CHANGE, POSITIVE, Section, left_open, require, within
from t2t_jax.config.schedules import SCHEDULES
from t2t_jax.config.tables import OPTIMIZERS, LossName, OptimizerName, ScheduleName

# With a beta of 1 or an epsilon of 0, an update would be 0 / 0.
_BETA, _EPSILON = within(0, 0.999999), FITS | within(1e-30)
_SEED = within(0, 2**31 - 1)

SeedField = Literal["init_seed", "order_seed", "dropout_seed"]
SEED_FIELDS: tuple[SeedField, ...] = "init_seed", "order_seed", "dropout_seed"
"""The seed fields, one for each use of random numbers."""


@dataclass(frozen=True)
class TrainingConfig(Section):
    """The optimizer, schedule and regularization (sections 5.3 and 5.4, and docs/recipe.md)."""

    num_train_steps: int = field(default=100_000, metadata=MAY_CHANGE | FITS | within(1))
    """Number of training steps (base: 100,000; big: 300,000)."""
    schedule: ScheduleName = "inverse_sqrt"
    """Learning rate schedule after the warmup: inverse square root of the step (equation 3),
    cosine, linear, constant, or warmup-stable-decay (wsd), which is constant and falls linearly in
    the last steps, as in wsd(decay_fraction=0.2)."""
    warmup_steps: int = field(default=4000, metadata=FITS | within(1))
    """Number of linear warmup steps (equation 3), after which the learning rate is at its peak."""
    learning_rate_factor: float = field(default=1.0, metadata=FITS | within(0))
    """Factor on equation 3, which defines the peak of every schedule; the paper uses 1."""
    peak_learning_rate: float | None = field(default=None, metadata=FITS | POSITIVE)
    """Learning rate at the end of the warmup; None uses equation 3."""
    schedule_steps: int | None = field(default=None, metadata=left_open(None) | FITS | POSITIVE)
    """Step at which the schedules cosine, linear and wsd reach 0. None uses num_train_steps; a run
    that is resumed with more steps keeps the original value."""
    loss: LossName = "cross_entropy"
    """Loss of training: the label-smoothed cross-entropy of the paper (section 5.4). A config file
    can register other losses (t2t_jax.register)."""
    optimizer: OptimizerName = "adam"
    """Optimizer; the paper uses Adam."""
    weight_decay: float = field(default=0.0, metadata=FITS | within(0))
    """Decoupled weight decay of the layers' matrices, multiplied by the learning rate. The
    optimizer "adam" has no weight decay."""
    adam_beta1: float = field(default=0.9, metadata=_BETA)
    """beta_1 of Adam and Lion."""
    adam_beta2: float = field(default=0.98, metadata=_BETA)
    """beta_2 of Adam and Lion."""
    adam_epsilon: float = field(default=1e-9, metadata=_EPSILON)
    """epsilon of Adam."""
    clip_gradient_norm: float | None = field(default=None, metadata=FITS | POSITIVE)
    """Maximum global norm of the gradient of the mean loss. A gradient with a larger norm is scaled
    down to this norm; None disables clipping."""
    ema_decay: float | None = None
    """Decay of the exponential moving average (EMA) of the parameters, which evaluation and
    translation then use. None keeps no moving average."""
    label_smoothing: float = field(default=0.1, metadata=within(0, 0.99))
    """Label smoothing epsilon_ls: the probability mass to spread evenly over the vocabulary."""
    source_loss: bool = False
    """Train a decoder-only model to predict source tokens, too, in translation and parsing. The
    first token of a source is not predicted. Losses on the dev split cover only the targets."""
    init_from: str | None = None
    """Run to load the parameters and vocabulary from; a path as for `t2t_jax.load`, such as "demo".
    The optimizer state and the step counter are reset."""
    init_step: int | None = None
    """Step of the checkpoint of init_from to load, which is the last of those averaged; None loads
    the newest checkpoint."""
    freeze: tuple[str, ...] = ()
    """Parameters to freeze: paths of parameters or modules as in `t2t_jax.load(RUN).params`, such
    as embedding or encoder/*, where * matches any text. All layers of a stack share one parameter
    array."""
    seed: int = field(default=0, metadata=_SEED)
    """Random seed (initialization, dropout and data order)."""
    init_seed: int | None = field(default=None, metadata=_SEED)
    """Seed of the initial parameters; None uses training.seed."""
    order_seed: int | None = field(default=None, metadata=_SEED)
    """Seed of the data order, the packing of examples into batch rows, and the choice of masked
    subwords; None uses training.seed."""
    dropout_seed: int | None = field(default=None, metadata=_SEED)
    """Seed of dropout; None uses training.seed."""
    max_nonfinite_steps: int = field(default=5, metadata=MAY_CHANGE | within(1))
    """Number of consecutive steps with a non-finite loss or gradient after which the run stops.
    Such steps do not update the parameters."""
    log_every_steps: int = field(default=100, metadata=MAY_CHANGE | within(1))
    """Steps between log lines."""
    stop_after_evaluations_without_gain: int | None = field(
        default=None, metadata=MAY_CHANGE | POSITIVE
    )
    """Number of consecutive dev evaluations without a better score after which the run stops early;
    None always trains for num_train_steps."""

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
            f"training.learning_rate_factor={self.learning_rate_factor} has no effect with "
            f"peak_learning_rate={self.peak_learning_rate}; leave one of them out",
        )
        schedule, end = SCHEDULES.find(self.schedule), self.schedule_end
        if schedule is None:  # a stored run; training refuses the name
            return
        if end is None:
            require(
                self.schedule_steps is None,
                f"training.schedule_steps={self.schedule_steps} has no effect on schedule="
                f"{self.schedule!r}, which has no end; leave it out, or use "
                f"{' or '.join(repr(name) for name, x in SCHEDULES.items() if x.has_end)}",
            )
            return
        end_field = "num_train_steps" if self.schedule_steps is None else "schedule_steps"
        require(
            end > self.warmup_steps,
            f"training.{end_field}={end} ends schedule={self.schedule!r} within the warmup, as "
            f"warmup_steps={self.warmup_steps}; raise {end_field} or lower warmup_steps",
        )
        schedule.check(self)

    def _check_optimizer(self) -> None:
        facts = OPTIMIZERS.find(self.optimizer)
        if facts is None:  # a stored run; training refuses the name
            return
        require(
            self.weight_decay == 0 or facts.decays,
            f"training.weight_decay={self.weight_decay} has no effect with optimizer="
            f"{self.optimizer!r}; use optimizer='adamw', which is Adam with weight decay",
        )
        require(
            self.adam_beta2 >= facts.least_beta2,
            f"training.adam_beta2={self.adam_beta2} is too small for optimizer={self.optimizer!r}; "
            f"use {facts.least_beta2} or more",
        )

    def effective_seed(self, field: SeedField) -> int:
        """Return the value of a seed field, or `seed` if the field is None."""
        value: int | None = getattr(self, field)
        return self.seed if value is None else value

    @property
    def schedule_end(self) -> int | None:
        """Return the step at which the learning rate becomes 0; None for a schedule without end."""
        schedule = SCHEDULES.find(self.schedule)
        if schedule is None or not schedule.has_end:
            return None
        return self.num_train_steps if self.schedule_steps is None else self.schedule_steps
