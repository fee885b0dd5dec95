"""The Transformer and its variants in NumPy, from the formulas of the papers.

The tests compare the network with it. It shares no code with the package: it knows the names of the
config's fields and of the parameters, and nothing else. It computes in float64, for one pair of
sentences without padding, and takes its time. In all comments and names, `distance` is the place of
the query less the place of the key.
"""

import math

import numpy as np

NUM_BUCKETS, MAX_DISTANCE = 32, 128  # of the relative bias
GATES = {
    "glu": "sigmoid",
    "reglu": "relu",
    "geglu": "gelu",
    "geglu_tanh": "gelu_tanh",
    "swiglu": "silu",
}
"""The function of each gate (Shazeer 2020, section 2)."""


def logits(params, config, source_tokens, target_tokens, *, bos_id=1):
    """Logits of every target token, `[t, vocab]`, given the source and the targets before it.

    Args:
      params: the network's parameters, out of their boxes.
      config: a `ModelConfig`.
      source_tokens: ids of one sentence.
      target_tokens: ids of its translation.
      bos_id: id that stands before the first target token.
    """
    params = _mapped(lambda x: np.asarray(x, np.float64), params)
    encoded = embed(params, config, "source", list(source_tokens))
    encoded = encoder(params, config, encoded)
    x = embed(params, config, "target", [bos_id, *target_tokens[:-1]])
    x = decoder(params, config, x, encoded) / multiple(config)
    return x @ token_matrix(params, config, "output").T + params.get("output_bias", 0)


def decoder_only_logits(params, config, source_tokens, target_tokens):
    """Logits of every target token of a decoder alone, which reads `source + target`.

    Args:
      params: the network's parameters, out of their boxes.
      config: a `ModelConfig`.
      source_tokens: ids of one source, or the start alone.
      target_tokens: ids of what follows it.
    """
    params = _mapped(lambda x: np.asarray(x, np.float64), params)
    tokens = [*source_tokens, *target_tokens[:-1]]
    embedding = params["embedding"]["embedding"]
    x = embedding[tokens] * embedding_factor(config)
    x = x + added_positions(params, config, "target", len(tokens))
    if config.embedding_norm:
        x = norm(params["target_embedding_norm"], config, x)
    distances = np.subtract.outer(np.arange(len(x)), np.arange(len(x)))
    of_source = np.arange(len(x)) < len(source_tokens)
    allowed = distances >= 0
    if config.prefix_attention:
        allowed |= np.logical_and.outer(of_source, of_source)
    allowed &= np.abs(distances) < (config.attention_window or math.inf)
    side = "source" if config.prefix_attention else "target"  # buckets for both directions, or one
    moved = params | {"source_position": params.get("target_position")}
    bias = position_bias(moved, config, side, distances)
    alpha = (2 * config.num_decoder_layers) ** (1 / 4)
    x = self_attention_layers(
        params["decoder"], config, x, config.num_decoder_layers, alpha, allowed, bias
    )
    output = params["embedding" if config.share_embeddings else "output_projection"]["embedding"]
    logits = x / multiple(config) @ output.T + params.get("output_bias", 0)
    return logits[len(source_tokens) - 1 :]


def _mapped(function, tree):
    if isinstance(tree, dict):
        return {name: _mapped(function, part) for name, part in tree.items()}
    return function(tree)


def _layers(params, count):
    return [_mapped(lambda x, i=i: x[i], params) for i in range(count)]


# Widths that transfer (Yang et al. 2021, table 8; Dey et al. 2025, table 1).


def multiple(config):
    """How many times as wide the network is as its base."""
    return 1 if config.parametrisation == "standard" else config.d_model / config.base_width


def embedding_factor(config):
    """The factor on embeddings, which is that of the base (section 3.4)."""
    return math.sqrt(config.d_model / multiple(config)) if config.scale_embeddings else 1


# Embeddings and positions.


def token_matrix(params, config, use):
    """The matrix `[vocab, d_model]` of "source", "target" or "output" (section 3.4)."""
    if config.share_embeddings or (config.share_source_embedding and use != "output"):
        return params["embedding"]["embedding"]
    if use == "output" and config.share_target_embedding:
        use = "target"
    return params["output_projection" if use == "output" else f"{use}_embedding"]["embedding"]


def embed(params, config, side, tokens):
    """The sum of embeddings and positions, `[t, d_model]`."""
    x = token_matrix(params, config, side)[tokens] * embedding_factor(config)
    x = x + added_positions(params, config, side, len(tokens))
    return norm(params[f"{side}_embedding_norm"], config, x) if config.embedding_norm else x


def added_positions(params, config, side, length):
    """What is added to embeddings at the positions from 0 on, `[length, d_model]` or 0."""
    if config.position == "sinusoidal":
        return sinusoids(length, config.d_model)
    if config.position == "sinusoidal_t2t":
        return sinusoids_of_tensor2tensor(length, config.d_model)
    return params[f"{side}_position"]["embedding"][:length] if config.position == "learned" else 0


def sinusoids(length, width):
    """Sines and cosines by turns (section 3.5)."""
    table = np.zeros((length, width))
    for pos, i in np.ndindex(length, width // 2):
        angle = pos / 10_000 ** (2 * i / width)
        table[pos, 2 * i], table[pos, 2 * i + 1] = math.sin(angle), math.cos(angle)
    return table


def sinusoids_of_tensor2tensor(length, width):
    """All sines and then all cosines, of frequencies from 1 to 1/10000."""
    half = width // 2
    table = np.zeros((length, width))
    for pos, i in np.ndindex(length, half):
        angle = pos * 10_000 ** (-i / max(half - 1, 1))
        table[pos, i], table[pos, half + i] = math.sin(angle), math.cos(angle)
    return table


# Layers.


def encoder(params, config, x):
    """The encoder's output (section 3.1)."""
    depth = config.num_encoder_layers
    # Of DeepNorm (Wang et al. 2022, "DeepNet", figure 2), as that of the decoder.
    alpha = 0.81 * (depth**4 * config.num_decoder_layers) ** (1 / 16)
    distances = np.subtract.outer(np.arange(len(x)), np.arange(len(x)))
    allowed = np.abs(distances) < (config.attention_window or math.inf)
    bias = position_bias(params, config, "source", distances)
    return self_attention_layers(params["encoder"], config, x, depth, alpha, allowed, bias)


def self_attention_layers(stack, config, x, depth, alpha, allowed, bias):
    """A stack of layers that attend to nothing but each other's positions."""
    for layer in _layers(stack["layers"], depth):

        def attend(y, layer=layer):
            return self_attention(layer["self_attention"], config, y, allowed, bias)

        x = residual(layer["self_attention_residual"], config, alpha, x, attend)
        x = feed_forward_residual(layer, config, alpha, x)
    return norm(stack["norm"], config, x) if config.norm_order == "pre" else x


def decoder(params, config, x, encoded):
    """The decoder's output (section 3.1)."""
    alpha = (3 * config.num_decoder_layers) ** (1 / 4)
    distances = np.subtract.outer(np.arange(len(x)), np.arange(len(x)))
    allowed = (distances >= 0) & (distances < (config.attention_window or math.inf))
    bias = position_bias(params, config, "target", distances)
    stack = params["decoder"]
    for layer in _layers(stack["layers"], config.num_decoder_layers):

        def attend(y, layer=layer):
            return self_attention(layer["self_attention"], config, y, allowed, bias)

        def attend_to_encoded(y, layer=layer):
            return cross_attention(layer["cross_attention"], config, y, encoded)

        x = residual(layer["self_attention_residual"], config, alpha, x, attend)
        x = residual(layer["cross_attention_residual"], config, alpha, x, attend_to_encoded)
        x = feed_forward_residual(layer, config, alpha, x)
    return norm(stack["norm"], config, x) if config.norm_order == "pre" else x


def residual(params, config, alpha, x, sublayer):
    """A sub-layer with its residual connection and norm, in one of three orders."""
    if config.norm_order == "post":
        return norm(params["norm"], config, x + sublayer(x))
    if config.norm_order == "pre":
        depth = config.num_decoder_layers  # in the tests that of every stack
        share = config.base_depth / depth if config.parametrisation == "complete" else 1
        return x + share * sublayer(norm(params["norm"], config, x))
    assert config.norm_order == "deep"
    return norm(params["norm"], config, alpha * x + sublayer(x))


def norm(params, config, x):
    """Layer normalisation (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019)."""
    if config.norm == "layer":
        centred = x - x.mean(-1, keepdims=True)
        deviation = np.sqrt(np.mean(centred**2, -1, keepdims=True) + config.norm_epsilon)
        return centred / deviation * params["scale"] + params["bias"]
    assert config.norm == "rms"
    rms = np.sqrt(np.mean(x**2, -1, keepdims=True) + config.norm_epsilon)
    return x / rms * params["scale"]


# Feed-forward networks.


def feed_forward_residual(layer, config, alpha, x):
    """The feed-forward network of a layer with its residual connection."""
    return residual(
        layer["feed_forward_residual"],
        config,
        alpha,
        x,
        lambda y: feed_forward(layer["feed_forward"], config, y),
    )


def feed_forward(params, config, x):
    """Equation 2, or with a gate (Shazeer 2020, equation 6)."""
    kind = config.feed_forward
    if kind in ("relu", "gelu", "gelu_tanh", "silu"):
        hidden = activation(kind, x @ params["kernel_1"] + params["bias_1"])
        return hidden @ params["kernel_2"] + params["bias_2"]
    gate = activation(GATES[kind], x @ params["gate_kernel"])
    return (gate * (x @ params["kernel_1"])) @ params["kernel_2"]


def activation(name, x):
    """The function of each hidden activation."""
    if name == "relu":
        return np.maximum(x, 0)
    if name == "gelu":
        return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
    if name == "gelu_tanh":
        return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
    sigmoid = 1 / (1 + np.exp(-x))
    return {"silu": x * sigmoid, "sigmoid": sigmoid}[name]


# Attention.


def self_attention(params, config, x, allowed, bias):
    """Attention of positions to each other (section 3.2.3)."""
    query, key, value = (heads(params, config, role, x) for role in ("query", "key", "value"))
    if config.position == "rotary":
        query, key = rotated(query, config), rotated(key, config)
    return attention(params, config, query, key, value, allowed, bias)


def cross_attention(params, config, x, encoded):
    """Attention to the encoder's output, all of it, wherever (section 3.2.3)."""
    query = heads(params, config, "query", x)
    key, value = (heads(params, config, role, encoded) for role in ("key", "value"))
    allowed = np.ones((len(x), len(encoded)), bool)
    return attention(params, config, query, key, value, allowed, np.zeros((config.num_heads, 1, 1)))


def heads(params, config, role, x):
    """The queries, keys or values of all heads, `[t, heads, width]`."""
    count = config.num_heads
    if role != "query" and config.num_kv_heads is not None:
        count = config.num_kv_heads
    projected = linear(params[role], config, x).reshape(len(x), count, -1)
    if config.query_key_norm and role != "value":
        projected = norm(params["scores"][f"{role}_norm"], config, projected)
    return projected


def linear(params, config, x):
    """x W, or x W + b."""
    product = x @ params["kernel"]
    return product + params["bias"] if config.attention_bias else product


def attention(params, config, query, key, value, allowed, bias):
    """Concat(head_1, ..., head_h) W^O (section 3.2.2).

    Consecutive heads share keys and values (Ainslie et al. 2023): of 4 heads and 2 pairs of keys
    and values, the first two have the first pair.
    """
    shared_by = config.num_heads // key.shape[1]
    results = []
    for h in range(config.num_heads):
        scores = np.zeros((len(query), len(key)))
        for q, k in np.ndindex(*scores.shape):
            scores[q, k] = score(params, config, h, query[q, h], key[k, h // shared_by])
        scores = np.where(allowed, scores + bias[h], -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        results.append(weights @ value[:, h // shared_by])
    return linear(params["output"], config, np.concatenate(results, axis=-1))


def score(params, config, head, query, key):
    """The score of one key for one query."""
    if config.parametrisation != "standard":  # as in the paper for the heads of the paper, of 64
        usual = {"scaled_dot_product": math.sqrt(64), "dot_product": 64}[config.attention_kind]
        return usual * query @ key / len(key)
    if config.attention_kind == "scaled_dot_product":
        return query @ key / math.sqrt(len(key))
    if config.attention_kind == "dot_product":
        return query @ key
    assert config.attention_kind == "additive"  # Bahdanau et al. 2015, section A.1.2
    return params["scores"]["vector"][head] @ np.tanh(query + key)


# Positions in self-attention.


def rotated(x, config):
    """Rotary positions: pairs as complex numbers, times e^(i m theta) (Su et al. 2021, eq. 12)."""
    length, _, width = x.shape
    base, scale = config.rotary_base, config.rotary_scale
    positions = np.arange(length)
    if config.rotary_scaling == "linear":
        positions = positions / scale
    else:
        assert config.rotary_scaling == "ntk"
        base = base * scale ** (width / (width - 2)) if width > 2 else base
    theta = base ** (-2 * np.arange(width // 2) / width)
    turn = np.exp(1j * positions[:, None, None] * theta)
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
    return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)


def position_bias(params, config, side, distances):
    """What is added to the scores of every head, `[h, q, k]`."""
    bias = np.zeros((config.num_heads, *distances.shape))
    if config.position == "alibi":
        for h, slope in enumerate(alibi_slopes(config.num_heads)):
            bias[h] = -slope * np.abs(distances)
    elif config.position == "relative_bias":
        table = params[f"{side}_position"]["embedding"]
        for q, k in np.ndindex(*distances.shape):
            bias[:, q, k] = table[bucket(distances[q, k], bidirectional=side == "source")]
    return bias


def alibi_slopes(num_heads):
    """The slopes of all heads (Press et al. 2022, section 3)."""
    power = 2 ** math.floor(math.log2(num_heads))
    if power == num_heads:
        return [2 ** (-8 / num_heads * (h + 1)) for h in range(num_heads)]
    others = alibi_slopes(2 * power)[0::2]
    return alibi_slopes(power) + others[: num_heads - power]


def bucket(distance, *, bidirectional, num_buckets=NUM_BUCKETS):
    """The bucket of a distance (Raffel et al. 2020), in an encoder or in a decoder."""
    if bidirectional:
        num_buckets //= 2
        first = num_buckets if distance < 0 else 0
        return first + bucket(abs(distance), bidirectional=False, num_buckets=num_buckets)
    distance, exact = max(distance, 0), num_buckets // 2
    if distance < exact:
        return distance
    share = math.log(distance / exact) / math.log(MAX_DISTANCE / exact)
    # The margin is for powers of two, whose logarithms may be rounded down.
    return min(exact + int(share * (num_buckets - exact) + 1e-9), num_buckets - 1)
