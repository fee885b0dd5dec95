"""Record all hypotheses of a beam search, kept and dropped, as a tree (section 6.1)."""

from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from t2t_jax.batch import EOS_ID, padded
from t2t_jax.config import DecodingConfig
from t2t_jax.decoding.forbidden import constraints_of
from t2t_jax.decoding.programs import Arrivals, Search, SearchInputs, Sizes, begin_work, proceed
from t2t_jax.decoding.scheduler import length_bucket, strategy_of
from t2t_jax.decoding.search.hypotheses import LengthPenalty, SearchState
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError

Fate: TypeAlias = Literal["kept", "dropped", "ended"]
"""The fate of a hypothesis: the beam kept or dropped it, or it ended."""

_Tokens: TypeAlias = tuple[int, ...]
_LOWEST = -1e6  # a beam slot with a lower log-probability holds no hypothesis


class Node(NamedTuple):
    """A hypothesis of beam search after some step, with its score and fate."""

    log_prob: float
    """The log-probability of the hypothesis, in nats."""
    fate: Fate
    score: float | None
    """Log-probability / length penalty, if the hypothesis ended or was live at the last step."""


class BeamRecord(NamedTuple):
    """All hypotheses of a beam search."""

    nodes: dict[_Tokens, Node]
    """The hypotheses by their tokens, shorter ones first. A child has one more token."""
    winner: _Tokens
    """The tokens of the best hypothesis."""
    beam_size: int
    """The number of hypotheses that the beam keeps."""
    length_penalty: float
    """alpha: a score is log-probability / ((offset + length) / (offset + 1))^alpha."""
    offset: float
    """The offset in the formula of `length_penalty`."""


def record_search(translator: Translator, source: str, **overrides: Any) -> BeamRecord:
    """Translate a sentence by beam search and record all hypotheses.

    The search ignores constraints such as forbidden words.

    Args:
      overrides: fields of `DecodingConfig`, such as `beam_size`.

    Raises:
      UserError: the sentence is blank or too long, or the config samples tokens.
    """
    decoding = translator.configured(**overrides).decoding
    if decoding.temperature > 0:
        raise UserError("sampling keeps no beam to record; set temperature to 0")
    [tokens] = translator.encode([source])
    if len(tokens) < 2:
        raise UserError("the sentence is blank; give a text to translate")
    max_length = len(tokens) + decoding.max_extra_length
    if max_length > translator.longest_sentence:
        raise UserError(
            f"the sentence has {len(tokens)} subwords, and its translation may have {max_length}, "
            f"but the learned positions of the model allow {translator.longest_sentence}; shorten "
            "the sentence, or give a smaller max_extra_length"
        )
    length = length_bucket(len(tokens))
    capacity = length + decoding.max_extra_length
    strategy = strategy_of(decoding)
    penalty = LengthPenalty(decoding.length_penalty, strategy.penalty.offset)
    search = Search(translator.model, strategy, translator.mesh, 1)
    prefix = translator.vocabulary.target_begin  # the language tag of a multilingual model
    constraints = constraints_of(DecodingConfig(), translator.vocabulary)
    search_inputs = SearchInputs(translator.prepared(decoding.quantize), jnp.uint32(0), constraints)
    work = begin_work(search, Sizes(1, 1, length, capacity, capacity, len(prefix)), search_inputs)
    inputs = jnp.asarray(padded([tokens], 1, length))
    row_ids = jnp.zeros(1, jnp.int32)
    prefixes = jnp.array([prefix], jnp.int32) if prefix else None
    arrivals = Arrivals(row_ids, inputs, jnp.array([max_length]), row_ids, prefixes)
    log_probs: dict[_Tokens, float] = {}
    ended_keys: set[_Tokens] = set()
    for step in range(1, max_length + 1):
        work, progress = proceed(search, search_inputs, work, arrivals, jnp.int32(0), jnp.int32(1))
        # No sentence arrives after the first step: row index 1 is outside a batch of one row.
        arrivals = arrivals._replace(rows=row_ids + 1)
        state, progress = jax.device_get((work.state, progress))
        _record_step(log_probs, ended_keys, state, step)
        if not progress.searching[0]:
            break
    best = progress.best
    winner = tuple(best.tokens[0, 0, : best.lengths[0, 0]].tolist())
    ended_keys.add(winner)
    parents = {key[:-1] for key in log_probs}
    nodes = {}
    for key, log_prob in log_probs.items():
        fate: Fate = "kept" if key in parents else "ended" if key in ended_keys else "dropped"
        score = None
        if fate == "ended" or len(key) == step:  # or live when the search stopped
            score = log_prob / float(penalty(jnp.int32(len(key))))
        nodes[key] = Node(log_prob, fate, score)
    return BeamRecord(nodes, winner, decoding.beam_size, *penalty)


def _record_step(
    log_probs: dict[_Tokens, float], ended_keys: set[_Tokens], state: SearchState, step: int
) -> None:
    """Add the live and the ended hypotheses after a step, by their tokens."""
    live, finished = state.rows.live, state.rows.finished
    for tokens, log_prob in zip(live.tokens[0], live.log_probs[0].tolist(), strict=True):
        key = tuple(tokens[:step].tolist())
        # Greedy search, or a search whose hypotheses all ended, keeps an ended one as live.
        if log_prob > _LOWEST and key[-1] != EOS_ID:
            log_probs[key] = log_prob
    columns = finished.tokens[0], finished.log_probs[0].tolist(), finished.lengths[0].tolist()
    for tokens, log_prob, length in zip(*columns, strict=True):
        if log_prob > _LOWEST and length == step:
            key = tuple(tokens[:step].tolist())
            log_probs[key] = log_prob
            ended_keys.add(key)
