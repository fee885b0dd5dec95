"""The costs of a model, parameters and operations, in closed form and without JAX."""

import math
from collections.abc import Iterator

from t2t_jax.config import ModelConfig


def num_parameters(model: ModelConfig, vocab_size: int) -> int:
    """Count the parameters of the network that `modules.models.make_model` makes."""
    norm = model.normalization.num_parameters(model.d_model)
    biases = 0 if model.is_gated else model.d_ff + model.d_model
    total, feed_forward = 0, model.feed_forward_weights + biases
    for stack in model.stacks:
        attentions = sum(attention.num_parameters + norm for attention in stack.attentions)
        each = attentions + feed_forward + norm
        total += stack.num_layers * each
        total += norm * ((model.norm_order == "pre") + model.embedding_norm)
        learned = model.positions.parameters(model).values()
        total += sum(math.prod(each.shape) for each in learned)
    total += sum(model.input_projection)
    embeddings = sum(model.entries(vocab_size).values()) * model.d_model  # and output projections
    return total + embeddings + vocab_size * model.output_bias


def model_flops_per_step(
    model: ModelConfig,
    vocab_size: int,
    source_tokens: float,
    target_tokens: float,
    *,
    source_length: float = 0.0,
    target_length: float = 0.0,
) -> float:
    """Count the floating point operations of the matrix products in one training step.

    A token's vector times a matrix of n weights is n multiply-adds, 2 operations each. Either
    derivative takes as many, so there are 6 n in all. A source token meets the matrices of the
    encoder, and those for keys and values in the decoder's cross-attention; a target token meets
    all others of the decoder, and the output projection. The products of queries with keys and of
    weights with values take 6 h (d_k + d_v) for every pair of positions compared, masked or not.

    The count leaves out padding (unless the tokens count it) and all that is no matrix product:
    embedding look-ups, biases, softmax, layer norm, dropout, loss and optimizer.

    Args:
      source_length: positions that a token is compared with in the encoder's self-attention and in
        cross-attention, on average; 0 leaves these products out. Windows bound self-attention.
      target_length: the same for the decoder's self-attention.
    """
    of_source: float = 0
    of_target: float = 0
    for stack in model.stacks:
        length = source_length * stack.reads_source + target_length * stack.reads_target
        if model.attention_window is not None:  # whole blocks count; see `kernels.windowed`
            length = min(length, (2 if stack.reads_target else 3) * model.attention_window)
        itself, other = stack.self_attention, stack.cross_attention
        layer = itself.matrix_parameters + itself.products_per_pair * length
        layer += model.feed_forward_weights
        remembered = 0
        if other is not None:  # its keys and values are made of the source's tokens
            layer += other.query_parameters + other.products_per_pair * source_length
            remembered = other.memory_parameters
        of_source += stack.num_layers * (layer * stack.reads_source + remembered)
        of_target += stack.num_layers * layer * stack.reads_target
    of_source += model.input_projection.weights
    of_target += vocab_size * model.d_model
    return 6 * (source_tokens * of_source + target_tokens * of_target)


def matrices_of_layers(model: ModelConfig) -> Iterator[tuple[int, int, int]]:
    """Yield the number of matrices of each kind in the layers, and the two sizes of the kind."""
    for stack in model.stacks:
        for attention in stack.attentions:
            of_output = attention.num_heads * attention.d_v
            for width in (*attention.projections.values(), of_output):
                yield stack.num_layers, model.d_model, width
        yield stack.num_layers * model.feed_forward_matrices, model.d_model, model.d_ff
