"""Search for an output sequence: greedy search, sampling and beam search (section 6.1).

Nothing in here knows a model, a config or a vocabulary. The caller gives a step function with a
cache, usually the keys and values of a decoder, and the search says which of its entries belong to
which hypothesis.

The cache is written once per step and never reordered. At step `t` the hypothesis in slot `j`
writes its entry at `[t, j]`, and a hypothesis is a path through those slots. Its `ancestry` holds,
for every step, the slot in which it was then:

    step       0    1    2    3
    slot 0    <s>  the  dog  ran      hypothesis 0: <s> the cat ran    ancestry 0 0 1 0
    slot 1     .    a   cat  sat      hypothesis 1: <s> the cat sat    ancestry 0 0 1 1

When hypotheses die and others split, these few integers are reordered instead of the cache, and
the step function attends over all slots through a mask made of them. What is constant for a
sentence, such as the keys and values of its source, the step function closes over: there is one
copy, not one per hypothesis.

The sentences of a batch need not begin together. `admit` puts new ones into rows whose sentence has
ended, while the others go on. All still write to the same place, for the room of `t` places is a
ring: step number `clock` writes to place `clock % room`, and a sentence that began at `start` has
its position 0 at place `start % room`. Nothing is cleared when a row changes hands; the mask leaves
out what was written before.

A sentence's result depends on nothing else in its batch. The functions trace under `jax.jit`; give
them plain Python numbers for everything but arrays and keys.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int, Int32, Key

from t2t_jax.decoding.top_k import top_k

_Tree = TypeVar("_Tree")

IMPOSSIBLE = -1e9
"""Log-probability and score of a place that holds no hypothesis: finite, so that no NaN arises."""

_SMALLEST = float(jnp.finfo(jnp.float32).tiny)

Cache: TypeAlias = Any
"""Any pytree of arrays; only the step function looks inside. In each, the last axis holds the
places of the ring, with the same number of entries for every place."""

StepFn: TypeAlias = Callable[
    [Int32[Array, "b k"], Int32[Array, " b"], Int32[Array, ""], Bool[Array, "b k t k"], Cache],
    tuple[Float[Array, "b k v"], Cache],
]
"""`step(tokens, positions, place, ancestry_mask, cache) -> logits, cache`.

`tokens` are the last ones of the hypotheses, and `positions` where they stand in their sentences;
at position 0 it is the begin-of-sentence id. The step writes its entry at `place` in all k slots of
its cache, and returns the logits of the tokens that follow. `ancestry_mask[b, j, t, i]` is true
where slot `i` at place `t` belongs to hypothesis `j`: one slot for every position up to and
including this one.
"""


class SearchResult(NamedTuple):
    """The k best hypotheses of each sentence, best first.

    A place without a hypothesis has length 0, only padding, and `IMPOSSIBLE` as its score.
    """

    tokens: Int32[Array, "b k t"]
    """Ids after the begin of sentence, up to and including the end of sentence; then padding."""
    scores: Float32[Array, "b k"]
    """`log_probs` over the length penalty."""
    log_probs: Float32[Array, "b k"]
    """Log-probability of the whole hypothesis under the model, in nats."""
    lengths: Int32[Array, "b k"]
    """Tokens generated, end of sentence included."""


def length_penalty(length: Int[Array, "..."], alpha: float) -> Float32[Array, "..."]:
    """What a log-probability is divided by: `((5 + length) / 6) ** alpha`.

    Wu et al. (2016), equation 14, with the coverage penalty left out, as in section 6.1.

    Args:
      length: tokens generated, end of sentence included.
      alpha: 0 compares plain log-probabilities; more favours longer hypotheses.
    """
    return ((5.0 + length.astype(jnp.float32)) / 6.0) ** alpha


class Hypotheses(NamedTuple):
    """Hypotheses that have not ended, or candidates for them, best first."""

    last: Int32[Array, "b m"]
    """Their last token, which is the begin of sentence at first."""
    tokens: Int32[Array, "b m t"]
    """What was generated, each token at the place of the step that chose it."""
    ancestry: Int32[Array, "b m t"]
    """The slot in which each place was written."""
    log_probs: Float32[Array, "b m"]


class Rows(NamedTuple):
    """What belongs to a sentence each, with room for t positions."""

    starts: Int32[Array, " b"]
    """The clock when it began."""
    limits: Int32[Array, " b"]
    """The most tokens to generate, end of sentence included."""
    searching: Bool[Array, " b"]
    """False for a row that is free, or whose sentence has ended and waits to be read."""
    keys: Key[Array, " b"] | None
    """For tokens that are drawn."""
    live: Hypotheses
    finished: SearchResult
    """The best that have ended; their tokens are at places of the ring."""


class SearchState(NamedTuple):
    """Searches under way."""

    clock: Int32[Array, ""]
    """Steps taken since the first sentence began."""
    rows: Rows
    cache: Cache

    @property
    def room(self) -> int:
        """Places of the ring, t."""
        return self.rows.live.tokens.shape[-1]

    @property
    def positions(self) -> Int32[Array, " b"]:
        """Of the last token of each sentence that is under way."""
        return self.clock - self.rows.starts


@dataclass(frozen=True)
class Greedy:
    """Take the most probable token at every position."""

    eos_id: int
    beam_size: int = field(default=1, init=False)
    alpha: float = field(default=0.0, init=False)

    def extend(
        self, state: SearchState, logits: Float32[Array, "b 1 v"], place: Int32[Array, ""]
    ) -> tuple[Hypotheses, SearchResult, Bool[Array, " b"]]:
        """The hypotheses with one more token, those that have ended, and who is to go on.

        Args:
          state: the searches.
          logits: of the tokens that follow their live hypotheses.
          place: of the ring, to keep the new tokens at.
        """
        chosen = top_k(logits, 1)[1][:, :, 0]  # on CPUs many times faster than argmax
        return _append(state, logits, chosen, place, self.eos_id)


@dataclass(frozen=True)
class Sampling:
    """Draw every token from the model's distribution, sharpened and cut as asked.

    A sentence with the same key gets the same sample in any batch. Log-probabilities are those of
    the model itself, before temperature and cuts.

    Attributes:
      eos_id: id that ends a sentence.
      temperature: above 0; the logits are divided by it before anything is cut.
      top_k: draw from this many of the most probable tokens; 0 means all.
      top_p: draw from the fewest tokens, most probable first, that hold this share of the
        probability which temperature and `top_k` leave; at least one.
    """

    eos_id: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    beam_size: int = field(default=1, init=False)
    alpha: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        """Refuse what gives no distribution."""
        if self.temperature <= 0 or self.top_k < 0 or not 0 < self.top_p <= 1:
            raise ValueError(f"there is no distribution for {self}")

    def extend(
        self, state: SearchState, logits: Float32[Array, "b 1 v"], place: Int32[Array, ""]
    ) -> tuple[Hypotheses, SearchResult, Bool[Array, " b"]]:
        """See `Greedy.extend`."""
        own_keys: Any = state.rows.keys
        keys = jax.vmap(jax.random.fold_in)(own_keys, state.positions)
        chosen = _draw(keys, logits[:, 0], self.temperature, self.top_k, self.top_p)[:, None]
        return _append(state, logits, chosen, place, self.eos_id)


@dataclass(frozen=True)
class BeamSearch:
    """Keep the k best live hypotheses, and the k best that have ended (section 6.1).

    A sentence stops at its limit, or once no live hypothesis can still enter its `num_best` best.

    Attributes:
      eos_id: id that ends a hypothesis.
      beam_size: hypotheses k.
      alpha: exponent of `length_penalty`, at least 0 (the paper: 0.6).
      num_best: how many of the k best that have ended are asked for. Those after them are good
        ones, but there may be better.
    """

    eos_id: int
    beam_size: int
    alpha: float
    num_best: int

    def __post_init__(self) -> None:
        """Refuse what cannot be searched with."""
        # With alpha < 0 the penalty would no longer be mildest at the limit, as _can_improve takes
        # it to be.
        if not 1 <= self.num_best <= self.beam_size or self.alpha < 0:
            raise ValueError(f"cannot search with {self}")

    def extend(
        self, state: SearchState, logits: Float32[Array, "b k v"], place: Int32[Array, ""]
    ) -> tuple[Hypotheses, SearchResult, Bool[Array, " b"]]:
        """See `Greedy.extend`."""
        rows = state.rows
        candidates = _expand(rows.live, logits, place)
        ended = candidates.last == self.eos_id
        lengths = state.positions + 1
        finished = _add_finished(rows.finished, candidates, ended, lengths, self.alpha)
        live = _keep_live(candidates, ended)
        worst = finished.scores[:, self.num_best - 1]
        return live, finished, _can_improve(live, worst, rows.limits, self.alpha)


Strategy: TypeAlias = Greedy | Sampling | BeamSearch
"""How tokens are chosen. A strategy is hashable, so that it can be compiled in."""


def begin(
    cache: Cache,
    limits: Int[Array, " b"],
    *,
    beam_size: int,
    room: int,
    bos_id: int,
    keys: Key[Array, " b"] | None = None,
) -> SearchState:
    """Begin to search for every sentence.

    Args:
      cache: what the step function takes first.
      limits: the most tokens to generate for each sentence; of a row that is free, 0.
      beam_size: hypotheses k of each.
      room: places t, at least one.
      bos_id: the token at position 0.
      keys: of each sentence, where tokens are drawn.
    """
    slots = jnp.broadcast_to(jnp.arange(beam_size, dtype=jnp.int32), (*limits.shape, beam_size))
    nothing = jnp.full(slots.shape, IMPOSSIBLE, jnp.float32)
    empty = jnp.zeros((*slots.shape, room), jnp.int32)
    # One hypothesis in slot 0; the other slots are impossible until it has split.
    log_probs = jnp.where(slots == 0, 0.0, nothing)
    rows = Rows(
        starts=jnp.zeros(limits.shape, jnp.int32),
        limits=limits.astype(jnp.int32),
        searching=limits > 0,
        keys=keys,
        live=Hypotheses(jnp.full_like(slots, bos_id), empty, empty, log_probs),
        finished=SearchResult(empty, nothing, nothing, jnp.zeros_like(slots)),
    )
    return SearchState(jnp.int32(0), rows, cache)


def admit(
    state: SearchState,
    places: Int[Array, " n"],
    limits: Int[Array, " n"],
    *,
    bos_id: int,
    keys: Key[Array, " n"] | None = None,
) -> SearchState:
    """Begin to search for other sentences, in rows that are free; `begin` explains the arguments.

    Args:
      places: which rows; numbers beyond the last are none, and change nothing.
    """
    sizes = {"beam_size": state.rows.live.last.shape[1], "room": state.room}
    new = begin((), limits, **sizes, bos_id=bos_id, keys=keys).rows
    new = new._replace(starts=jnp.broadcast_to(state.clock, limits.shape))
    return state._replace(rows=put(state.rows, new, places))


def run(
    strategy: Strategy, step: StepFn, state: SearchState, leave: int | Int[Array, ""] = 0
) -> SearchState:
    """Search on, until at most `leave` sentences are still under way.

    Or until one of those has filled the room, and has not come to its limit: see `resize`.
    """

    def goes_on(state: SearchState) -> Bool[Array, ""]:
        full = state.rows.searching & (state.positions >= state.room)
        return (jnp.sum(state.rows.searching) > leave) & ~jnp.any(full)

    return jax.lax.while_loop(goes_on, lambda state: _advance(strategy, step, state), state)


def _advance(strategy: Strategy, step: StepFn, state: SearchState) -> SearchState:
    place, rows = state.clock % state.room, state.rows
    slots = jnp.arange(strategy.beam_size, dtype=jnp.int32)
    slots = jnp.broadcast_to(slots, rows.live.last.shape)
    live = rows.live._replace(ancestry=_write(rows.live.ancestry, slots, place))
    mask = _ancestry_mask(live.ancestry, state.positions, place)
    logits, cache = step(live.last, state.positions, place, mask, state.cache)
    state = state._replace(rows=rows._replace(live=live))
    live, finished, more = strategy.extend(state, logits.astype(jnp.float32), place)
    # A row whose sentence has ended runs on with the others, and keeps what it had.
    live, finished = _where(rows.searching, (live, finished), (rows.live, rows.finished))
    searching = rows.searching & more & (state.positions + 1 < rows.limits)
    rows = rows._replace(searching=searching, live=live, finished=finished)
    return SearchState(state.clock + 1, rows, cache)


def results(state: SearchState, alpha: float, pad_id: int = 0) -> SearchResult:
    """What was found for the sentences whose search is over; of others, nothing that has a meaning.

    Args:
      state: after `run`.
      alpha: of the strategy.
      pad_id: id that fills the places after a sentence.

    Returns:
      The k best hypotheses that ended. For a sentence none of whose hypotheses ended, the k best
      live ones at its limit, scored at that length.
    """
    rows = state.rows
    none_ended = ~_is_possible(rows.finished.scores[:, :1])
    none_ended = jnp.broadcast_to(none_ended, rows.live.last.shape)
    found = _add_finished(rows.finished, rows.live, none_ended, rows.limits, alpha)
    positions = jnp.arange(state.room)
    places = (rows.starts[:, None] + positions) % state.room
    tokens = jnp.take_along_axis(found.tokens, places[:, None], axis=2)
    return found._replace(tokens=jnp.where(positions < found.lengths[:, :, None], tokens, pad_id))


def resize(state: SearchState, num_rows: int, room: int) -> SearchState:
    """The same searches among more rows, and with more room or less.

    Args:
      state: none of its sentences is at position `room` or later.
      num_rows: at least as many as there are; new ones are free.
      room: places. The newest are kept.
    """
    old, rows = state.room, state.rows
    next_place = state.clock % old

    def fit(x: Array) -> Array:
        each = x.shape[-1] // old
        x = jnp.roll(x, -next_place * each, axis=-1)[..., max(0, old - room) * each :]
        return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, room * each - x.shape[-1])])

    clock = jnp.full_like(state.clock, min(old, room))
    rows = rows._replace(
        starts=rows.starts + clock - state.clock,
        live=rows.live._replace(tokens=fit(rows.live.tokens), ancestry=fit(rows.live.ancestry)),
        finished=rows.finished._replace(tokens=fit(rows.finished.tokens)),
    )
    existing = jnp.arange(num_rows) < len(rows.searching)
    rows, cache = add_rows((rows, jax.tree.map(fit, state.cache)), num_rows)
    return SearchState(clock, rows._replace(searching=rows.searching & existing), cache)


def put(tree: _Tree, new: _Tree, places: Int[Array, " n"]) -> _Tree:
    """The arrays with other rows at these places, of which those beyond the last are none."""
    return jax.tree.map(lambda old, new: old.at[places].set(new, mode="drop"), tree, new)


def add_rows(tree: _Tree, num_rows: int) -> _Tree:
    """The arrays with more rows, which are copies of the last one."""
    return jax.tree.map(lambda x: x[jnp.minimum(jnp.arange(num_rows), len(x) - 1)], tree)


def search(
    strategy: Strategy,
    step: StepFn,
    cache: Cache,
    limits: Int[Array, " b"],
    *,
    room: int,
    bos_id: int,
    pad_id: int = 0,
    keys: Key[Array, " b"] | None = None,
) -> SearchResult:
    """Search for all sentences of a batch, from their begin to their end.

    Args:
      strategy: how tokens are chosen.
      step: see `StepFn`.
      cache: what `step` takes first.
      limits: the most tokens to generate for each sentence, end of sentence included; at most
        `room`.
      room: places t for generated tokens.
      bos_id: the token at position 0.
      pad_id: id that fills the places after a sentence.
      keys: of each sentence, where tokens are drawn.
    """
    state = begin(
        cache,
        jnp.minimum(limits, room),
        beam_size=strategy.beam_size,
        room=room,
        bos_id=bos_id,
        keys=keys,
    )
    return results(run(strategy, step, state), strategy.alpha, pad_id)


def _append(
    state: SearchState,
    logits: Float32[Array, "b 1 v"],
    chosen: Int32[Array, "b 1"],
    place: Int32[Array, ""],
    eos_id: int,
) -> tuple[Hypotheses, SearchResult, Bool[Array, " b"]]:
    """The one hypothesis of each sentence with one more token; see `Greedy.extend`."""
    log_probs = jnp.take_along_axis(logits, chosen[:, :, None], axis=2)[:, :, 0]
    log_probs -= jax.nn.logsumexp(logits, axis=-1)
    log_probs += state.rows.live.log_probs
    live = state.rows.live._replace(
        last=chosen, tokens=_write(state.rows.live.tokens, chosen, place), log_probs=log_probs
    )
    ended = chosen[:, 0] == eos_id
    lengths = (state.positions + 1)[:, None]
    new = SearchResult(live.tokens, log_probs, log_probs, lengths)
    return live, _where(ended, new, state.rows.finished), ~ended


def _draw(
    keys: Key[Array, " b"],
    logits: Float32[Array, "b v"],
    temperature: float,
    top_k: int,
    top_p: float,
) -> Int32[Array, " b"]:
    """One token for each row, drawn with that row's key."""
    # The nearest of float32's numbers: at 0, a temperature would divide 0 by 0, and a share would
    # leave nothing to draw from.
    temperature, top_p = (max(_SMALLEST, min(x, 1 / _SMALLEST)) for x in (temperature, top_p))
    # With the greatest logit at 0, a tiny temperature cannot overflow to infinity.
    logits = (logits - jnp.max(logits, axis=-1, keepdims=True)) / temperature
    ids = None
    if top_k > 0:
        logits, ids = jax.lax.top_k(logits, min(top_k, logits.shape[-1]))
    if top_p < 1:
        logits = jnp.where(_nucleus(logits, top_p), logits, -jnp.inf)
    drawn = jax.vmap(jax.random.categorical)(keys, logits)
    if ids is not None:
        drawn = jnp.take_along_axis(ids, drawn[:, None], axis=1)[:, 0]
    return drawn.astype(jnp.int32)


def _nucleus(logits: Float32[Array, "b v"], top_p: float) -> Bool[Array, "b v"]:
    """The fewest tokens, most probable first, that hold `top_p` of the probability.

    A sort over the vocabulary can take longer than the model. So the probability of the last token
    that enters is found bit by bit: floats from 0 up are in the order of their bits as integers.
    """
    probabilities = jax.nn.softmax(logits)
    bits = jax.lax.bitcast_convert_type(probabilities, jnp.int32)

    def mass_of(chosen: Bool[Array, "b v"]) -> Float32[Array, "b 1"]:
        return jnp.sum(jnp.where(chosen, probabilities, 0.0), axis=-1, keepdims=True)

    def set_bit(i: Int32[Array, ""], last: Int32[Array, "b 1"]) -> Int32[Array, "b 1"]:
        higher = last | (1 << (30 - i))
        return jnp.where(mass_of(bits >= higher) >= top_p, higher, last)

    last = jax.lax.fori_loop(0, 31, set_bit, jnp.zeros_like(bits[:, :1]))
    # Of tokens that tie for the last place, the first few are enough.
    tied = bits == last
    before = jnp.cumsum(jnp.where(tied, probabilities, 0.0), axis=-1) - probabilities
    return (bits > last) | (tied & (before < top_p - mass_of(bits > last)))


def _expand(
    live: Hypotheses, logits: Float32[Array, "b k v"], place: Int32[Array, ""]
) -> Hypotheses:
    """The best 2k continuations by one token, which is kept at `place`.

    At most k of them end, one for each live hypothesis, so that k are left to live on.
    """
    batch_size, beam_size, vocab_size = logits.shape
    width = min(2 * beam_size, vocab_size)
    # Normalising shifts a whole row, so its best can be found first: no log-softmax over v.
    best, tokens = top_k(logits, width)  # [b, k, width]
    best -= jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    best += live.log_probs[:, :, None]
    flat = (batch_size, beam_size * width)
    log_probs, chosen = jax.lax.top_k(best.reshape(flat), 2 * beam_size)  # [b, 2k]
    candidates = _take(live, chosen // width)
    tokens = jnp.take_along_axis(tokens.reshape(flat), chosen, axis=1)
    return candidates._replace(
        last=tokens, tokens=_write(candidates.tokens, tokens, place), log_probs=log_probs
    )


def _add_finished(
    finished: SearchResult,
    hypotheses: Hypotheses,
    entering: Bool[Array, "b m"],
    lengths: Int[Array, " b"],
    alpha: float,
) -> SearchResult:
    """The k best of those finished and those entering, which are `lengths` long."""
    scores = _score(hypotheses.log_probs, lengths, alpha)
    new = SearchResult(
        tokens=hypotheses.tokens,
        scores=jnp.where(entering, scores, IMPOSSIBLE),
        log_probs=hypotheses.log_probs,
        lengths=jnp.broadcast_to(lengths.astype(jnp.int32)[:, None], scores.shape),
    )
    pool = jax.tree.map(lambda old, new: jnp.concatenate([old, new], axis=1), finished, new)
    # Of equal scores top_k takes the first: an empty place stays empty if nothing better enters.
    _, best = jax.lax.top_k(pool.scores, finished.scores.shape[1])
    return _take(pool, best)


def _keep_live(candidates: Hypotheses, ended: Bool[Array, "b m"]) -> Hypotheses:
    """The better half of the candidates, without those that ended."""
    log_probs = jnp.where(ended, IMPOSSIBLE, candidates.log_probs)
    _, best = jax.lax.top_k(log_probs, log_probs.shape[1] // 2)
    return _take(candidates._replace(log_probs=log_probs), best)


def _can_improve(
    live: Hypotheses, worst: Float32[Array, " b"], limits: Int[Array, " b"], alpha: float
) -> Bool[Array, " b"]:
    """Whether the best live hypothesis, at no further cost, could still beat the worst finished.

    Log-probabilities only fall, and are divided by most at the limit: no score can be higher.
    """
    return _score(live.log_probs[:, :1], limits, alpha)[:, 0] > worst


def _score(
    log_probs: Float32[Array, "b m"], lengths: Int[Array, " b"], alpha: float
) -> Float32[Array, "b m"]:
    scores = log_probs / length_penalty(lengths, alpha)[:, None]
    return jnp.where(_is_possible(log_probs), scores, IMPOSSIBLE)


def _is_possible(log_probs: Float32[Array, "*shape"]) -> Bool[Array, "*shape"]:
    """Whether there is a hypothesis: nothing that is one comes near `IMPOSSIBLE`."""
    return log_probs > IMPOSSIBLE / 2


def _ancestry_mask(
    ancestry: Int32[Array, "b k t"], positions: Int32[Array, " b"], place: Int32[Array, ""]
) -> Bool[Array, "b k t k"]:
    _, beam_size, room = ancestry.shape
    steps_ago = (place - jnp.arange(room)) % room
    written = steps_ago <= positions[:, None]  # [b, t]
    return jax.nn.one_hot(ancestry, beam_size, dtype=jnp.bool_) & written[:, None, :, None]


def _write(
    rows: Int32[Array, "b m t"], column: Int32[Array, "b m"], place: Int32[Array, ""]
) -> Int32[Array, "b m t"]:
    return jax.lax.dynamic_update_index_in_dim(rows, column, place, axis=2)


def _take(tree: Any, rows: Int32[Array, "b n"]) -> Any:
    """For each sentence, some of the rows (axis 1) of every array."""

    def take(array: Array) -> Array:
        return jnp.take_along_axis(array, rows.reshape(rows.shape + (1,) * (array.ndim - 2)), 1)

    return jax.tree.map(take, tree)


def _where(condition: Bool[Array, " b"], new: Any, old: Any) -> Any:
    """For each sentence, one or the other of every pair of arrays."""

    def choose(new: Array, old: Array) -> Array:
        return jnp.where(condition.reshape((-1,) + (1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(choose, new, old)
