"""The tree of a search's hypotheses, with those kept and dropped at each step (section 6.1)."""

from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from t2t_jax.batch import EOS_ID, padded
from t2t_jax.config import DecodingConfig
from t2t_jax.decoding.forbidden import constraints_of
from t2t_jax.decoding.programs import Arrivals, Search, SearchInputs, Sizes, begin_work, proceed
from t2t_jax.decoding.scheduler import length_bucket, strategy_of
from t2t_jax.decoding.search.hypotheses import SearchState, length_penalty
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError

Fate: TypeAlias = Literal["kept", "dropped", "ended"]
"""The fate of a hypothesis: the search kept it, or dropped it, or the hypothesis ended."""

_Tokens: TypeAlias = tuple[int, ...]
_POSSIBLE = -1e6  # lower log-probabilities stand for slots without a hypothesis


class Node(NamedTuple):
    """A hypothesis that a search has held after one of its steps."""

    log_prob: float
    """The log-probability of the hypothesis, in nats."""
    fate: Fate
    """The fate of the hypothesis: kept, dropped or ended."""
    score: float | None
    """Log-probability over length penalty, if the hypothesis ended or was live at the end."""


class BeamRecord(NamedTuple):
    """All hypotheses of a search."""

    nodes: dict[_Tokens, Node]
    """The hypotheses by their tokens, shorter ones first; a child has one token more."""
    winner: _Tokens
    """The tokens of the best hypothesis."""
    beam_size: int
    """The number of hypotheses kept at a time."""
    length_penalty: float
    """alpha: a score is the log-probability over ((offset + length) / (offset + 1))^alpha."""
    offset: float
    """The offset in the formula of `length_penalty`."""


def record_search(translator: Translator, source: str, **overrides: Any) -> BeamRecord:
    """Search for a translation as `Translator.translate` does, and record all hypotheses.

    Constraints of the decoding (forbidden words and the like) are not recorded. The overrides are
    fields of `DecodingConfig`, such as `beam_size`.

    Raises:
      UserError: the sentence is blank, or too long for the learned positions of the model, or
        tokens are drawn at random.
    """
    decoding = translator.configured(**overrides).decoding
    if decoding.temperature > 0:
        raise UserError("a search that draws tokens at random keeps no beam to record")
    [tokens] = translator.encode([source])
    if len(tokens) < 2:
        raise UserError("a blank sentence has nothing to search for; give a text")
    limit = len(tokens) + decoding.max_extra_length
    if limit > translator.longest_sentence:
        raise UserError(
            f"the sentence has {len(tokens)} subwords, and its translation may have {limit}, but "
            f"the learned positions of the model allow {translator.longest_sentence}; give a part "
            "of it, or a smaller max_extra_length"
        )
    length = length_bucket(len(tokens))
    room = length + decoding.max_extra_length
    strategy = strategy_of(decoding)
    penalty = decoding.length_penalty, strategy.offset
    search = Search(translator.model, strategy, translator.mesh, 1)
    begin = translator.vocabulary.target_begin  # the language, if it is marked
    given = constraints_of(DecodingConfig(), translator.vocabulary)
    search_inputs = SearchInputs(translator.prepared(decoding.quantize), jnp.uint32(0), given)
    work = begin_work(search, Sizes(1, 1, length, room, room, len(begin)), search_inputs)
    inputs = jnp.asarray(padded([tokens], 1, length))
    first = jnp.zeros(1, jnp.int32)
    prefixes = jnp.array([begin], jnp.int32) if begin else None
    arrivals = Arrivals(first, inputs, jnp.array([limit]), first, prefixes)
    log_probs: dict[_Tokens, float] = {}
    ended: set[_Tokens] = set()
    for step in range(1, limit + 1):
        work, progress = proceed(search, search_inputs, work, arrivals, jnp.int32(0), jnp.int32(1))
        # From the second step on no sentence arrives: row 1 of 1 is no row.
        arrivals = arrivals._replace(rows=first + 1)
        state, progress = jax.device_get((work.state, progress))
        _note(log_probs, ended, state, step)
        if not progress.searching[0]:
            break
    best = progress.best
    winner = tuple(best.tokens[0, 0, : best.lengths[0, 0]].tolist())
    ended.add(winner)
    parents = {key[:-1] for key in log_probs}
    nodes = {}
    for key, log_prob in log_probs.items():
        fate: Fate = "kept" if key in parents else "ended" if key in ended else "dropped"
        score = None
        if fate == "ended" or len(key) == step:  # ended, or live when the search stopped
            score = log_prob / float(length_penalty(jnp.int32(len(key)), *penalty))
        nodes[key] = Node(log_prob, fate, score)
    return BeamRecord(nodes, winner, decoding.beam_size, *penalty)


def _note(
    log_probs: dict[_Tokens, float], ended: set[_Tokens], state: SearchState, step: int
) -> None:
    """Add the hypotheses after a step."""
    live, finished = state.rows.live, state.rows.finished
    for tokens, log_prob in zip(live.tokens[0], live.log_probs[0].tolist(), strict=True):
        key = tuple(tokens[:step].tolist())
        # A greedy search, and one whose hypotheses have all ended, holds an ended one as live.
        if log_prob > _POSSIBLE and key[-1] != EOS_ID:
            log_probs[key] = log_prob
    columns = finished.tokens[0], finished.log_probs[0].tolist(), finished.lengths[0].tolist()
    for tokens, log_prob, length in zip(*columns, strict=True):
        if log_prob > _POSSIBLE and length == step:
            key = tuple(tokens[:step].tolist())
            log_probs[key] = log_prob
            ended.add(key)
