"""Metrics of a training for Prometheus: process 0 serves the last figures of the log over HTTP."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from threading import Thread

from t2t_jax.errors import UserError
from t2t_jax.parallel.processes import is_main, of_main
from t2t_jax.run.preparing import Run

# Help texts of figures of the log, by their names there.
_GAUGES = {
    "loss": "Label-smoothed loss of a target token, mean of the last line of the log.",
    "target_tokens_per_second": "Target tokens a second, in the last line of the log.",
    "step_seconds": "Seconds of a step, mean of the last line of the log.",
    "host_memory_bytes": "Memory of process 0 on its host, at the last line of the log.",
    "device_memory_bytes": "Peak memory of a device of process 0, at the last line of the log.",
}


class MetricsServer(ThreadingTCPServer):
    """A server of GET /metrics."""

    allow_reuse_address = daemon_threads = True
    run: Run | None = None


@contextmanager
def serving_metrics(port: int | None) -> Iterator[MetricsServer | None]:
    """Serve metrics in a thread of process 0 within a block; all processes enter it.

    Args:
      port: the port of the server; None serves nothing.

    Raises:
      UserError: in all processes, if process 0 cannot use the port.
    """
    server, problem = None, ""
    if port is not None and is_main():
        try:
            server = MetricsServer(("0.0.0.0", port), _Handler)
        except (OSError, OverflowError) as error:
            problem = f"--metrics-port {port} cannot be used ({error}); give another port"
    if of_main(int(bool(problem))):
        raise UserError(problem or f"process 0 cannot use --metrics-port {port}; see its error")
    if server is None:
        yield None
        return
    Thread(target=server.serve_forever, daemon=True, name="metrics").start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    timeout = 10.0  # seconds that a connection may be silent

    def handle(self) -> None:
        with suppress(ConnectionError):  # a client that has left would print a traceback
            super().handle()

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        text = _metrics_text(self.server.run).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def _metrics_text(run: Run | None) -> str:
    """Format the metrics; empty before the run is ready."""
    if run is None:
        return ""
    record = run.log.history.training[-1] if run.log.history.training else {}
    metrics = [
        ("step", "Newest step whose metrics were read.", run.log.newest_step),
        (
            "seconds_since_checkpoint",
            "Seconds since the state was last saved, or since the start.",
            time.time() - run.job.saved,
        ),
        *((name, text, record.get(name)) for name, text in _GAUGES.items()),
    ]
    return "".join(
        f"# HELP t2t_jax_{name} {text}\n# TYPE t2t_jax_{name} gauge\nt2t_jax_{name} {value}\n"
        for name, text, value in metrics
        if value is not None
    )
