"""Section 3.5: positions as sinusoids, and the schemes of later papers that replace them.

Sinusoids are added to the embeddings. Rotary positions turn queries and keys; ALiBi and the bias of
T5 add to the scores of self-attention a number that depends on the distance of query and key:

    distance = place of the query - place of the key        positive: the key came before
"""

import math
from collections.abc import Callable
from itertools import count

import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int


def sinusoidal_positions(length: int, d_model: int) -> Float[Array, "t d_model"]:
    """Compute the fixed position encodings of section 3.5, interleaved as in the paper's formula.

        PE(pos, 2i)   = sin(pos / 10000^(2i / d_model))        even columns
        PE(pos, 2i+1) = cos(pos / 10000^(2i / d_model))        odd columns

    tensor2tensor and Marian compute another table, `tensor2tensor_sinusoids`. As its
    frequencies differ, it is no permutation of this one, and weights that were trained with one
    cannot be used with the other.

    Args:
      length: number of positions, from 0.
      d_model: width; even.

    Returns:
      float32 encodings, one row per position.
    """
    pair = jnp.arange(d_model // 2, dtype=jnp.float32)
    frequency = jnp.exp(pair * (-2 * math.log(10_000.0) / d_model))
    angle = jnp.arange(length, dtype=jnp.float32)[:, None] * frequency
    return jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(length, d_model)


def tensor2tensor_sinusoids(length: int, d_model: int) -> Float[Array, "t d_model"]:
    """Compute the position encodings of tensor2tensor and Marian.

        PE(pos, i)               = sin(pos * 10000^(-i / (d_model / 2 - 1)))        left half
        PE(pos, d_model / 2 + i) = cos(pos * 10000^(-i / (d_model / 2 - 1)))        right half

    The last frequency is 1 / 10000 exactly, which the formula of the paper never reaches. See
    `get_timing_signal_1d` of tensor2tensor.

    Args:
      length: number of positions, from 0.
      d_model: width; even. At width 2 the one frequency is 1.

    Returns:
      float32 encodings, one row per position.
    """
    index = jnp.arange(d_model // 2, dtype=jnp.float32)
    frequency = jnp.exp(index * (-math.log(10_000.0) / max(d_model // 2 - 1, 1)))
    angle = jnp.arange(length, dtype=jnp.float32)[:, None] * frequency
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)


def rotary_frequencies(
    d_k: int, base: float = 10_000.0, *, divisors: Callable[[int], list[float]] | None = None
) -> Float32[Array, " pairs"]:
    """Return the angles by which one position turns each pair of elements: base^(-2i / d_k).

    They are theta_i of section 3.2.2 of "RoFormer" (Su et al. 2021). A model that was trained on
    sentences of some length reads longer ones better with other frequencies.

    Args:
      d_k: width of a head's queries and keys; even.
      base: the number that the frequencies are powers of.
      divisors: the numbers that divide the frequencies, such as those of `linear_scaling`, by the
        width of a head; None divides none.

    Returns:
      d_k / 2 frequencies, in radians per position, from the highest to the lowest.
    """
    frequencies = [base ** (-2 * i / d_k) for i in range(d_k // 2)]
    if divisors is not None:
        frequencies = [x / y for x, y in zip(frequencies, divisors(d_k), strict=True)]
    return jnp.array(frequencies, jnp.float32)


def linear_scaling(d_k: int, scale: float) -> list[float]:
    """Return the same divisor, `scale`, for every frequency, so that positions are interpolated.

    This is section 2.3 of "Extending Context Window of Large Language Models via Positional
    Interpolation" (Chen et al. 2023).

    Args:
      d_k: width of a head's queries and keys; even.
      scale: how many times as long as in training sentences are.

    Returns:
      The divisor of each of the d_k / 2 frequencies.
    """
    return [scale for _ in range(d_k // 2)]


def ntk_scaling(d_k: int, scale: float) -> list[float]:
    """Return divisors of 1 for the highest frequency to `scale` for the lowest ("NTK-aware").

    This is as if the base were base * scale^(d_k / (d_k - 2)) (Peng et al. 2023, "YaRN", section
    3.1). At width 2 there is one frequency, the highest.

    Args:
      d_k: width of a head's queries and keys; even.
      scale: how many times as long as in training sentences are.

    Returns:
      The divisor of each of the d_k / 2 frequencies.
    """
    # This is (scale^(d_k / (d_k - 2)))^(2i / d_k).
    return [scale ** (2 * i / max(d_k - 2, 1)) for i in range(d_k // 2)]


def rotate(
    x: Float[Array, "b t h d"], positions: Int[Array, "#b #t"], frequencies: Float[Array, " pairs"]
) -> Float[Array, "b t h d"]:
    """Turn each pair of elements by an angle that grows with the position (Su et al. 2021).

    This is equation 34 of "RoFormer": elements 2i and 2i + 1 are a pair, and at position m

        x_2i     becomes    x_2i cos(m theta_i) - x_2i+1 sin(m theta_i)
        x_2i+1   becomes    x_2i+1 cos(m theta_i) + x_2i sin(m theta_i)

    The product of a query and a key that are turned so depends on their positions only by the
    distance. (Llama's checkpoints for `transformers` pair element i with element i + d / 2: the
    same up to the order of elements.)

    Args:
      x: queries or keys of each head; d is even.
      positions: the position of each.
      frequencies: theta, `[d / 2]`; see `rotary_frequencies`.

    Returns:
      The turned vectors, computed in float32, in the dtype of `x`.
    """
    angles = positions[..., None, None].astype(jnp.float32) * frequencies
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    pairs = x.astype(jnp.float32).reshape(*x.shape[:-1], x.shape[-1] // 2, 2)
    even, odd = pairs[..., 0], pairs[..., 1]
    turned = jnp.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1)
    return turned.reshape(x.shape).astype(x.dtype)


def alibi_slopes(num_heads: int) -> Float32[Array, " h"]:
    """Return the slopes of the heads: 2^(-8 / h), its square, ... (Press et al. 2022, section 3).

    This is for h heads, h being a power of two. Other numbers of heads have the slopes of the power
    of two below, and then every other slope of the power above, as in the authors' code and in
    BLOOM.

    Args:
      num_heads: number of heads, h.
    """

    def geometric(heads: int) -> list[float]:
        return [2 ** (-8 * i / heads) for i in range(1, heads + 1)]

    below = 1 << (num_heads.bit_length() - 1)
    slopes = geometric(below) + geometric(2 * below)[::2][: num_heads - below]
    return jnp.array(slopes, jnp.float32)


def alibi_bias(
    distances: Int[Array, "q k"], num_heads: int, *, causal: bool = False
) -> Float32[Array, "h q k"]:
    """Return `-slope * |distance|`, which ALiBi adds to scores (Press et al. 2022, section 3).

    The paper has a causal model, where no distance is negative. With the absolute value, an encoder
    treats both directions alike, as the authors propose for such models.

    Args:
      distances: place of the query - place of the key.
      num_heads: number of heads, each of which has a slope; see `alibi_slopes`.
      causal: whether positions attend to no later ones; the bias is the same if they do.
    """
    return -alibi_slopes(num_heads)[:, None, None] * jnp.abs(distances).astype(jnp.float32)


def relative_bias(
    distances: Int[Array, "q k"],
    *,
    num_heads: int,
    causal: bool,
    embedding: Float[Array, "buckets h"],
) -> Float32[Array, "h q k"]:
    """Return the number that each head has learned for a distance's bucket (Raffel et al. 2020).

    Args:
      distances: place of the query - place of the key.
      num_heads: number of heads.
      causal: whether positions attend to no later ones, so that no bucket is for these.
      embedding: the number of each bucket and head.
    """
    buckets = relative_position_buckets(distances, len(embedding), bidirectional=not causal)
    return jnp.take(embedding, buckets, axis=0).transpose(2, 0, 1)


def relative_position_buckets(
    distances: Int[Array, "q k"],
    num_buckets: int = 32,
    max_distance: int = 128,
    *,
    bidirectional: bool,
) -> Int[Array, "q k"]:
    """Return the bucket of each distance, for which T5 learns a bias per head (Raffel et al. 2020).

    Half of the buckets hold one distance each. The widths of the others grow geometrically (as
    logarithms of distances do) up to `max_distance`, and the last bucket holds all beyond:
    section 2.1 of "Exploring the Limits of Transfer Learning", and `relative_position_bucket` in
    the authors' code.

    Args:
      distances: place of the query - place of the key.
      num_buckets: number of buckets; even if `bidirectional`.
      max_distance: the distance from which on all are in one bucket.
      bidirectional: whether keys after the query have separate buckets, the upper half of
        all. If not, they share bucket 0 with the query itself, and a mask hides them.

    Returns:
      Numbers of buckets, from 0.
    """
    one_way = num_buckets // 2 if bidirectional else num_buckets
    starts = jnp.array(_bucket_starts(one_way, max_distance), distances.dtype)
    length = jnp.abs(distances) if bidirectional else distances
    bucket = (length[..., None] >= starts).sum(-1, dtype=distances.dtype)
    return jnp.where(distances < 0, bucket + one_way, bucket) if bidirectional else bucket


def _bucket_starts(num_buckets: int, max_distance: int) -> list[int]:
    """Return the smallest distance of each bucket after the first, which starts at 0.

    The bucket of a large distance n is `exact` plus the whole part of

        log(n / exact) / log(max_distance / exact) * (num_buckets - exact)

    Integers decide here whether that reaches j, as floating-point numbers may fall just below.
    """
    exact = num_buckets // 2
    wide = num_buckets - exact
    starts = list(range(1, exact + 1))
    for j in range(1, wide):
        reached = exact ** (wide - j) * max_distance**j
        starts.append(next(n for n in count(exact) if n**wide >= reached))
    return starts
