"""What a model costs: parameters, operations and memory, in closed form, without JAX."""

from collections.abc import Iterator
from typing import NamedTuple

from t2t_jax.config import Config, ModelConfig
from t2t_jax.config.model import RELATIVE_BUCKETS


def num_parameters(model: ModelConfig, vocab_size: int) -> int:
    """The number of parameters of the network that `modules.models.make_model` makes.

    Args:
      model: sizes and options.
      vocab_size: entries of the shared vocabulary.
    """
    norm = model.normalization.num_parameters(model.d_model)
    feed_forward = _feed_forward(model)
    if not model.is_gated:
        feed_forward += model.d_ff + model.d_model  # two biases
    total = 0
    for stack in model.stacks:
        attentions = sum(attention.num_parameters + norm for attention in stack.attentions)
        each = attentions + feed_forward + norm
        total += stack.num_layers * each
        total += norm * ((model.norm_order == "pre") + model.embedding_norm)
        total += _position_table(model)
    total += sum(model.entries(vocab_size).values()) * model.d_model
    if model.num_patches:  # their projection with its bias, and the class token
        total += (model.patch_values + 2) * model.d_model
    if model.output_transform:
        total += (model.d_model + 1) * model.d_model + norm
    return total + vocab_size * model.output_bias


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
        cross-attention, on average; 0 leaves these products out. Windows bound self-attention.
      target_length: the same for the decoder's self-attention.
    """
    feed_forward = _feed_forward(model)
    of_source: float = 0
    of_target: float = 0
    for stack in model.stacks:
        length = source_length * stack.reads_source + target_length * stack.reads_target
        length = _compared(model, length, causal=stack.reads_target)
        itself, other = stack.self_attention, stack.cross_attention
        layer = itself.matrix_parameters + itself.products_per_pair * length + feed_forward
        remembered = 0
        if other is not None:  # its keys and values are made of the source's tokens
            layer += other.query_parameters + other.products_per_pair * source_length
            remembered = other.memory_parameters
        of_source += stack.num_layers * (layer * stack.reads_source + remembered)
        of_target += stack.num_layers * layer * stack.reads_target
    of_source += model.patch_values * model.d_model
    of_target += (vocab_size + model.d_model * model.output_transform) * model.d_model
    return 6 * (source_tokens * of_source + target_tokens * of_target)


class TrainingMemory(NamedTuple):
    """Bytes that training takes on each device at least.

    Attributes:
      state: bytes of the parameters, of what the optimiser keeps, and of a moving average, float32.
      gradients: bytes of the gradients, float32.
      activations: bytes that the forward pass keeps for the derivatives.
      logits: bytes of the logits, float32, whose place their gradient takes.
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
    devices = parallel.fsdp * parallel.tensor
    weights = 4 * num_parameters(model, vocab_size) // devices
    state = 4 * _state_size(config, vocab_size) // devices
    size = 4 if model.dtype == "float32" else 2
    sources, targets = size * rows * source_length, size * rows * target_length
    # Queries, keys, values and heads of each attention, the hidden layer, and each sub-layer's sum.
    hidden, width = _hidden(model) // parallel.tensor, model.d_model
    activations = inputs = products = largest_layer = 0
    for stack in model.stacks:
        positions = sources * stack.reads_source + targets * stack.reads_target
        attention = stack.self_attention.activations // parallel.tensor
        layer = positions * (attention + hidden + 2 * width)
        if (other := stack.cross_attention) is not None:
            attention = other.activations // parallel.tensor
            remembered = other.cache_width // parallel.tensor
            layer += positions * (attention - remembered + width) + sources * remembered
        heads = sum(each.num_heads * each.d_v for each in stack.attentions) // parallel.tensor
        activations += stack.num_layers * layer
        inputs += stack.num_layers * width * positions
        products += stack.num_layers * (layer - positions * heads)
        largest_layer = max(largest_layer, layer)
    # What is computed again are all layers, one at a time, or what is no product with a matrix.
    kept = {"none": activations, "dots": inputs + products, "layer": inputs + largest_layer}
    activations = min(activations, kept[parallel.remat])
    logits = 4 * rows * target_length * vocab_size // (parallel.tensor * parallel.loss_chunks)
    return TrainingMemory(state, weights, activations, logits, passes)


def _state_size(config: Config, vocab_size: int) -> int:
    """Numbers in the parameters, in what the optimiser keeps, and in a moving average."""
    training, everything = config.training, num_parameters(config.model, vocab_size)
    of_layers = [*_matrices_of_layers(config.model)]
    momentum = sum(number * m * n for number, m, n in of_layers)
    tables = config.model.entries(vocab_size).values()
    matrices = [*of_layers, *((1, entries, config.model.d_model) for entries in tables)]
    squares = everything - sum(number * m * n for number, m, n in matrices)
    factors = sum(number * (m + n) for number, m, n in matrices)
    kept = {
        "lion": everything,
        "muon": momentum + 2 * (everything - momentum),
        "adafactor": factors + squares,
    }.get(training.optimizer, 2 * everything)
    return everything * (1 if training.ema_decay is None else 2) + kept


def _matrices_of_layers(model: ModelConfig) -> Iterator[tuple[int, int, int]]:
    """The matrices of the layers: how many there are of a shape, and the shape."""
    for stack in model.stacks:
        for attention in stack.attentions:
            of_output = attention.num_heads * attention.d_v
            for width in (*attention.projections.values(), of_output):
                yield stack.num_layers, model.d_model, width
        of_feed_forward = _feed_forward(model) // (model.d_model * model.d_ff)
        yield stack.num_layers * of_feed_forward, model.d_model, model.d_ff


def _feed_forward(model: ModelConfig) -> int:
    """Weights of the matrices of a feed-forward network."""
    matrices = 3 if model.is_gated else 2
    return matrices * model.d_model * model.d_ff


def _hidden(model: ModelConfig) -> int:
    """Hidden numbers of a feed-forward network that its derivative needs."""
    return (2 if model.is_gated else 1) * model.d_ff


def _position_table(model: ModelConfig) -> int:
    """Learned numbers of the positions of a stack."""
    if model.position == "learned":
        return model.num_positions * model.d_model
    return RELATIVE_BUCKETS * model.num_heads if model.position == "relative_bias" else 0


def _compared(model: ModelConfig, length: float, causal: bool) -> float:
    """Positions that a position is compared with in self-attention over `length` of them.

    Those of its own block, of the one before and the one after; see `kernels.windowed`.
    """
    window = model.attention_window
    return length if window is None else min(length, (2 if causal else 3) * window)
