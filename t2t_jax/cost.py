"""What a model costs: parameters and floating point operations, in closed form, without JAX."""

from t2t_jax.config import ModelConfig


def num_parameters(model: ModelConfig, vocab_size: int) -> int:
    """The number of parameters of `modules.transformer.Transformer`.

    Args:
      model: sizes and options.
      vocab_size: entries of the shared vocabulary.
    """
    norm = 2 * model.d_model
    attention = 2 * _projection_pair(model)
    feed_forward = _feed_forward(model) + model.d_ff + model.d_model  # two biases
    encoder = model.num_encoder_layers * (attention + feed_forward + 2 * norm)
    decoder = model.num_decoder_layers * (2 * attention + feed_forward + 3 * norm)
    embeddings = (1 if model.share_embeddings else 3) * vocab_size * model.d_model
    positions = 2 * model.max_positions * model.d_model if model.position == "learned" else 0
    last_norms = 2 * norm if model.norm_order == "pre" else 0
    return embeddings + positions + encoder + decoder + last_norms


def model_flops_per_step(
    model: ModelConfig,
    vocab_size: int,
    source_tokens: float,
    target_tokens: float,
    *,
    source_length: float = 0.0,
    target_length: float = 0.0,
) -> float:
    """Floating point operations of the matrix products in one training step.

    A token's vector times a matrix of n weights is n multiply-adds, 2 operations each; the
    derivative by the vector takes as many, that by the matrix too: 6 n in all. A source token meets
    the matrices of the encoder, and those for keys and values in the decoder's cross-attention; a
    target token meets all others of the decoder, and the output projection. Attention's own
    products, of queries with keys and of weights with values, take 6 h (d_k + d_v) for every
    position and position that it is compared with, masked or not.

    Left out are padding (unless the tokens count it) and all that is no matrix product: embedding
    look-ups, biases, softmax, layer norm, dropout, loss and optimizer.

    Args:
      model: sizes and options.
      vocab_size: entries of the shared vocabulary.
      source_tokens: source tokens of the step.
      target_tokens: target tokens of the step.
      source_length: positions that a token is compared with in the encoder's self-attention and in
        cross-attention, on average; 0 leaves these products out.
      target_length: the same for the decoder's self-attention.
    """
    pair, feed_forward = _projection_pair(model), _feed_forward(model)
    compare = model.num_heads * (model.key_size + model.value_size)
    encoder_layer = 2 * pair + compare * source_length + feed_forward
    decoder_layer = (
        (2 * pair + compare * target_length)
        + (pair + compare * source_length)  # cross-attention without keys and values
        + feed_forward
    )
    encoder = model.num_encoder_layers * encoder_layer + model.num_decoder_layers * pair
    decoder = model.num_decoder_layers * decoder_layer + vocab_size * model.d_model
    return 6 * (source_tokens * encoder + target_tokens * decoder)


def _projection_pair(model: ModelConfig) -> int:
    """Weights of an attention's projections to keys and values; to queries and output, the same."""
    return model.d_model * model.num_heads * (model.key_size + model.value_size)


def _feed_forward(model: ModelConfig) -> int:
    return 2 * model.d_model * model.d_ff
