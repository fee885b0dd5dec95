"""The metrics of steps: read them without blocking the device, and log their means."""

import math
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import jax
import numpy as np

from t2t_jax.errors import DivergedError
from t2t_jax.parallel.devices import peak_memory
from t2t_jax.run.preparing import Run
from t2t_jax.run.progress import COMPILATION, DATA, STEPS
from t2t_jax.system.host import resident_memory
from t2t_jax.tasks.measures.perplexity import perplexity
from t2t_jax.training.objective import LOSS
from t2t_jax.training.origin import Window
from t2t_jax.training.step import StepMetrics

# The metrics of the newest steps stay on the device. The host waits only for older steps, so the
# device always has a step to compute.
_LAG = 2


class StepMeter:
    """Measure means and rates of the steps since the last log record.

    Attributes:
      window: the sums since that record.
    """

    def __init__(self, run: Run, first_step: int) -> None:
        """Start measuring the steps after `first_step`."""
        self._log, self._progress, self._config = run.log, run.progress, run.config.training
        self._first_step = self._newest_record = first_step
        self._num_devices = run.mesh.size
        self._pending: deque[tuple[int, StepMetrics]] = deque()
        # The checkpoint contains the sums since the last log record before `first_step`.
        self.window = run.checkpoints.window
        self._tokens_before = self.window.losses[2]  # of an earlier job, excluded from the speed
        self._compiled: set[tuple[int, ...]] = set()
        self._progress.enter(STEPS)
        self._before = self._begin = self._progress.seconds()

    def add(self, step: int, metrics: StepMetrics) -> None:
        """Keep the metrics of a step on the device, and read those of an earlier step.

        Raises:
          DivergedError: the loss or gradient was not finite in too many consecutive steps.
        """
        self._progress.launch(metrics)
        self._pending.append((step, metrics))
        if len(self._pending) > _LAG:
            self._read_one()

    def launching(self, shape: tuple[int, ...]) -> AbstractContextManager[None]:
        """Return the context for launching a step on a batch of this shape.

        JAX compiles the step at the first launch with each shape, which counts as compilation.
        """
        if shape in self._compiled:
            return self._progress.waiting()
        self._compiled.add(shape)
        return self.during(COMPILATION)

    def flush(self) -> None:
        """Read the metrics of pending steps, which waits for the device."""
        while self._pending:
            self._read_one()

    def logs(self, step: int) -> bool:
        """Return whether the log has a record of this step."""
        return step % self._config.log_every_steps == 0 or step == self._config.num_train_steps

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Read the metrics of pending steps, then count the time of a context as `phase`."""
        self.flush()
        with self._progress.during(phase):
            yield

    def _read_one(self) -> None:
        step, on_device = self._pending.popleft()
        with self._progress.waiting():
            metrics: StepMetrics = jax.device_get(on_device)
        self._count(metrics)
        self._log.step(step)
        if metrics.nonfinite_in_a_row >= self._config.max_nonfinite_steps:
            raise DivergedError(
                f"loss or gradient was not finite in {metrics.nonfinite_in_a_row} steps in a row, "
                f"up to step {step}; lower training.learning_rate_factor (or peak_learning_rate) "
                "or raise training.warmup_steps, and start again in another workdir"
            )
        if self.logs(step):
            self._record(step, metrics)

    def _count(self, metrics: StepMetrics) -> None:
        # float64 represents these sums of float32 exactly.
        losses = np.add(self.window.losses, metrics.losses, dtype=np.float64).tolist()
        pairs = {
            name: np.add(self.window.pairs.get(name, 0.0), pair, dtype=np.float64).tolist()
            for name, pair in metrics.pairs.items()
        }
        self.window = Window(losses, pairs)

    def _record(self, step: int, last_metrics: StepMetrics) -> None:
        now = self._progress.seconds()
        wait_seconds = now[DATA] - self._before[DATA]
        seconds = now[STEPS] - self._before[STEPS] + wait_seconds
        elapsed = sum(now[phase] - self._begin[phase] for phase in (STEPS, DATA))
        seconds_per_step, self._before = elapsed / (step - self._first_step), now
        smoothed, nll, tokens = self.window.losses
        metrics = {name: _mean(*pair) for name, pair in self.window.pairs.items()}
        losses = {"loss": metrics.pop(LOSS, _mean(smoothed, tokens))}
        if LOSS not in self.window.pairs:
            mean_nll = _mean(nll, tokens)
            losses |= {"nll": mean_nll, "perplexity": perplexity(mean_nll, np.exp)}
        if np.isfinite(last_metrics.learning_rate):
            losses["learning_rate"] = float(last_metrics.learning_rate)
        figures = losses | {
            "gradient_norm": float(last_metrics.gradient_norm),
            "target_tokens": tokens,
            "target_tokens_per_second": (tokens - self._tokens_before) / seconds,
            "step_seconds": seconds / (step - self._newest_record),
            "data_wait": min(1.0, wait_seconds / seconds),
            "devices": self._num_devices,
            "nonfinite_steps": int(last_metrics.nonfinite_total),
        }
        memory = {
            "host_memory_bytes": resident_memory(),
            "device_memory_bytes": peak_memory(jax.local_devices()),
        }
        figures |= {name: size for name, size in memory.items() if size is not None}
        seconds_left = seconds_per_step * (self._config.num_train_steps - step)
        self._log.training(step, figures, seconds_left, metrics)
        self.window, self._tokens_before, self._newest_record = Window(), 0.0, step


def _mean(total: float, weight: float) -> float:
    return total / weight if weight else math.nan
