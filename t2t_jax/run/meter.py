"""The metrics of steps: read them without making the device wait, log their means, and serve them.

Process 0 serves the last figures of the log to Prometheus over HTTP.
"""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import jax
import numpy as np

from t2t_jax.errors import DivergedError, UserError, needs_extra
from t2t_jax.parallel.devices import peak_memory
from t2t_jax.parallel.processes import is_main
from t2t_jax.run.preparing import Run
from t2t_jax.run.progress import COMPILATION, DATA, STEPS
from t2t_jax.system.host import resident_memory
from t2t_jax.tasks.measures.perplexity import perplexity
from t2t_jax.training.step import StepMetrics

# The metrics of so many newest steps stay on the device. The host waits for older ones only, so the
# device always has a step to go on with.
_LAG = 2


class StepMeter:
    """A meter of means and rates of the steps since the last record of the log.

    Attributes:
      window: the sums since that record: smoothed loss, loss, target tokens.
    """

    def __init__(self, run: Run, first_step: int) -> None:
        """Start measuring the steps after `first_step`."""
        self._log, self._progress, self._config = run.log, run.progress, run.config.training
        self._first_step = self._newest_record = first_step
        self._num_devices = run.mesh.size
        self._pending: deque[tuple[int, StepMetrics]] = deque()
        # Begin with the sums of the meter that measured the steps up to `first_step`.
        self.window = np.asarray(run.checkpoints.window, np.float64)
        self._tokens_before = self.window[2]  # of an earlier job, in no speed of this one
        self._compiled: set[tuple[int, ...]] = set()
        self._progress.enter(STEPS)
        self._before = self._begin = self._progress.seconds()

    def add(self, step: int, metrics: StepMetrics) -> None:
        """Keep the metrics of a step on the device, and read those of an earlier step.

        Raises:
          DivergedError: too many steps in a row were not finite.
        """
        self._progress.launch(metrics)
        self._pending.append((step, metrics))
        if len(self._pending) > _LAG:
            self._read_one()

    def launching(self, shape: tuple[int, ...]) -> AbstractContextManager[None]:
        """Return a context in which to launch a step, so that compilation counts for no step.

        JAX compiles a step when it is first launched on a batch of its shape.
        """
        if shape in self._compiled:
            return self._progress.waiting()
        self._compiled.add(shape)
        return self.during(COMPILATION)

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Return a context whose time counts for no step; all metrics are read before it begins."""
        while self._pending:
            self._read_one()
        with self._progress.during(phase):
            yield

    def _read_one(self) -> None:
        step, on_device = self._pending.popleft()
        with self._progress.waiting():
            metrics: StepMetrics = jax.device_get(on_device)
        # Exact: these sums of float32 fit in float64.
        self.window = self.window + np.asarray(metrics.losses, np.float64)
        self._log.step(step)
        if metrics.nonfinite_in_a_row >= self._config.max_nonfinite_steps:
            raise DivergedError(
                f"loss or gradient was not finite in {metrics.nonfinite_in_a_row} steps in a row, "
                f"up to step {step}; lower training.learning_rate_factor (or peak_learning_rate) "
                "or raise training.warmup_steps, and start again in another workdir"
            )
        if step % self._config.log_every_steps == 0 or step == self._config.num_train_steps:
            self._record(step, metrics)

    def _record(self, step: int, last: StepMetrics) -> None:
        now = self._progress.seconds()
        waited = now[DATA] - self._before[DATA]
        seconds = now[STEPS] - self._before[STEPS] + waited
        so_far = sum(now[phase] - self._begin[phase] for phase in (STEPS, DATA))
        per_step, self._before = so_far / (step - self._first_step), now
        smoothed, nll, tokens = self.window
        figures = {
            "loss": smoothed / tokens,
            "nll": nll / tokens,
            "perplexity": perplexity(nll / tokens, np.exp),
            "learning_rate": float(last.learning_rate),
            "gradient_norm": float(last.gradient_norm),
            "target_tokens": tokens,
            "target_tokens_per_second": (tokens - self._tokens_before) / seconds,
            "step_seconds": seconds / (step - self._newest_record),
            "data_wait": min(1.0, waited / seconds),
            "devices": self._num_devices,
            "nonfinite_steps": int(last.nonfinite_total),
        }
        memory = {
            "host_memory_bytes": resident_memory(),
            "device_memory_bytes": peak_memory(jax.local_devices()),
        }
        figures |= {name: size for name, size in memory.items() if size is not None}
        left = per_step * (self._config.num_train_steps - step)
        self._log.training(step, figures, seconds_left=left)
        self.window, self._tokens_before, self._newest_record = np.zeros(3), 0.0, step


# Help texts of figures; those of the log have their names there.
_GAUGES = {
    "step": "Newest step whose metrics were read.",
    "seconds_since_checkpoint": "Seconds since the state was last saved, or since the start.",
    "loss": "Label-smoothed loss of a target token, mean of the last line of the log.",
    "target_tokens_per_second": "Target tokens a second, in the last line of the log.",
    "step_seconds": "Seconds of a step, mean of the last line of the log.",
    "host_memory_bytes": "Memory of process 0 on its host, at the last line of the log.",
    "device_memory_bytes": "Peak memory of a device of process 0, at the last line of the log.",
}


class TrainingMetrics:
    """A collector of Prometheus; it has no metrics before it has a run."""

    run: Run | None = None

    def collect(self) -> Iterator[Any]:
        """Yield the gauges with their present values."""
        from prometheus_client.core import GaugeMetricFamily

        if self.run is None:
            return
        training = self.run.log.history.training
        figures = (training[-1] if training else {}) | {
            "step": self.run.log.newest_step,
            "seconds_since_checkpoint": time.time() - self.run.job.saved,
        }
        for name, text in _GAUGES.items():
            if (value := figures.get(name)) is not None:
                yield GaugeMetricFamily(f"t2t_jax_{name}", text, value)


@contextmanager
def serving_metrics(port: int | None) -> Iterator[TrainingMetrics]:
    """Serve metrics in a thread of process 0 within a block.

    Args:
      port: the port of the server; None serves nothing.

    Raises:
      UserError: in process 0, which cannot use the port.
    """
    metrics = TrainingMetrics()
    if port is None or not is_main():
        yield metrics
        return
    with needs_extra("train", "--metrics-port"):
        from prometheus_client import CollectorRegistry, start_http_server
    registry = CollectorRegistry()
    registry.register(metrics)
    try:
        server, _ = start_http_server(port, registry=registry)
    except (OSError, OverflowError) as error:
        raise UserError(
            f"--metrics-port {port} cannot be used ({error}); give another port"
        ) from error
    # Else a client that resets its connection prints a traceback.
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    try:
        yield metrics
    finally:
        server.shutdown()
        server.server_close()
