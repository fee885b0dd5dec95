"""The interface between a server and the search with which it translates."""

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol, runtime_checkable

from t2t_jax.data.terms import Term
from t2t_jax.decoding.translations import Hypothesis
from t2t_jax.decoding.wanted_terms import WantedTerm
from t2t_jax.markup.projection import Links


class Wanted(NamedTuple):
    """The settings with which a request has its sentences translated."""

    num_best: int = 1
    """Number of translations of each sentence; more than one are those of a beam search."""
    greedy: bool = False
    """Whether to choose the most probable token each time, in place of a beam search."""
    max_tokens: int | None = None
    """The most tokens of a translation; None is the most there is room for."""
    client: Hashable = None
    """The client that sent the request; clients take turns."""
    request: Hashable = None
    """The request that the sentences belong to; the requests of a client take turns."""
    terms: tuple[WantedTerm, ...] = ()
    """Terms that a translation has to contain, from `Engine.terms`."""


class Load(NamedTuple):
    """The load of an engine."""

    waiting: int
    """Number of sentences that wait."""
    under_way: int
    """Number of sentences that are being translated."""
    rows: int
    """Number of sentences that can be translated at a time."""


class ModelLanguages(NamedTuple):
    """The languages of a model, each by its code."""

    sources: Sequence[str]
    """The languages of sources."""
    targets: Sequence[str]
    """The languages of translations."""


@runtime_checkable
class Engine(Protocol):
    """An engine that translates the sentences of one language pair.

    Where a model has several languages, `between` gives the engine of any other pair.
    """

    most_best: int
    """The most translations of a sentence."""
    languages: ModelLanguages | None
    """The languages of a model that is told them by marks; None if the model has one pair."""
    marks_terms: bool
    """Whether sentences may have terms with their translations behind them (`data.terms`)."""

    def between(self, source: str, target: str) -> "Engine":
        """Return the engine of another pair, whose sentences join the same searches.

        Args:
          source: the code of one of the languages of sources.
          target: the code of one of the languages of translations.
        """

    def prepare(self, sentences: Sequence[str]) -> list[list[list[int]]]:
        """Encode each sentence as one list of ids, or as several if it is too long for one.

        A blank sentence has no list.

        Raises:
          UserError: a sentence is too long, and the settings refuse it.
        """

    def submit(
        self,
        tokens: list[int],
        wanted: Wanted,
        *,
        timeout: float,
        listener: Callable[[str], None] | None = None,
    ) -> "Future[list[Hypothesis]]":
        """Submit a sentence for translation; `cancel` of the future gives the sentence up.

        Args:
          tokens: ids of the sentence, from `prepare`.
          wanted: the settings of the translation.
          timeout: seconds after which the sentence is given up.
          listener: is called with the text so far of a greedy search.

        Raises:
          QueueFullError: too many sentences wait (`decoding.open_search`).
          ClosedError: the engine takes no more sentences (`decoding.open_search`).
        """

    def terms(self, terms: Sequence[Term]) -> tuple[WantedTerm, ...] | None:
        """Spell the terms that a translation has to contain.

        None says that the engine has no search for that, or that they are too many for it.
        """

    def spells(self, text: str) -> bool:
        """Return whether the vocabulary can spell a translation."""

    def align(self, sources: Sequence[str], targets: Sequence[str]) -> list[Links] | None:
        """Align the words of sentences and their translations; return None if the engine cannot."""

    def confidence(self, hypothesis: Hypothesis) -> float:
        """Return the mean (geometric) of the tokens' probabilities, or if calibrated, chrF."""

    def load(self) -> Load:
        """Return how busy the engine is."""

    def warm_up(self) -> None:
        """Compile all programs that requests need."""

    def close(self) -> None:
        """Take no more sentences, and wait until those that were taken have ended."""
