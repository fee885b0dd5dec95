"""Metrics of a training for Prometheus: process 0 serves the last figures of the log over HTTP."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from t2t_jax.errors import UserError, needs_extra
from t2t_jax.parallel.processes import is_main
from t2t_jax.run.preparing import Run

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
