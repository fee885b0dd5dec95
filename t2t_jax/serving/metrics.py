"""The metrics of a server, in the format of Prometheus."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

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

    def watch(self, loads: Callable[[], Mapping[str, Load]]) -> None:
        """Show the present loads of engines whenever the metrics are read.

        Args:
          loads: returns the load of each language pair's engine, by the name of the pair.
        """
        self._registry.register(_Loads(loads))

    def page(self) -> bytes:
        """Return all metrics, as text."""
        return generate_latest(self._registry)


class _Loads(Collector):
    def __init__(self, loads: Callable[[], Mapping[str, Load]]) -> None:
        self._loads = loads

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Yield the numbers of sentences that wait or are under way, and of rows, at present."""
        abouts = {
            "waiting": ("t2t_sentences_waiting", "Sentences that wait for the search."),
            "under_way": ("t2t_rows_in_use", "Sentences that are being translated."),
            "rows": ("t2t_rows", "Sentences that can be translated at a time."),
        }
        loads = self._loads()
        for field, (name, about) in abouts.items():
            gauge = GaugeMetricFamily(name, about, labels=["pair"])
            for pair, load in loads.items():
                gauge.add_metric([pair], getattr(load, field))
            yield gauge
