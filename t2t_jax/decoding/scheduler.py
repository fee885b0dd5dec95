"""Continuous batching: when a sentence has ended, the next one takes its row.

Sentences of a batch do not end together, and waiting for the last one would waste half of the work.
So the search stops when some rows are free, and the next call encodes the sentences for these rows
(iteration-level scheduling: Yu et al. 2022, "Orca"). Sentences come in from the longest to the
shortest. The arrays shrink once the long ones have ended, and grow if an output is much longer than
its source. Lengths are powers of two, so that a corpus needs a handful of programs.

The rows form two groups with separate calls of the program: the device works on one while the host
prepares the other. On a CPU, the second group uses idle cores.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, groupby, zip_longest

import numpy as np
from jax.sharding import Mesh

from t2t_jax.batch import EOS_ID
from t2t_jax.config import DecodingConfig
from t2t_jax.decoding import programs, row_group
from t2t_jax.decoding.search import hypotheses, strategies
from t2t_jax.decoding.search.constraints import UNCONSTRAINED, Constraints
from t2t_jax.modules import decoding_model, interceptors, parameters
from t2t_jax.parallel.mesh import row_parts
from t2t_jax.system.signals import safe_point

# Many short sources share a program for this length; one for a shorter length would save nothing.
_SHORTEST = 32
# Sources of a length get a program of their own if they fill its rows at least this many times.
_WORTH = 8


def strategy_of(decoding: DecodingConfig, num_best: int = 1) -> strategies.Strategy:
    """Return the strategy that a config asks for."""
    if decoding.temperature > 0:
        return strategies.Sampling(EOS_ID, decoding.temperature, decoding.top_k, decoding.top_p)
    if decoding.beam_size == 1:
        return strategies.Greedy(EOS_ID)
    return strategies.BeamSearch(
        EOS_ID,
        decoding.beam_size,
        decoding.length_penalty,
        num_best,
        transformers_rule=decoding.beam_rule == "transformers",
    )


def decode(
    model: decoding_model.DecodingModel,
    decoding: DecodingConfig,
    params: parameters.Parameters,
    mesh: Mesh,
    sentences: Sequence[row_group.Sentence],
    num_best: int = 1,
    seed: int = 0,
    constraints: Constraints = UNCONSTRAINED,
) -> Iterator[tuple[int, hypotheses.SearchResult]]:
    """Decode sentences.

    Args:
      decoding: `tokens_per_batch` bounds the rows; the limit of a sentence is at most its length
        plus `max_extra_length`.
      params: the parameters, from `DecodingModel.prepare`.
      mesh: the devices of the parameters, over which rows are split.

    Yields:
      The index of each sentence and its hypotheses `[num_best, t]`, as sentences end.

    Raises:
      ValueError: the limit of a sentence is too high.
    """
    extra = decoding.max_extra_length
    if any(sentence.limit > sentence.length + extra for sentence in sentences):
        raise ValueError(f"there is room for {extra} tokens more than in a source, and no more")
    order = sorted(range(len(sentences)), key=lambda i: -sentences[i].length)
    lengths = [sentences[i].length for i in order]
    longest_prefix = max((len(sentence.prefix) for sentence in sentences), default=0)
    prefix = rung(longest_prefix) if longest_prefix else 0
    planned = [sizes._replace(prefix=prefix) for sizes in plan(lengths, decoding, mesh)]
    waiting = deque(zip(order, planned, strict=True))
    search = programs.Search(model, strategy_of(decoding, num_best), mesh, num_best)
    capacity = _capacity(rung(max(lengths, default=0)), decoding)
    inputs = programs.SearchInputs(params, np.uint32(seed), constraints)
    make = partial(row_group.RowGroup, search, inputs)
    number = num_groups(capacity, mesh)
    groups = [_decode_group(make, waiting, sentences) for _ in range(number)]
    for ended in chain.from_iterable(zip_longest(*groups, fillvalue=[])):
        yield from ended


def plan(lengths: Sequence[int], decoding: DecodingConfig, mesh: Mesh) -> list[programs.Sizes]:
    """Plan the sizes of the arrays for each sentence.

    Args:
      lengths: numbers of tokens of the sources, longest first.
      decoding: the settings; `tokens_per_batch` and `max_extra_length` matter.
    """
    if not lengths:
        return []
    parts = row_parts(mesh)

    def sizes(source_length: int, rows: int, arrivals: int) -> programs.Sizes:
        rows, arrivals = (-(-n // parts) * parts for n in (rows, arrivals))
        max_capacity = source_length + decoding.max_extra_length
        return programs.Sizes(rows, arrivals, source_length, source_length, max_capacity)

    capacity = _capacity(rung(lengths[0]), decoding)
    if len(lengths) <= capacity:
        rows = min(capacity, 1 << (len(lengths) - 1).bit_length())
        one_program = sizes(rung(lengths[0]), rows, rows)
        return [one_program._replace(capacity=one_program.max_capacity)] * len(lengths)
    planned: list[programs.Sizes] = []
    for source_length, group in groupby(lengths, lambda length: max(_SHORTEST, rung(length))):
        count = len(list(group))
        capacity = _capacity(source_length, decoding)
        rows = capacity // num_groups(capacity, mesh)
        # A few sentences use the sizes of longer ones.
        if not planned or count >= _WORTH * rows:
            planned += [sizes(source_length, rows, -(-rows // 4))] * count
        else:
            planned += [planned[-1]] * count
    return planned


def _capacity(source_length: int, decoding: DecodingConfig) -> int:
    return max(1, decoding.tokens_per_batch // (source_length + decoding.max_extra_length))


def rung(length: int) -> int:
    """Round a length up to a power of two, at least 16."""
    return max(16, 1 << max(0, length - 1).bit_length())


def num_groups(capacity: int, mesh: Mesh) -> int:
    """Return the number of groups for `capacity` rows."""
    # A program on several devices waits for all of them: two at a time could wait for each other.
    return 2 if mesh.size == 1 and capacity > 1 else 1


def _decode_group(
    make: Callable[[programs.Sizes], row_group.RowGroup],
    waiting: deque[tuple[int, programs.Sizes]],
    sentences: Sequence[row_group.Sentence],
) -> Iterator[list[tuple[int, hypotheses.SearchResult]]]:
    """Decode waiting sentences in a group of rows; yield those that have ended.

    Args:
      waiting: the index and the planned sizes of each sentence, first come first served.
    """
    if not waiting:
        return
    planned = waiting[0][1]
    group = make(planned)
    ended: list[tuple[int, hypotheses.SearchResult]] = []
    # On a CPU, the programs that one thread calls run in turn, so each group has a thread.
    with ThreadPoolExecutor(1) as thread:
        while waiting or group.num_free < group.sizes.rows:
            safe_point()  # while the thread launches nothing: processes may agree here
            if waiting and group.longest <= waiting[0][1].source_length:
                planned = waiting[0][1]
            group.resize(_fitting(group.sizes, planned, group.farthest))
            coming = min(group.num_free, group.sizes.arrivals, len(waiting))
            taken = [waiting.popleft()[0] for _ in range(coming)]
            leave = _leave(group.sizes, group.num_free - coming, len(waiting))
            arrivals = [(index, sentences[index]) for index in taken]
            asked = thread.submit(interceptors.in_other_thread(group.launch), arrivals, leave)
            yield ended  # while the device computes
            ended = group.collect(asked.result())
        yield ended


def _fitting(sizes: programs.Sizes, planned: programs.Sizes, farthest: int) -> programs.Sizes:
    """Return the planned sizes with at least as many rows as now, and room for `farthest`."""
    capacity = planned.capacity
    while capacity <= farthest:
        capacity = min(2 * capacity, planned.max_capacity)
    if planned.source_length == sizes.source_length and capacity < 2 * farthest:
        capacity = max(capacity, sizes.capacity)  # lest it be too small again at once
    return planned._replace(rows=max(planned.rows, sizes.rows), capacity=capacity)


def _leave(sizes: programs.Sizes, free: int, waiting: int) -> int:
    """Return the number of live sentences at which the program stops."""
    if not waiting:
        return 0
    if free >= sizes.arrivals:  # more can come in at once
        return sizes.rows
    return sizes.rows - min(sizes.arrivals, waiting)
