"""What a search keeps in memory, in closed form, before anything is allocated."""

from collections.abc import Sequence

from jax.sharding import Mesh

from t2t_jax.config import DecodingConfig, ModelConfig
from t2t_jax.decoding.continuous_batching import Sizes
from t2t_jax.errors import UserError
from t2t_jax.parallel.memory import memory_of_a_device
from t2t_jax.parallel.mesh import row_parts


def check_memory(
    models: Sequence[ModelConfig],
    vocab_size: int,
    decoding: DecodingConfig,
    sizes: Sizes,
    mesh: Mesh,
) -> None:
    """Refuse a search that cannot fit, whatever else is in memory.

    Args:
      models: the network; several are an ensemble.
      vocab_size: entries of the vocabulary.
      decoding: how it searches.
      sizes: of the largest arrays.
      mesh: the devices, over which rows are split.

    Raises:
      UserError: its caches and hypotheses take more than the machine has.
    """
    needed = search_bytes(models, vocab_size, decoding, sizes) / row_parts(mesh)
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
    models: Sequence[ModelConfig], vocab_size: int, decoding: DecodingConfig, sizes: Sizes
) -> int:
    """The least that a search keeps, once its outputs are as long as they may be.

    Each position of each hypothesis has keys and values in every layer of the decoder, a place in
    the mask that says whose they are, and the tokens and ancestry of live and finished hypotheses;
    each source has keys and values once; each hypothesis has logits.

    Args:
      models: the network; several are an ensemble.
      vocab_size: entries of the vocabulary.
      decoding: how it searches.
      sizes: of its arrays.
    """
    beam = 1 if decoding.temperature > 0 else decoding.beam_size
    slots = sizes.most_room * beam
    per_row = slots * beam + 3 * 4 * slots + 4 * beam * vocab_size
    for model in models:
        width = model.num_heads * (model.key_size + model.value_size)
        layers = model.num_decoder_layers * (2 if model.compute_dtype == "bfloat16" else 4)
        per_row += layers * width * (slots + sizes.source_length)
    return sizes.rows * per_row
