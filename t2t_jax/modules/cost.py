"""What a model costs: parameters, operations and memory, in closed form, without JAX."""

from typing import NamedTuple

from t2t_jax.config import Config, ModelConfig


def num_parameters(model: ModelConfig, vocab_size: int) -> int:
    """The number of parameters of `modules.transformer.Transformer`.

    Args:
      model: sizes and options.
      vocab_size: entries of the shared vocabulary.
    """
    norm = 2 * model.d_model
    attention = model.attention.memory_parameters + model.attention.query_parameters
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
    attention, feed_forward = model.attention, _feed_forward(model)
    remember, attend = attention.memory_parameters, attention.query_parameters
    compare = attention.products_per_pair
    encoder_layer = remember + attend + compare * source_length + feed_forward
    decoder_layer = (
        (remember + attend + compare * target_length)
        + (attend + compare * source_length)  # cross-attention without keys and values
        + feed_forward
    )
    encoder = model.num_encoder_layers * encoder_layer + model.num_decoder_layers * remember
    decoder = model.num_decoder_layers * decoder_layer + vocab_size * model.d_model
    return 6 * (source_tokens * encoder + target_tokens * decoder)


class TrainingMemory(NamedTuple):
    """Bytes that training takes on each device at least.

    Attributes:
      state: bytes of the parameters and of Adam's two moments, float32.
      gradients: bytes of the gradients, float32.
      activations: bytes that the forward pass keeps for the derivatives.
      logits: bytes of the logits, whose place their gradient takes.
      passes: number of passes of a step. If there are several, the gradients of earlier passes are
        kept beside everything else.
    """

    state: int
    gradients: int = 0
    activations: int = 0
    logits: int = 0
    passes: int = 1

    @property
    def total(self) -> int:
        """A lower bound on the bytes taken at the moment when most are taken."""
        computed = self.activations + self.logits
        both = self.gradients + computed
        return self.state + (both if self.passes > 1 else max(self.gradients, computed))


def training_memory(
    config: Config,
    vocab_size: int,
    rows: int = 0,
    source_length: int = 0,
    target_length: int = 0,
    passes: int = 1,
) -> TrainingMemory:
    """A lower bound on the memory of training; what XLA takes is up to about twice as much.

    Left out is what depends on the compiler, the kernels or the kind of device: above all the
    attention weights, copies for other layouts, and what is sent between devices.

    Args:
      config: sizes of the model, and how work is laid out over devices.
      vocab_size: entries of the shared vocabulary.
      rows: rows of a batch that a device computes in one pass.
      source_length: source positions of each row.
      target_length: target positions of each row.
      passes: number of passes in which a device computes its rows of a step.
    """
    model, parallel = config.model, config.parallel
    weights = 4 * num_parameters(model, vocab_size) // (parallel.fsdp * parallel.tensor)
    size = 4 if model.compute_dtype == "float32" else 2
    sources, targets = size * rows * source_length, size * rows * target_length
    # Queries, keys, values and heads of each attention, the hidden layer, and each sub-layer's sum.
    attention = model.attention.activations // parallel.tensor
    remembered = model.attention.cache_width // parallel.tensor
    hidden, width = model.d_ff // parallel.tensor, model.d_model
    encoder = sources * (attention + hidden + 2 * width)
    decoder = targets * (2 * attention - remembered + hidden + 3 * width) + sources * remembered
    depths = model.num_encoder_layers, model.num_decoder_layers
    activations = depths[0] * encoder + depths[1] * decoder
    if parallel.remat != "none":  # the inputs of all layers, and one that is computed again
        inputs = width * (depths[0] * sources + depths[1] * targets)
        activations = min(activations, inputs + max(encoder, decoder))
    logits = targets * vocab_size // (parallel.tensor * parallel.loss_chunks)
    return TrainingMemory(3 * weights, weights, activations, logits, passes)


def _feed_forward(model: ModelConfig) -> int:
    return 2 * model.d_model * model.d_ff
