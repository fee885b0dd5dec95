"""Sinusoidal positions (section 3.5), and rotary, ALiBi and T5 positions of later papers.

Sinusoids are added to the embeddings. Rotary positions rotate queries and keys. ALiBi and T5 add a
bias to the self-attention scores, which depends on the distance of query and key:

    distance = query index - key index        positive: the key comes first
"""

import math
from collections.abc import Callable
from itertools import count

import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int


def sinusoidal_positions(length: int, d_model: int) -> Float[Array, "t d_model"]:
    """Compute the sinusoidal position encodings of section 3.5, interleaved as in the paper.

        PE(pos, 2i)   = sin(pos / 10000^(2i / d_model))        even columns
        PE(pos, 2i+1) = cos(pos / 10000^(2i / d_model))        odd columns

    tensor2tensor and Marian use other frequencies; see `tensor2tensor_sinusoids`. Parameters that
    were trained with one table do not work with the other.

    Args:
      length: number of positions, from 0.
      d_model: width of the encodings; even.

    Returns:
      float32 encodings, one row per position.
    """
    pair_index = jnp.arange(d_model // 2, dtype=jnp.float32)
    frequency = jnp.exp(pair_index * (-2 * math.log(10_000.0) / d_model))
    angle = jnp.arange(length, dtype=jnp.float32)[:, None] * frequency  # [t, d_model / 2]
    # Stacking and reshaping interleaves sines (even columns) and cosines (odd columns).
    return jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(length, d_model)


def tensor2tensor_sinusoids(length: int, d_model: int) -> Float[Array, "t d_model"]:
    """Compute the position encodings of tensor2tensor and Marian.

        PE(pos, i)               = sin(pos * 10000^(-i / (d_model / 2 - 1)))        left half
        PE(pos, d_model / 2 + i) = cos(pos * 10000^(-i / (d_model / 2 - 1)))        right half

    The last frequency is exactly 1 / 10000, unlike in the paper's formula. Source:
    `get_timing_signal_1d` of tensor2tensor.

    Args:
      length: number of positions, from 0.
      d_model: width of the encodings; even. At width 2, the only frequency is 1.

    Returns:
      float32 encodings, one row per position.
    """
    index = jnp.arange(d_model // 2, dtype=jnp.float32)
    frequency = jnp.exp(index * (-math.log(10_000.0) / max(d_model // 2 - 1, 1)))
    angle = jnp.arange(length, dtype=jnp.float32)[:, None] * frequency  # [t, d_model / 2]
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)


def rotary_frequencies(
    d_k: int, base: float = 10_000.0, *, divisors: Callable[[int], list[float]] | None = None
) -> Float32[Array, " pairs"]:
    """Compute the rotary frequencies base^(-2i / d_k), theta_i of RoFormer (Su et al. 2021, 3.2.2).

    Args:
      d_k: width of a head's queries and keys; even.
      base: base of the powers.
      divisors: a function of d_k that returns a divisor for each frequency, such as
        `linear_scaling`; lower frequencies help a model to read longer sentences than it was
        trained on. None leaves the frequencies unchanged.

    Returns:
      d_k / 2 frequencies, in radians per position, from the highest to the lowest.
    """
    frequencies = [base ** (-2 * i / d_k) for i in range(d_k // 2)]
    if divisors is not None:
        frequencies = [f / d for f, d in zip(frequencies, divisors(d_k), strict=True)]
    return jnp.array(frequencies, jnp.float32)


def linear_scaling(d_k: int, scale: float) -> list[float]:
    """Return `scale` as the divisor of every rotary frequency, which interpolates positions.

    Source: Chen et al. 2023, "Extending Context Window of Large Language Models via Positional
    Interpolation", section 2.3.

    Args:
      d_k: width of a head's queries and keys; even.
      scale: ratio of the new sentence length to the training length.

    Returns:
      The divisor of each of the d_k / 2 frequencies.
    """
    return [scale for _ in range(d_k // 2)]


def ntk_scaling(d_k: int, scale: float) -> list[float]:
    """Return "NTK-aware" divisors: 1 for the highest rotary frequency to `scale` for the lowest.

    The result equals a larger base, base * scale^(d_k / (d_k - 2)) (Peng et al. 2023, "YaRN",
    section 3.1). At width 2, the only divisor is 1.

    Args:
      d_k: width of a head's queries and keys; even.
      scale: ratio of the new sentence length to the training length.

    Returns:
      The divisor of each of the d_k / 2 frequencies.
    """
    # (scale^(d_k / (d_k - 2)))^(2i / d_k), simplified.
    return [scale ** (2 * i / max(d_k - 2, 1)) for i in range(d_k // 2)]


def rotate(
    x: Float[Array, "b t h d"], positions: Int[Array, "#b #t"], frequencies: Float[Array, " pairs"]
) -> Float[Array, "b t h d"]:
    """Rotate each pair of elements by an angle proportional to the position (rotary positions).

    Source: Su et al. 2021, "RoFormer", equation 34. Elements 2i and 2i + 1 form a pair. At position
    m:

        x_2i     becomes    x_2i cos(m theta_i) - x_2i+1 sin(m theta_i)
        x_2i+1   becomes    x_2i+1 cos(m theta_i) + x_2i sin(m theta_i)

    The dot product of a rotated query and a rotated key depends only on the distance of their
    positions. (Llama checkpoints of `transformers` pair elements i and i + d / 2 instead, which
    only permutes the elements.)

    Args:
      x: queries or keys of each head; d is even.
      positions: position of each query or key.
      frequencies: theta, `[d / 2]`; see `rotary_frequencies`.

    Returns:
      The rotated vectors, computed in float32, in the dtype of `x`.
    """
    angles = positions[..., None, None].astype(jnp.float32) * frequencies  # [b, t, 1, d / 2]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    pairs = x.astype(jnp.float32).reshape(*x.shape[:-1], x.shape[-1] // 2, 2)
    even, odd = pairs[..., 0], pairs[..., 1]
    rotated = jnp.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1)
    return rotated.reshape(x.shape).astype(x.dtype)


def alibi_slopes(num_heads: int) -> Float32[Array, " h"]:
    """Compute the ALiBi slopes 2^(-8i / h) of heads i = 1 ... h (Press et al. 2022, section 3).

    The formula holds if the number of heads h is a power of two. If not, the slopes of the next
    lower power of two come first, followed by every second slope of the next higher power, as in
    the authors' code and BLOOM.

    Args:
      num_heads: number of heads, h.
    """

    def geometric(heads: int) -> list[float]:
        return [2 ** (-8 * i / heads) for i in range(1, heads + 1)]

    power = 1 << (num_heads.bit_length() - 1)  # the greatest power of two <= num_heads
    slopes = geometric(power) + geometric(2 * power)[::2][: num_heads - power]
    return jnp.array(slopes, jnp.float32)


def alibi_bias(
    distances: Int[Array, "q k"], num_heads: int, *, causal: bool = False
) -> Float32[Array, "h q k"]:
    """Compute the ALiBi bias of the scores, `-slope * |distance|` (Press et al. 2022, section 3).

    The ALiBi paper describes causal models, where no distance is negative. The absolute value makes
    the bias symmetric for encoders, as its authors propose.

    Args:
      distances: query index - key index.
      num_heads: number of heads; `alibi_slopes` gives their slopes.
      causal: unused; the bias is the same for causal and bidirectional attention.
    """
    return -alibi_slopes(num_heads)[:, None, None] * jnp.abs(distances).astype(jnp.float32)


def relative_bias(
    distances: Int[Array, "q k"],
    *,
    num_heads: int,
    causal: bool,
    embedding: Float[Array, "buckets h"],
) -> Float32[Array, "h q k"]:
    """Look up T5's learned bias of each distance bucket and head (Raffel et al. 2020).

    Args:
      distances: query index - key index.
      num_heads: number of heads.
      causal: whether positions attend to no later positions, which then need no buckets.
      embedding: learned bias of each bucket and head.
    """
    buckets = relative_position_buckets(distances, len(embedding), bidirectional=not causal)
    return jnp.take(embedding, buckets, axis=0).transpose(2, 0, 1)  # [q, k, h] -> [h, q, k]


def relative_position_buckets(
    distances: Int[Array, "q k"],
    num_buckets: int = 32,
    max_distance: int = 128,
    *,
    bidirectional: bool,
) -> Int[Array, "q k"]:
    """Map each distance to a T5 bucket (Raffel et al. 2020, section 2.1).

    Half of the buckets hold one distance each. The other buckets grow geometrically up to
    `max_distance`, and the last bucket holds all larger distances. The authors' code calls this
    function `relative_position_bucket`.

    Args:
      distances: query index - key index.
      num_buckets: number of buckets; even if `bidirectional`.
      max_distance: the last bucket starts below this distance and holds all larger ones.
      bidirectional: whether keys after the query use the upper half of the buckets. If not, they
        share bucket 0 with the query itself, and a causal mask hides them.

    Returns:
      Bucket indices, from 0.
    """
    num_one_way = num_buckets // 2 if bidirectional else num_buckets
    starts = jnp.array(_bucket_starts(num_one_way, max_distance), distances.dtype)
    magnitude = jnp.abs(distances) if bidirectional else distances
    # The bucket index is the number of bucket starts that the distance has reached.
    bucket = (magnitude[..., None] >= starts).sum(-1, dtype=distances.dtype)
    return jnp.where(distances < 0, bucket + num_one_way, bucket) if bidirectional else bucket


def _bucket_starts(num_buckets: int, max_distance: int) -> list[int]:
    """Return the smallest distance of each bucket after bucket 0, which starts at 0.

    Bucket n holds only distance n, for n < exact = num_buckets // 2. A larger distance n is in
    bucket `exact` plus the integer part of

        log(n / exact) / log(max_distance / exact) * (num_buckets - exact)
    """
    num_exact = num_buckets // 2
    num_wide = num_buckets - num_exact
    starts = list(range(1, num_exact + 1))
    for j in range(1, num_wide):
        # Integer powers compare exactly; floating-point logarithms may fall just below j.
        power = num_exact ** (num_wide - j) * max_distance**j
        starts.append(next(n for n in count(num_exact) if n**num_wide >= power))
    return starts
