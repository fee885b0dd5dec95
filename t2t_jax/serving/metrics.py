"""The metrics of a server, in the format of Prometheus."""

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from t2t_jax.serving.engine import Load

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class ServerMetrics:
    """The counters of one server.

    Attributes:
      requests: requests that were answered, by route and status.
      seconds: the seconds that answers took, by route.
      lines: lines, or sentences, that were translated, by language pair.
      tokens: subwords, by language pair and side: `in` of sources, `out` of translations.
      abandoned: requests whose client went away before the answer.
      reloads: reloads of models, by outcome.
    """

    def __init__(self) -> None:
        """Make counters that begin at 0."""
        own = CollectorRegistry()
        self._registry = own
        self.requests = Counter(
            "t2t_requests", "Requests answered.", ["route", "status"], registry=own
        )
        self.seconds = Histogram(
            "t2t_request_seconds", "Time of an answer.", ["route"], buckets=_SECONDS, registry=own
        )
        self.lines = Counter("t2t_lines", "Sentences translated.", ["pair"], registry=own)
        self.tokens = Counter(
            "t2t_tokens", "Subwords read and written.", ["pair", "side"], registry=own
        )
        self.abandoned = Counter(
            "t2t_abandoned_requests", "Requests whose client went away.", registry=own
        )
        self.reloads = Counter("t2t_reloads", "Reloads of models.", ["outcome"], registry=own)
        abouts = {
            "waiting": ("t2t_sentences_waiting", "Sentences that wait for the search."),
            "under_way": ("t2t_rows_in_use", "Sentences that are being translated."),
            "rows": ("t2t_rows", "Sentences that can be translated at a time."),
        }
        self._loads = {
            field: Gauge(*about, ["pair"], registry=own) for field, about in abouts.items()
        }

    def watch(self, pair: str, load: Callable[[], Load]) -> None:
        """Show the present load of a language pair's engine whenever the metrics are read."""
        for field, gauge in self._loads.items():
            gauge.labels(pair).set_function(partial(lambda name: getattr(load(), name), field))

    def page(self) -> bytes:
        """Return all metrics, as text."""
        return generate_latest(self._registry)
