"""The command `serve`: serve translations over HTTP."""

from dataclasses import dataclass
from typing import ClassVar

from t2t_jax.commands.model_flags import DecodingFlags
from t2t_jax.errors import UserError, needs_extra

_MAX = 10**9


@dataclass(frozen=True)
class ServeCommand(DecodingFlags):
    """Serve translations over HTTP: POST /translate with JSON, or use the web page.

    At the first SIGTERM or SIGINT, the server finishes its active requests and exits.
    """

    examples: ClassVar = ("runs/en-de", "runs/en-de --host 0.0.0.0 --port 8000")
    command: ClassVar = "serve"
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 is every network interface."""
    port: int = 5000
    """Port to listen on; 0 is any free port."""
    rows: int = 16
    """Sentences per batch."""
    longest: int = 256
    """Maximum number of subwords of a sentence that is translated as a whole."""
    max_body_bytes: int = 2**20
    """Maximum bytes of a request body; a larger body gets status 413."""
    max_waiting: int = 4096
    """Maximum number of waiting sentences; a request beyond this limit gets status 429."""
    timeout: float = 60.0
    """Request timeout in seconds; after it, the request gets status 504 and is canceled."""

    def run(self) -> int:
        """Serve until a signal arrives, and return the exit code."""
        minima = {"port": 0, "rows": 1, "longest": 1, "max_body_bytes": 1, "max_waiting": 1}
        for name, low in {**minima, "timeout": 0.001}.items():
            value, high = getattr(self, name), 65535 if name == "port" else _MAX
            if not low <= value <= high:  # also refuses nan
                flag = name.replace("_", "-")
                raise UserError(f"--{flag} {value} is outside [{low}, {high:,}]; choose another")
        with needs_extra("serve", "the server"):
            from t2t_jax.extras.serving import engine, server
        with server.bind_socket(self.host, self.port) as sock:
            url = server.url_of(sock)
            request_engine = engine.Engine(
                self.load(),
                self.decoding,
                rows=self.rows,
                max_length=self.longest,
                max_waiting=self.max_waiting,
                seed=self.seed,
            )
            request_engine.warm_up()
            source, target = request_engine.languages
            server.log_requests()
            application = server.Application(
                request_engine, max_body_bytes=self.max_body_bytes, timeout=self.timeout
            )
            return server.serve(
                application.app,
                sock,
                self.timeout,
                lambda: print(f"translates {source} to {target} at {url}", flush=True),
            )
