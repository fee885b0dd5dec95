"""What a server translates with: the one seam between HTTP and the search."""

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol, runtime_checkable

from t2t_jax.decoding.alignments import Links
from t2t_jax.decoding.translations import Hypothesis


class Wanted(NamedTuple):
    """How sentences are translated."""

    num_best: int = 1
    """Translations of each sentence; more than one takes the beam's."""
    greedy: bool = False
    """Choose the most probable token each time, in place of a beam search."""
    max_tokens: int | None = None
    """The most tokens of a translation; None is the most there is room for."""
    client: Hashable = None
    """What the requests of one client have in common: they take turns with those of others."""
    request: Hashable = None
    """What the sentences of one request have in common: they take turns with those of others."""


class Load(NamedTuple):
    """How busy an engine is."""

    waiting: int
    """Sentences that wait."""
    under_way: int
    """Sentences that are being translated."""
    rows: int
    """Sentences that can be translated at a time."""


@runtime_checkable
class Engine(Protocol):
    """What translates the sentences of one language pair."""

    most_best: int
    """The most translations of a sentence."""

    def prepare(self, sentences: Sequence[str]) -> list[list[list[int]]]:
        """The tokens of each sentence: one list of ids, or several where it is too long to be one.

        Args:
          sentences: the sentences. A blank one has no list.

        Raises:
          UserError: a sentence is too long, and is not to be split.
        """

    def submit(
        self,
        tokens: list[int],
        wanted: Wanted,
        *,
        timeout: float,
        listener: Callable[[str], None] | None = None,
    ) -> "Future[list[Hypothesis]]":
        """Have a sentence translated; `cancel` of the future gives it up.

        Args:
          tokens: its ids, from `prepare`.
          wanted: how it is translated.
          timeout: seconds after which it is given up.
          listener: is told the text so far, of a greedy search.

        Raises:
          QueueFullError: too many sentences wait (`decoding.open_search`).
          ClosedError: the engine takes no more sentences (`decoding.open_search`).
        """

    def align(self, sources: Sequence[str], targets: Sequence[str]) -> list[Links] | None:
        """The links between words of sentences and translations; None where there are none.

        Args:
          sources: sentences.
          targets: a translation of each.
        """

    def confidence(self, hypothesis: Hypothesis) -> float:
        """The mean probability of a token of a translation, or what calibration makes of it.

        Args:
          hypothesis: the translation.
        """

    def load(self) -> Load:
        """How busy it is."""

    def warm_up(self) -> None:
        """Compile all that requests need."""

    def close(self) -> None:
        """Take no more sentences, and wait until those that were taken have ended."""
