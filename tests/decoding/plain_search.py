"""A search in plain Python, by the rules of this package or of another program.

It is written from the rules, one sentence at a time, and shares no code with the package. If two
programs find different hypotheses, it says which of their rules make the difference.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

PADDING, END = 0, 1
STARTS = {"padding": PADDING, "end": END, "begin": 2}
"""The ids of the possible starts of a target."""

Hypothesis: TypeAlias = tuple[list[int], float, float]
"""The ids with the prefix and the end, the score, and the log-probability."""
Found: TypeAlias = list[list[Hypothesis]]
"""The hypotheses of each sentence, best first."""
NextLogProbs: TypeAlias = Callable[[Sequence[int], Sequence[int]], np.ndarray]
"""`f(source, tokens)` returns the log-probabilities `[vocabulary]` of the next token."""


@dataclass(frozen=True)
class Rules:
    """The rules in which programs differ; the first value of each is that of this package.

    Attributes:
      stop: a search of a beam of k ends once k hypotheses have ended and no live one is better at
        its length ("improvable") or at the limit ("final"); once k have ended ("full"), or at the
        limit only ("limit"); or once as many as are asked for have ended, one of them as the best
        continuation ("top").
      renormalizes: whether probabilities are normalised over the allowed tokens: never, over those
        that are not in `forbidden`, or over those that all constraints allow.
      prefix: whether a prefix has its log-probability and its length, only its length, or neither.
      one_end: whether, after the prefixes, only the best continuation may end.
      start_counts: whether n-grams include the start of the target.
      dead_ends_live: whether a hypothesis with no allowed token ends, or is dropped.
      padding: whether padding is allowed where the settings do not forbid it.
      end_forbidden: whether the end can be among the forbidden subwords.
      greedy_penalty: whether a greedy search divides its score by the length penalty.
    """

    stop: Literal["improvable", "final", "full", "limit", "top"] = "improvable"
    renormalizes: Literal["never", "forbidden", "all"] = "never"
    prefix: Literal["scored", "counted", "prompt"] = "scored"
    one_end: bool = False
    start_counts: bool = False
    dead_ends_live: bool = True
    padding: bool = True
    end_forbidden: bool = False
    greedy_penalty: bool = False


class PlainSearch:
    """Searches of a case by any rules."""

    def __init__(self, case: Mapping[str, Any], next_log_probs: NextLogProbs) -> None:
        """Take a model, and a case with the fields of `tests/against/search/part.py`."""
        self._case, self._next = case, next_log_probs
        self.margin = math.inf
        """The smallest difference of log-probabilities or scores on which a choice depended."""
        self.dead_end = False
        """Whether a hypothesis had no allowed token."""

    def found(self, rules: Rules) -> Found:
        """Search for all sentences."""
        return [self._search(*sentence, rules) for sentence in self._case["sentences"]]

    def _search(
        self, source: Sequence[int], prefix: Sequence[int], rules: Rules
    ) -> list[Hypothesis]:
        """Return the hypotheses of a sentence, best first."""
        case, beam_size, limit = self._case, self._case["beam_size"], self._case["limit"]
        alpha = case["length_penalty"] if beam_size > 1 or rules.greedy_penalty else 0.0
        first = len(prefix) if rules.prefix == "prompt" else 0
        prefix = list(prefix[:limit])
        live, finished, top_ended = [(prefix, 0.0)], [], False
        if rules.prefix == "scored":
            rows = (self._allowed(source, prefix[:i], rules, free=True) for i in range(limit))
            live = [(prefix, sum(float(row[t]) for t, row in zip(prefix, rows, strict=False)))]
        if len(prefix) == limit:
            return [(prefix, live[0][1] / (limit - first) ** alpha, live[0][1])]
        for length in range(len(prefix) + 1, limit + 1):
            best = self._continuations(source, live, rules)
            if rules.one_end and length == len(prefix) + 1:
                best[1:] = [
                    ([*tokens[:-1], PADDING], -1e10) if tokens[-1] == END else (tokens, log_prob)
                    for tokens, log_prob in best[1:]
                ]
            penalty, is_last = (length - first) ** alpha, length == limit
            ended = [one for one in best[:beam_size] if one[0][-1] == END or is_last]
            finished += [(tokens, log_prob / penalty, log_prob) for tokens, log_prob in ended]
            finished.sort(key=lambda one: -one[1])
            top_ended |= bool(best) and best[0][0][-1] == END
            live = [one for one in best if one[0][-1] != END]
            self._choose([log_prob for _, log_prob in live], beam_size)
            live = live[:beam_size]
            final = (limit - first) ** alpha if rules.stop == "final" else penalty
            if not live or self._stops(rules, live[0][1] / final, finished, top_ended):
                break
        return [one for one in finished if one[2] > -1e8][: case["num_best"]]

    def _stops(self, rules: Rules, best_live: float, finished: list[Hypothesis], top: bool) -> bool:
        beam_size, stop = self._case["beam_size"], rules.stop
        if beam_size == 1:
            return bool(finished)
        if stop == "top":
            return top and len(finished) >= self._case["num_best"]
        if stop in ("full", "limit") or len(finished) < beam_size:
            return stop == "full" and len(finished) >= beam_size
        worst = finished[beam_size - 1][1]
        self.margin = min(self.margin, abs(best_live - worst))
        return best_live <= worst

    def _choose(self, numbers: Sequence[float], count: int) -> None:
        """Record how close the numbers are between which a choice of so many best ones is made."""
        if len(numbers) > count:
            self.margin = min(self.margin, numbers[count - 1] - numbers[count])

    def _continuations(
        self, source: Sequence[int], live: list[tuple[list[int], float]], rules: Rules
    ) -> list[tuple[list[int], float]]:
        beam_size = self._case["beam_size"]
        found = [
            ([*tokens, token], log_prob + float(more))
            for tokens, log_prob in live
            for token, more in enumerate(self._allowed(source, tokens, rules))
            if more > -math.inf
        ]
        found.sort(key=lambda one: -one[1])
        self._choose([log_prob for _, log_prob in found], beam_size)
        return found[: 1 if beam_size == 1 else 2 * beam_size]

    def _allowed(
        self, source: Sequence[int], tokens: Sequence[int], rules: Rules, free: bool = False
    ) -> np.ndarray:
        """Return the log-probabilities of the next tokens, with -inf where a rule forbids one.

        Args:
          free: whether constraints do not matter, as within a prefix.
        """
        case, size = self._case, self._case["no_repeat_ngram_size"]
        log_probs = self._next(source, tokens).copy()
        forbidden = [one for one in case["forbidden"] if one != END or rules.end_forbidden]
        if not rules.padding:
            forbidden.append(PADDING)
        if rules.renormalizes == "forbidden":
            log_probs[forbidden] = -math.inf
            log_probs -= np.logaddexp.reduce(log_probs)
        if free:
            return log_probs
        end = log_probs[END]
        log_probs[forbidden] = -math.inf
        if len(tokens) < case["min_length"]:
            log_probs[END] = -math.inf
        history = [*([STARTS[case["start"]]] if rules.start_counts else []), *tokens]
        newest = history[len(history) - size + 1 :]
        for place in range(len(history) - size + 1 if size else 0):
            if history[place : place + size - 1] == newest:
                log_probs[history[place + size - 1]] = -math.inf
        if np.isneginf(log_probs).all():
            self.dead_end = True
            log_probs[END] = end if rules.dead_ends_live else -math.inf
        elif rules.renormalizes == "all":
            log_probs -= np.logaddexp.reduce(log_probs)
        return log_probs
