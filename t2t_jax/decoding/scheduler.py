"""Decode sentences by continuous batching: when a sentence has ended, the next takes its row.

The search stops when some rows are free, and the next call admits sentences, longest first
(iteration-level scheduling: Yu et al. 2022, "Orca"). Waiting for the last sentence of a batch would
waste half of the work. The arrays shrink once the long sentences have ended, and grow for long
outputs. Array lengths are powers of two, so that a corpus needs few programs.

The rows form two groups: the device computes one while the host prepares the other. On a CPU, the
second group uses idle cores.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, zip_longest

from jax.sharding import Mesh

from t2t_jax.batch import EOS_ID
from t2t_jax.config import DecodingConfig
from t2t_jax.decoding import programs, row_group
from t2t_jax.decoding.search import hypotheses, strategies
from t2t_jax.modules import interceptors
from t2t_jax.parallel.mesh import row_parts
from t2t_jax.system.signals import safe_point

# All shorter sources share a program: programs for shorter lengths would save no time.
_MIN_LENGTH = 32
# A length bucket gets its own program if its sources fill the rows at least this many times.
_MIN_ROUNDS = 8


def strategy_of(decoding: DecodingConfig, num_best: int = 1) -> strategies.Strategy:
    """Create the search strategy of a decoding config."""
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
    search: programs.Search,
    inputs: programs.SearchInputs,
    decoding: DecodingConfig,
    sentences: Sequence[row_group.Sentence],
) -> Iterator[tuple[int, hypotheses.SearchResult]]:
    """Decode sentences, longest first; a new sentence takes the row of an ended one.

    Args:
      decoding: `tokens_per_batch` limits the number of rows, and `max_extra_length` the outputs.

    Yields:
      The index of each sentence and its hypotheses `[num_best, t]`, as sentences end.

    Raises:
      ValueError: the limit of a sentence exceeds its length plus `max_extra_length`.
    """
    max_extra, mesh = decoding.max_extra_length, search.mesh
    if any(sentence.limit > sentence.length + max_extra for sentence in sentences):
        raise ValueError(f"an output may have at most {max_extra} tokens more than its source")
    longest_first = sorted(range(len(sentences)), key=lambda index: -sentences[index].length)
    lengths = [sentences[index].length for index in longest_first]
    longest_prefix = max((len(sentence.prefix) for sentence in sentences), default=0)
    width = length_bucket(longest_prefix) if longest_prefix else 0
    all_sizes = [sizes._replace(prefix_length=width) for sizes in plan(lengths, decoding, mesh)]
    queue = deque(zip(longest_first, all_sizes, strict=True))
    num_rows = _num_rows(length_bucket(max(lengths, default=0)), decoding)
    new_group = partial(row_group.RowGroup, search, inputs)
    groups = [_decode_group(new_group, queue, sentences) for _ in range(num_groups(num_rows, mesh))]
    for results in chain.from_iterable(zip_longest(*groups, fillvalue=[])):
        yield from results


def plan(lengths: Sequence[int], decoding: DecodingConfig, mesh: Mesh) -> list[programs.Sizes]:
    """Plan the array sizes with which each sentence is decoded.

    Args:
      lengths: source lengths in tokens, longest first.
      decoding: `tokens_per_batch` and `max_extra_length` are used.
    """
    if not lengths:
        return []
    num_parts = row_parts(mesh)

    def sizes(source_length: int, rows: int, max_arrivals: int) -> programs.Sizes:
        rows, max_arrivals = (-(-n // num_parts) * num_parts for n in (rows, max_arrivals))
        max_capacity = source_length + decoding.max_extra_length
        return programs.Sizes(rows, max_arrivals, source_length, source_length, max_capacity)

    max_rows = _num_rows(length_bucket(lengths[0]), decoding)
    if len(lengths) <= max_rows:
        rows = min(max_rows, 1 << (len(lengths) - 1).bit_length())
        one_program = sizes(length_bucket(lengths[0]), rows, rows)
        return [one_program._replace(capacity=one_program.max_capacity)] * len(lengths)
    planned: list[programs.Sizes] = []
    buckets = [max(_MIN_LENGTH, length_bucket(length)) for length in lengths]
    for source_length, count in Counter(buckets).items():
        max_rows = _num_rows(source_length, decoding)
        rows = max_rows // num_groups(max_rows, mesh)
        # A few sentences use the program for longer sentences: compiling another takes longer.
        if not planned or count >= _MIN_ROUNDS * rows:
            planned += [sizes(source_length, rows, -(-rows // 4))] * count
        else:
            planned += [planned[-1]] * count
    return planned


def _num_rows(source_length: int, decoding: DecodingConfig) -> int:
    return max(1, decoding.tokens_per_batch // (source_length + decoding.max_extra_length))


def length_bucket(length: int) -> int:
    """Round a length up to a power of two, at least 16."""
    return max(16, 1 << max(0, length - 1).bit_length())


def num_groups(num_rows: int, mesh: Mesh) -> int:
    """Return the number of groups into which rows are split."""
    # A program on several devices waits for all of them. Two such programs could deadlock.
    return 2 if mesh.size == 1 and num_rows > 1 else 1


def _decode_group(
    new_group: Callable[[programs.Sizes], row_group.RowGroup],
    queue: deque[tuple[int, programs.Sizes]],
    sentences: Sequence[row_group.Sentence],
) -> Iterator[list[tuple[int, hypotheses.SearchResult]]]:
    """Decode sentences from a queue; yield indices and hypotheses after each call of the program.

    Args:
      queue: the index and the planned sizes of each sentence; all groups share the queue.
    """
    if not queue:
        return
    planned = queue[0][1]
    group = new_group(planned)
    results: list[tuple[int, hypotheses.SearchResult]] = []
    # On a CPU, programs that one thread calls run one after another, so each group has a thread.
    with ThreadPoolExecutor(1) as worker:
        while queue or group.num_free < group.sizes.rows:
            safe_point()  # processes may communicate here, because the thread launches nothing
            if queue and group.longest_source <= queue[0][1].source_length:
                planned = queue[0][1]
            group.resize(_next_sizes(group.sizes, planned, group.longest_output))
            num_arrivals = min(group.num_free, group.sizes.max_arrivals, len(queue))
            indices = [queue.popleft()[0] for _ in range(num_arrivals)]
            max_live = _max_live(group.sizes, group.num_free - num_arrivals, len(queue))
            arrivals = [(index, sentences[index]) for index in indices]
            future = worker.submit(interceptors.in_other_thread(group.launch), arrivals, max_live)
            yield results  # the caller reads them while the device computes
            results = group.collect(future.result())
        yield results


def _next_sizes(sizes: programs.Sizes, planned: programs.Sizes, longest: int) -> programs.Sizes:
    """Return the planned sizes, with at least the current rows and room for the longest output."""
    capacity = planned.capacity
    while capacity <= longest:
        capacity = min(2 * capacity, planned.max_capacity)
    if planned.source_length == sizes.source_length and capacity < 2 * longest:
        capacity = max(capacity, sizes.capacity)  # a smaller one would soon be full again
    return planned._replace(rows=max(planned.rows, sizes.rows), capacity=capacity)


def _max_live(sizes: programs.Sizes, num_free: int, num_waiting: int) -> int:
    """Return how many sentences may be live (unfinished) when the search stops to admit others.

    Return 0 if no sentence waits.
    """
    if not num_waiting:
        return 0
    if num_free >= sizes.max_arrivals:  # stop at once, to admit more sentences
        return sizes.rows
    return sizes.rows - min(sizes.max_arrivals, num_waiting)
