"""The parameters and FLOPs of a model, in closed form and without JAX."""

import math

from t2t_jax.config import ModelConfig


def num_parameters(model: ModelConfig, vocab_size: int) -> int:
    """Count the parameters of the network that `modules.models.make_model` makes."""
    norm = model.normalization.num_parameters(model.d_model)
    biases = 0 if model.is_gated else model.d_ff + model.d_model
    total, feed_forward = 0, model.feed_forward_weights + biases
    for stack in model.stacks:
        attentions = sum(attention.num_parameters + norm for attention in stack.attentions)
        layer = attentions + feed_forward + norm
        total += stack.num_layers * layer
        total += norm * ((model.norm_order == "pre") + model.embedding_norm)
        learned = model.positions.parameters(model).values()
        total += sum(math.prod(array.shape) for array in learned)
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
    """Count the matmul FLOPs of one training step.

    A matrix with n parameters takes 2 n FLOPs per token forward and 4 n backward. Source tokens
    pass through the encoder and the key and value projections of cross-attention; target tokens
    pass through the rest of the decoder and the output projection. Attention scores and weighted
    values take 6 h (d_k + d_v) FLOPs per pair of positions and map, masked or not.

    The count omits embedding look-ups, biases, softmax, normalization, dropout, loss and optimizer.

    Args:
      source_length: the mean number of source positions that a token attends to, in the encoder
        and in cross-attention; 0 omits these matmuls. Attention windows limit self-attention.
      target_length: the mean number of target positions that a target token attends to.
    """
    source_macs: float = 0
    target_macs: float = 0
    for stack in model.stacks:
        length = source_length * stack.reads_source + target_length * stack.reads_target
        if model.attention_window is not None:  # whole blocks count; see `kernels.windowed`
            length = min(length, (2 if stack.reads_target else 3) * model.attention_window)
        attention, cross = stack.self_attention, stack.cross_attention
        layer = attention.matrix_parameters + attention.multiply_adds_per_pair * length
        layer += model.feed_forward_weights
        memory = 0
        if cross is not None:  # its keys and values come from source tokens
            layer += cross.query_parameters + cross.multiply_adds_per_pair * source_length
            memory = cross.memory_parameters
        source_macs += stack.num_layers * (layer * stack.reads_source + memory)
        target_macs += stack.num_layers * layer * stack.reads_target
    source_macs += model.input_projection.weights
    target_macs += vocab_size * model.d_model
    return 6 * (source_tokens * source_macs + target_tokens * target_macs)
