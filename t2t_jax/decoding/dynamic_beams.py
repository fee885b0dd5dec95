"""Beam search for outputs that contain wanted terms: dynamic beam allocation.

The most probable hypotheses are seldom those that have most of the wanted terms, which are what the
model would not say by itself. So hypotheses compete only with those that have as many tokens of the
terms as they, in one of the banks of the beam, and the places of the beam are shared among the
banks (Post and Vilar 2018, "Fast Lexically Constrained Decoding with Dynamic Beam Allocation for
Neural Machine Translation"). For every hypothesis, the tokens that begin a term or go on with one
are candidates, however improbable they are.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32

from t2t_jax.decoding.hypotheses import IMPOSSIBLE, Hypotheses, is_possible, take_hypotheses
from t2t_jax.decoding.strategies import BeamSearch, Extended, Given, normalizer_of
from t2t_jax.decoding.top_k import top_k
from t2t_jax.decoding.wanted_terms import advancing, follow_terms, num_met

_LAST = -(2.0**24)  # below the order of any candidate


class _Candidates(NamedTuple):
    """Continuations of the live hypotheses by one token."""

    slots: Int32[Array, "b n"]
    """The slot of the hypothesis that each continues."""
    tokens: Int32[Array, "b n"]
    """The token."""
    log_probs: Float32[Array, "b n"]
    """The log-probability of the whole, in nats."""
    banks: Int32[Array, "b n"]
    """The bank that each belongs to."""


@dataclass(frozen=True)
class DynamicBeamSearch(BeamSearch):
    """The strategy that shares the beam among hypotheses with few and with many wanted terms.

    The best hypothesis without any of the terms is kept, then the best one of every other bank,
    from that with the most tokens down; then the second of every bank, and so on. Where no terms
    are wanted, the strategy is beam search. Only hypotheses with all terms end.
    """

    def extend(self, given: Given) -> Extended:
        """Extend the hypotheses of each sentence, and keep some of each bank."""
        rows, live, constraints = given.state.rows, given.state.rows.live, given.constraints
        assert rows.terms is not None
        assert live.terms is not None
        assert constraints is not None
        assert constraints.boundaries is not None
        is_beginning = given.state.positions == constraints.num_told
        active = advancing(rows.terms, live.terms, constraints.boundaries, live.last, is_beginning)
        found, ranks = _ranked(_candidates(given, active))
        possible, is_end = is_possible(found.log_probs), found.tokens == self.eos_id
        entering = possible & is_end & (ranks < self.num_entering)
        # The first of each bank, then the second, and so on.
        num_banks = rows.terms.tokens.shape[1] + 1
        turn = jnp.where((found.banks == 0) & (ranks == 0), 0, num_banks - found.banks)
        order = jnp.minimum(ranks, 2 * self.beam_size) * num_banks + turn
        order = jnp.where(possible & ~is_end, -order, _LAST)
        ending = jnp.where(entering, found.log_probs, IMPOSSIBLE)
        kept = [jax.lax.top_k(x, self.beam_size) for x in (ending, order.astype(jnp.float32))]
        goes_on = kept[1][0] > _LAST
        chosen = _taken(given, found, jnp.concatenate([kept[0][1], kept[1][1]], axis=1), active)
        live = jax.tree.map(lambda x: x[:, self.beam_size :], chosen)
        live = live._replace(log_probs=jnp.where(goes_on, live.log_probs, IMPOSSIBLE))
        ended = jnp.concatenate([is_possible(kept[0][0]), jnp.zeros_like(goes_on)], axis=1)
        return self.kept(given, chosen, ended, live)


def _candidates(given: Given, active: Bool[Array, "b k c"]) -> _Candidates:
    """Return the best free continuations of each hypothesis, and all that advance a term."""
    terms, live = given.state.rows.terms, given.state.rows.live
    assert terms is not None
    assert live.terms is not None
    batch_size, beam_size, vocab_size = given.logits.shape
    own = jnp.broadcast_to(terms.tokens[:, None], active.shape)
    places = jnp.where(active, own, vocab_size)
    best, free_tokens = top_k(given.choices, min(2 * beam_size, vocab_size))
    advances = jnp.any(free_tokens[..., None] == places[:, :, None], axis=-1)
    best = jnp.where(advances, -jnp.inf, best)  # these are among the others
    # Several places may have the same token: it is one candidate, in the highest of their banks.
    same = (places[..., :, None] == places[..., None, :]) & active[..., None]  # [b, k, c, c]
    gains = jnp.max(jnp.where(same, terms.gains[:, None, None], 0), axis=-1)
    first = active & ~jnp.any(jnp.tril(same, -1), axis=-1)
    ways = jnp.take_along_axis(given.choices, jnp.maximum(own, 0), axis=2)
    best = jnp.concatenate([best, jnp.where(first, ways, -jnp.inf)], axis=2)
    best += (live.log_probs - normalizer_of(given))[:, :, None]
    tokens = jnp.concatenate([free_tokens, own], axis=2)
    banks = num_met(terms, live.terms)[..., None]
    banks += jnp.concatenate([jnp.zeros_like(free_tokens), gains], axis=2)
    slots = jnp.broadcast_to(jnp.arange(beam_size)[:, None], tokens.shape)
    flat = (batch_size, -1)
    columns = slots, tokens, jnp.maximum(best, IMPOSSIBLE), banks
    return _Candidates(*(x.reshape(flat) for x in columns))


def _ranked(found: _Candidates) -> tuple[_Candidates, Int32[Array, "b n"]]:
    """Return candidates in the order of banks, the best first in each, and their ranks there."""
    count = found.banks.shape[1]
    # Two sorts by one number are faster on CPUs than one by two; equal ones stay in their order.
    found = _sorted(found, found.log_probs)
    found = _sorted(found, -found.banks.astype(jnp.float32))
    places = jnp.broadcast_to(jnp.arange(count), found.banks.shape)
    begins = found.banks != jnp.pad(found.banks, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    return found, places - jax.lax.cummax(jnp.where(begins, places, 0), axis=1)


def _sorted(found: _Candidates, key: Float32[Array, "b n"]) -> _Candidates:
    """Return candidates in falling order of a key."""
    order = jax.lax.top_k(key, key.shape[1])[1]
    return jax.tree.map(lambda x: jnp.take_along_axis(x, order, axis=1), found)


def _taken(
    given: Given, found: _Candidates, kept: Int32[Array, "b m"], active: Bool[Array, "b k c"]
) -> Hypotheses:
    """Return the hypotheses of some candidates, with their tokens written at `place`."""
    live, terms = given.state.rows.live, given.state.rows.terms
    assert terms is not None
    slots, last, log_probs = (
        jnp.take_along_axis(x, kept, axis=1) for x in (found.slots, found.tokens, found.log_probs)
    )
    taken, own = take_hypotheses((live, active), slots)
    tokens = jax.lax.dynamic_update_index_in_dim(taken.tokens, last, given.place, axis=2)
    states = follow_terms(terms, taken.terms, own, last)
    return taken._replace(last=last, tokens=tokens, log_probs=log_probs, terms=states)
