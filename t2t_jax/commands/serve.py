"""The command that serves translations over HTTP."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import tyro

from t2t_jax.commands.flag_table import Runs
from t2t_jax.commands.groups import check_command
from t2t_jax.commands.model_flags import LoadFlags
from t2t_jax.commands.tables import print_line
from t2t_jax.config.sections import Quantize
from t2t_jax.errors import UserError, needs_extra
from t2t_jax.serving.settings import Bounds, Split

_MOST = 10**9
"""The greatest value of any bound of a server."""

if TYPE_CHECKING:
    from t2t_jax.serving.searches import Searches
    from t2t_jax.serving.service import ServedModel as _ServedModel


@dataclass(frozen=True)
class ServeCommand(LoadFlags):
    """Serve translations over HTTP, with the API of LibreTranslate and a page to type into.

    Several runs are several language pairs, and a run of many languages, as of NLLB, is every pair
    of these. SIGTERM finishes the requests under way and ends;
    SIGHUP loads the newest checkpoints.
    """

    examples: ClassVar = (
        "runs/en-de runs/de-en --port 8000",
        "runs/en-de --host 0.0.0.0 --api-keys keys.txt",
    )
    workdir: Runs = tyro.MISSING
    """Directories of the runs, each for another language pair; a request for a pair that several
    have is translated by the first of these."""
    host: str = "127.0.0.1"
    """Address to listen at; 0.0.0.0 is every interface of the machine."""
    port: int = 5000
    """Port to listen at; 0 is any that is free."""
    beam_size: int | None = None
    """Number of hypotheses of the search; None is the run's."""
    quantize: Quantize | None = None
    """Make weights integers of 8 bits; None is the run's setting."""
    long_lines: Literal["split", "refuse"] | None = None
    """Split a sentence that is too long at punctuation, or refuse it; None is the run's setting."""
    split: Split = "sentences"
    """Unit of translation, unless a request names one: each sentence, or each line as it is."""
    rows: int = 16
    """Number of sentences of a group that are translated together; one device has two groups."""
    most_steps: int = 8
    """Most positions that a search advances before waiting sentences may join."""
    longest: int = 256
    """Most subwords of a sentence that is translated as a whole."""
    glossaries: Literal["no", "yes"] = "no"
    """Whether requests may have glossaries, for which there is one search more."""
    warm_up: Literal["all", "none"] = "all"
    """Compile all programs before the first request; with none, requests wait for compiling."""
    bounds: Annotated[Bounds, tyro.conf.arg(name="")] = field(default_factory=Bounds)
    api_keys: Path | None = None
    """File with an API key in each line; None admits everybody."""
    cors: tuple[str, ...] = ()
    """Origins of other web pages that may call the server, as https://example.org."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks of reverse proxies, as 127.0.0.1 or 10.0.0.0/8, whose X-Forwarded-For
    names the client; by default no proxy is trusted."""
    log_texts: Literal["no", "yes"] = "no"
    """Whether the texts of requests are written to the log."""

    def run(self) -> int:
        """Serve until a signal comes, and return the exit code."""
        self._check()
        with needs_extra("serve", "the server"):
            from t2t_jax.serving import server
        from t2t_jax.serving.access import Access
        from t2t_jax.serving.answers import Answers
        from t2t_jax.serving.app import Server
        from t2t_jax.serving.languages import Languages
        from t2t_jax.serving.metrics import ServerMetrics
        from t2t_jax.serving.service import ServedModel

        runs, bounds = self._runs(), self.bounds
        access = Access(self.api_keys, bounds.requests_per_minute)
        bound = server.bound_socket(self.host, self.port)
        server.write_log()

        def make() -> "Server":
            models = [ServedModel(*pair, self._engine(run), bounds) for pair, run in runs.items()]
            answers = Answers(Languages(models), bounds, ServerMetrics(), self.split)
            return Server(answers, access, self.cors, self.log_texts == "yes")

        def load(model: "_ServedModel") -> "Searches":
            return self._engine(runs[model.source, model.target])

        def ready() -> None:
            pairs = ", ".join(f"{one} to {to}" for one, to in runs)
            print_line(f"translates {pairs} at {server.address_of(bound)}")

        return server.run_server(make, bound, bounds, load, ready, self.trusted_proxies)

    def _check(self) -> None:
        """Refuse a number outside its bounds, and a trusted proxy that is no address."""
        for name, value, low, high in self._numbers():
            if not low <= value <= high:  # refuses nan too
                flag = name.replace("_", "-")
                raise UserError(f"--{flag} {value} is outside [{low}, {high:,}]; choose another")
        for proxy in self.trusted_proxies:
            try:
                ip_network(proxy)
            except ValueError as error:
                raise UserError(
                    f"--trusted-proxies {proxy}: {error}; give an address, or a network as "
                    "10.0.0.0/8"
                ) from error

    def _numbers(self) -> Iterator[tuple[str, float, float, float]]:
        """Yield the names of flags that are numbers, with their values, minima and maxima."""
        yield "port", self.port, 0, 65535
        for name in ("rows", "most_steps", "longest"):
            yield name, getattr(self, name), 1, _MOST
        if self.beam_size is not None:
            yield "beam_size", self.beam_size, 1, _MOST
        least = {"requests_per_minute": 0, "timeout": 0.001}
        for name, value in vars(self.bounds).items():
            yield name, value, least.get(name, 1), _MOST

    def _runs(self) -> dict[tuple[str, str], Path]:
        """Return the runs by their source and target languages, of which no two have the same."""
        from t2t_jax.workdir import read_config

        found: dict[tuple[str, str], Path] = {}
        check_command("serve", self.workdir)
        for run in self.workdir:
            data = read_config(run).data
            pair = data.source_language.lower(), data.target_language.lower()
            if pair in found:
                raise UserError(
                    f"{found[pair]} and {run} both translate {' to '.join(pair)}; name one of them"
                )
            found[pair] = run
        return found

    def _engine(self, run: Path) -> "Searches":
        """Load a run, and return its searches, ready for requests."""
        from t2t_jax.decoding.open_search import Limits
        from t2t_jax.run.calibration import read_calibration
        from t2t_jax.run.loading import load
        from t2t_jax.serving.searches import Searches

        translator = load(run, average=self.average, step=self.step, parallel=self.parallel)
        given = {name: getattr(self, name) for name in ("beam_size", "quantize", "long_lines")}
        overrides = {name: value for name, value in given.items() if value is not None}
        decoding = translator.configured(**overrides).decoding
        waiting = self.bounds.max_waiting
        limits = Limits(self.rows, self.longest, self.most_steps, waiting)
        calibration = read_calibration([run], translator)
        has_terms = self.glossaries == "yes"
        engine = Searches(translator, decoding, limits, calibration, has_terms=has_terms)
        if self.warm_up == "all":
            engine.warm_up()
        return engine
