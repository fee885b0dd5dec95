"""Define the compiled programs of continuous batching, which `decoding.row_group` calls.

A `Work` holds the arrays of a group of rows.
"""

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Bool, Int, Int32, PyTree, UInt32

from t2t_jax.batch import BOS_ID, PAD_ID
from t2t_jax.config import DecodingConfig
from t2t_jax.decoding.search import hypotheses, loop, strategies
from t2t_jax.decoding.search.constraints import UNCONSTRAINED, Constraints
from t2t_jax.decoding.search.reductions import Reductions, argmax_and_logsumexp
from t2t_jax.errors import UserError
from t2t_jax.kernels.choice import kernels_of
from t2t_jax.modules.decoding_model import DecodingModel, LastTokens, Memory
from t2t_jax.modules.interceptors import InterceptedJit
from t2t_jax.modules.parameters import Parameters
from t2t_jax.parallel import axes, jax_settings
from t2t_jax.parallel.devices import gib, memory_of_a_device
from t2t_jax.parallel.mesh import replicated, row_parts


@dataclass(frozen=True)
class Search:
    """The static arguments with which JAX compiles the programs of a search."""

    model: DecodingModel
    strategy: strategies.Strategy
    mesh: Mesh
    num_best: int


class SearchInputs(NamedTuple):
    """The arrays that a search reads but does not change."""

    params: Parameters
    """The parameters, from `DecodingModel.prepare`."""
    seed: UInt32[Any, ""]
    """The seed of sampling."""
    constraints: Constraints = UNCONSTRAINED
    """The constraints on tokens."""


class Sizes(NamedTuple):
    """Sizes of the arrays of a group of rows."""

    rows: int
    """Number of rows: sentences decoded together."""
    max_arrivals: int
    """The most sentences that a program can admit at once."""
    source_length: int
    """Positions of a source, including padding."""
    capacity: int
    """Positions of an output; the arrays grow if an output needs more."""
    max_capacity: int
    """The most positions of an output."""
    prefix_length: int = 0
    """Positions of the prefixes of outputs; 0 without prefixes."""


class Work(NamedTuple):
    """The device arrays of a group of sentences under decoding.

    Each row is one sentence's search and encoded source.
    """

    state: hypotheses.SearchState
    """The search for each sentence."""
    memory: Memory
    """The model's memory of the sources."""


class Arrivals(NamedTuple):
    """The arrays of new sentences that decoding puts into free rows."""

    rows: Int32[Array, " n"]
    """Row index of each sentence; an index beyond the last row marks padding."""
    inputs: PyTree
    """The arrays of the sources from `SourceForm.padded`."""
    limits: Int32[Array, " n"]
    """The most tokens to generate for each sentence."""
    numbers: Int32[Array, " n"]
    """Line number of each sentence, which determines its samples."""
    prefixes: Int32[Array, "n p"] | None = None
    """Required first tokens of each output, padded with -1."""


class Progress(NamedTuple):
    """The state of the rows that the host reads."""

    searching: Bool[Array, " b"]
    """Whether each row has a live sentence."""
    positions: Int[Array, " b"]
    """Position of the last token of each sentence."""
    best: hypotheses.SearchResult
    """The `num_best` best hypotheses of each row, final once the row is not searching."""


@partial(InterceptedJit, static_argnames=("search", "sizes"))
def begin_work(search: Search, sizes: Sizes, inputs: SearchInputs) -> Work:
    """Create the arrays of a group of rows without sentences."""
    model, prefix_length = search.model, sizes.prefix_length
    zeros = jnp.zeros((sizes.rows,), jnp.int32)
    cache = model.empty_cache(sizes.rows, search.strategy.beam_size, sizes.capacity)
    prefixes = jnp.full((sizes.rows, prefix_length), -1) if prefix_length else None
    free_rows = Arrivals(zeros, None, zeros, zeros, prefixes)
    state = _begin(search, inputs._replace(seed=jnp.uint32(0)), cache, sizes.capacity, free_rows)
    # eval_shape does not run the encoder: free rows only need arrays of the right shapes.
    sources = model.sources.padded([], sizes.rows, sizes.source_length)
    memory = jax.eval_shape(partial(_encode, model), inputs.params, sources)
    memory = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), memory)
    return _by_rows(Work(state, memory), search.mesh)


@partial(InterceptedJit, static_argnames="search", donate_argnames="work")
def proceed(
    search: Search,
    inputs: SearchInputs,
    work: Work,
    arrivals: Arrivals,
    max_live: Int[Array, ""],
    max_steps: Int[Array, ""] | None = None,
) -> tuple[Work, Progress]:
    """Add new sentences, and search until at most `max_live` sentences are live (unfinished).

    The search also stops when a sentence fills its ring buffer. Return the new state of the search
    and what the host reads of it.

    Args:
      work: the live sentences; its arrays are overwritten.
      arrivals: sentences for free rows.
      max_steps: the most steps to compute; None sets no limit.
    """
    model, strategy = search.model, search.strategy
    new_memory = _encode(model, inputs.params, arrivals.inputs)
    memory = loop.put_rows(work.memory, new_memory, arrivals.rows)
    new_state = _begin(search, inputs, (), work.state.capacity, arrivals)
    state = loop.admit(work.state, new_state.rows, arrivals.rows)
    state, memory = _by_rows(Work(state, memory), search.mesh)

    def step(
        tokens: Array, positions: Array, clock: Array, ancestry_mask: Array, cache: PyTree
    ) -> tuple[Array, PyTree]:
        last_tokens = LastTokens(tokens, positions, clock, ancestry_mask)
        return model.step(inputs.params, last_tokens, cache, memory)

    kernels = kernels_of(search.mesh, jnp.float32)
    reductions = Reductions(kernels.logsumexp, kernels.greatest or argmax_and_logsumexp)
    state = loop.advance(strategy, step, state, max_live, inputs.constraints, max_steps, reductions)
    best = loop.results(strategy, state, PAD_ID)
    best = jax.tree.map(lambda x: x[:, : search.num_best], best)
    return _by_rows(Work(state, memory), search.mesh), Progress(
        state.rows.searching, state.positions, best
    )


def _encode(model: DecodingModel, params: Parameters, sources: PyTree) -> Memory:
    """Encode the arrays of sources from `SourceForm.padded` into memory for the decoder."""
    return model.memory(params, model.sources.inputs(sources))


def _fit_memory(model: DecodingModel, memory: Memory, length: int) -> Memory:
    def fit(x: Array, axis: int) -> Array:
        first_positions = jax.lax.slice_in_dim(x, 0, min(x.shape[axis], length), axis=axis)
        widths = [(0, 0)] * x.ndim
        widths[axis] = 0, length - first_positions.shape[axis]
        return jnp.pad(first_positions, widths)

    return jax.tree.map(fit, memory, model.axes().sources)


@partial(jax.jit, static_argnames=("model", "mesh", "sizes"))
def resize_work(model: DecodingModel, mesh: Mesh, sizes: Sizes, work: Work) -> Work:
    """Copy the work into arrays of other sizes, and cut the last rows if there are fewer rows."""
    # No `Search` among the arguments: searches with different settings share the program.
    beam_size = work.state.rows.live.last.shape[1]
    memory = loop.resize_rows(_fit_memory(model, work.memory, sizes.source_length), sizes.rows)
    empty_cache = jax.eval_shape(partial(model.empty_cache, sizes.rows, beam_size, sizes.capacity))
    state = loop.resize(
        work.state, sizes.rows, sizes.capacity, empty_cache, model.axes(beam_size).slots
    )
    return _by_rows(Work(state, memory), mesh)


def _begin(
    search: Search, inputs: SearchInputs, cache: PyTree, capacity: int, arrivals: Arrivals
) -> hypotheses.SearchState:
    keys = None
    if isinstance(search.strategy, strategies.Sampling):
        fold_in = jax.vmap(jax.random.fold_in, (None, 0))
        keys = fold_in(jax_settings.random_key(inputs.seed), arrivals.numbers)
    return loop.begin(
        cache,
        arrivals.limits,
        beam_size=search.strategy.beam_size,
        capacity=capacity,
        bos_id=BOS_ID,
        keys=keys,
        constraints=inputs.constraints,
        prefixes=arrivals.prefixes,
    )


def _by_rows(work: Work, mesh: Mesh) -> Work:
    # A program is compiled again for inputs with another sharding.
    by_rows = NamedSharding(mesh, axes.partition_spec(["batch"]))
    shardings = jax.tree.map(lambda x: by_rows if x.ndim else replicated(mesh), work)
    return jax.lax.with_sharding_constraint(work, shardings)


def check_search_memory(
    search: Search, vocab_size: int, decoding: DecodingConfig, sizes: Sizes
) -> None:
    """Raise a `UserError` if the search needs more than the total memory of a device."""
    num_bytes = search_bytes(search, vocab_size, sizes) // row_parts(search.mesh)
    available = memory_of_a_device(search.mesh)
    if available is not None and num_bytes > available:
        raise UserError(
            f"the search needs {gib(num_bytes)} on each device, which has only {gib(available)}: "
            f"lower decoding.beam_size={decoding.beam_size}, decoding.max_extra_length="
            f"{decoding.max_extra_length}, decoding.tokens_per_batch={decoding.tokens_per_batch} "
            f"or decoding.max_source_length={decoding.max_source_length}"
        )


def search_bytes(search: Search, vocab_size: int, sizes: Sizes) -> int:
    """Compute a lower bound of the bytes of a search with outputs of maximum length."""
    beam_size = search.strategy.beam_size
    slots = sizes.max_capacity * beam_size
    # The ancestry mask has a byte per slot and hypothesis. Three int32 arrays hold the tokens and
    # ancestry of live hypotheses, and the tokens of finished hypotheses. Logits are float32.
    row_bytes = slots * beam_size + 3 * 4 * slots + 4 * beam_size * vocab_size
    output_bytes = _cache_bytes(search.model, sizes.rows, beam_size, sizes.max_capacity)
    source_bytes = _cache_bytes(search.model, sizes.rows, 1, sizes.source_length)
    return sizes.rows * row_bytes + output_bytes + source_bytes


@lru_cache(maxsize=256)  # tracing takes almost a millisecond in every call of a translator
def _cache_bytes(model: DecodingModel, rows: int, beam_size: int, capacity: int) -> int:
    cache = jax.eval_shape(partial(model.empty_cache, rows, beam_size, capacity))
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(cache))
