"""`Kernels`: the functions that a network computes with, in a preset for each kind of device.

A preset replaces functions of `kernels.reference`, which is plain JAX and documents the arguments.
All presets compute the same formulas: those of `functional`, with roundings in other places.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from jaxtyping import Array, Bool, DTypeLike, Float, Float32, Int, PyTree

from t2t_jax.functional.attention import ScaledProducts
from t2t_jax.functional.dropout import DropoutKey

Score: TypeAlias = Callable[
    [Float[Array, "b q h d_k"], Float[Array, "b k h d_k"]], Float32[Array, "b h q k"]
]
"""A score function of queries and keys: a pytree whose leaves are what the heads learn."""
PRODUCTS: Score = ScaledProducts()
"""The score function of the paper."""

DistanceBias: TypeAlias = Callable[[Int[Array, "q k"]], Float32[Array, "h q k"]]
"""The function of `masks.distances` that relative positions add to the scores of each head."""

Heads: TypeAlias = tuple[Float[Array, "b q h d_v"], Bool[Array, "b q 1"] | None]
"""Weighted values, and an array that is True for the queries that may attend to something, or None.
Without an array, the values of other queries are zero. With one they are arbitrary but finite, and
`Kernels.linear` gets it as `rows` and sets their products to zero: within its kernel this costs
less than setting the values to zero."""

Losses: TypeAlias = tuple[Float[Array, "b t"], Float[Array, "b t"]]
"""The smoothed loss and the negative log-likelihood of every token, in nats."""

CacheLayout: TypeAlias = Literal["turned", "in_order", "stacked"]
"""The layout of keys and values in decoding; see `modules.cache`."""


@dataclass(frozen=True)
class Kernels:
    """The functions that a network computes with."""

    attention: Callable[..., Heads]
    """Equation 1 (section 3.2.1)."""
    linear: Callable[..., Float[Array, "b t d_out"]]
    """Projections of attention (section 3.2.2) and of the feed-forward network (section 3.3)."""
    logits: Callable[[Float[Array, "b t d"], Float[Array, "v d"]], Float32[Array, "b t v"]]
    """The output projection (section 3.4), summed in float32."""
    next_logits: Callable[..., Float32[Array, "b k v"]]
    """The output projection of one position of each hypothesis."""
    losses: Callable[..., Losses]
    """The output projection, and the loss of section 5.4."""
    layer_norm: Callable[..., Float[Array, "*t d"]]
    """Layer normalisation in training; elsewhere it is plain."""
    dropout: Callable[[Float[Array, "..."], float, DropoutKey | None], Float[Array, "..."]]
    """Dropout (section 5.4)."""
    relu: Callable[[Float[Array, "..."]], Float[Array, "..."]]
    """max(0, x) (section 3.3)."""
    unrolls: Callable[[Float[Array, "b t d"]], bool]
    """Whether training compiles the layers of a stack one by one, for the input of the stack. A
    loop copies what each layer saves for its derivative into stacked arrays."""
    finish: Callable[[PyTree], PyTree]
    """A function of the new optimizer state, and of the new parameters, before anything reads them:
    the identity, or a barrier that makes the compiler finish the update first."""
    normalizer: Callable[[Float32[Array, "b k v"]], Float32[Array, "b k"]]
    """The log of the sum of exponentials of the logits of each hypothesis."""
    cache_layout: Callable[[int | None, bool], CacheLayout]
    """The layout in which decoding keeps keys and values, for a number of hypotheses and whether
    fused attention takes the heads. None is the layout of sources."""
    cache_dtype: Callable[[DTypeLike], DTypeLike]
    """The dtype in which decoding keeps keys and values, for the dtype of activations."""
    greatest: Callable[..., tuple[Int[Array, "b k"], Float32[Array, "b k"]]] | None = None
    """A function of logits, and of the same with -inf for tokens that may not be chosen, that gives
    the index of the greatest choice, and `normalizer`; None leaves it to the search."""
    rounds_biases: bool = False
    """Whether decoding keeps biases in the dtype of activations: XLA for GPUs adds a bias within a
    product, unless it has to convert the bias."""
