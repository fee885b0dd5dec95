"""The memory that a search needs, computed before anything is allocated."""

from functools import lru_cache, partial

import jax
from jax.sharding import Mesh

from t2t_jax.config import DecodingConfig
from t2t_jax.decoding.programs import Sizes
from t2t_jax.errors import UserError
from t2t_jax.modules.decoding_model import DecodingModel
from t2t_jax.parallel.devices import memory_of_a_device
from t2t_jax.parallel.mesh import row_parts


def check_search_memory(
    model: DecodingModel,
    vocab_size: int,
    decoding: DecodingConfig,
    sizes: Sizes,
    mesh: Mesh,
) -> None:
    """Refuse a search that needs more memory than a device has in all."""
    needed = search_bytes(model, vocab_size, decoding, sizes) / row_parts(mesh)
    memory = memory_of_a_device(mesh)
    if memory is not None and needed > memory:
        gibibytes = f"{needed / 2**30:,.1f} GiB on each device, but there are {memory / 2**30:,.1f}"
        raise UserError(
            f"the search would keep {gibibytes}: "
            f"lower decoding.beam_size={decoding.beam_size}, decoding.max_extra_length="
            f"{decoding.max_extra_length}, decoding.tokens_per_batch={decoding.tokens_per_batch} "
            f"or decoding.max_source_length={decoding.max_source_length}"
        )


def search_bytes(
    model: DecodingModel, vocab_size: int, decoding: DecodingConfig, sizes: Sizes
) -> int:
    """Compute a lower bound of the bytes of a search whose outputs have their greatest length.

    It counts, for each position of each hypothesis, keys and values of every decoder layer, the
    ancestry mask, tokens and ancestry of live and finished hypotheses; the logits of each
    hypothesis; and the keys and values of each source.
    """
    beam = 1 if decoding.temperature > 0 else decoding.beam_size
    slots = sizes.most_room * beam
    per_row = slots * beam + 3 * 4 * slots + 4 * beam * vocab_size
    outputs = _cache_bytes(model, sizes.rows, beam, sizes.most_room)
    sources = _cache_bytes(model, sizes.rows, 1, sizes.source_length)
    return sizes.rows * per_row + outputs + sources


@lru_cache(maxsize=256)  # every call of a translator asks, and tracing takes most of a millisecond
def _cache_bytes(model: DecodingModel, rows: int, beam_size: int, room: int) -> int:
    cache = jax.eval_shape(partial(model.empty_cache, rows, beam_size, room))
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(cache))
