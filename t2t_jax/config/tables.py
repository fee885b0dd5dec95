"""The tables of config names: network functions, position schemes and optimizers.

Flags, errors, documents, modules and costs read these tables. A config file can register an
activation, a normalization or a score function::

    import jax
    import t2t_jax
    from t2t_jax.config import Config, EncoderDecoderConfig

    t2t_jax.register_activation("relu6", jax.nn.relu6)

    def get_config():
        return Config(model=EncoderDecoderConfig(feed_forward="relu6"))

A run stores the name and a copy of the registering file, but loading the run never executes the
copy. Before loading, a config file or a file in T2T_JAX_REGISTER must register the name.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from t2t_jax.config.registry import FILES, Entry, Function, Learned, Parameter, Rows, Table, nothing
from t2t_jax.config.tasks import TASKS

ACTIVATIONS = Table(
    "activation",
    relu=Entry("jax.nn:relu"),
    gelu=Entry("t2t_jax.functional.feed_forward:gelu"),
    gelu_tanh=Entry("t2t_jax.functional.feed_forward:gelu_tanh"),
    silu=Entry("jax.nn:silu"),
    glu=Entry("jax.nn:sigmoid", is_gated=True),
    reglu=Entry("jax.nn:relu", is_gated=True),
    geglu=Entry("t2t_jax.functional.feed_forward:gelu", is_gated=True),
    geglu_tanh=Entry("t2t_jax.functional.feed_forward:gelu_tanh", is_gated=True),
    swiglu=Entry("jax.nn:silu", is_gated=True),
)
"""The activations, by the value of `model.feed_forward`; `functional.feed_forward` has their
formulas."""

NORMALIZATIONS = Table(
    "normalization",
    layer=Entry(
        "t2t_jax.functional.normalization:layer_norm",
        lambda width: {"scale": Parameter((width,), 1.0), "bias": Parameter((width,))},
    ),
    rms=Entry(
        "t2t_jax.functional.normalization:rms_norm",
        lambda width: {"scale": Parameter((width,), 1.0)},
    ),
)
"""The normalizations, by the value of `model.norm`."""

SCORE_FUNCTIONS = Table(
    "score function",
    scaled_dot_product=Entry(None),
    dot_product=Entry(None),
    additive=Entry(
        "t2t_jax.functional.attention:additive_scores",
        lambda d_k: {"vector": Parameter((d_k,), deviation=d_k**-0.5)},
    ),
)
"""The attention score functions, by the value of `model.attention_kind`. Each head has separate
parameters."""

TABLES: Mapping[str, Table] = {
    "feed_forward": ACTIVATIONS,
    "norm": NORMALIZATIONS,
    "attention_kind": SCORE_FUNCTIONS,
}
"""The tables of functions, by the field of the config section `model`."""


RELATIVE_BUCKETS = 32
"""Number of relative position biases per head, as in T5 (Raffel et al. 2020)."""


@dataclass(frozen=True)
class PositionFacts:
    """The properties of a position scheme."""

    sinusoids: str | None = None
    """The import path of a function of the number of positions t and the even width d_model, which
    returns fixed vectors `[t, d_model]` to add to embeddings."""
    has_table: bool = False
    """Whether a learned table of `model.num_positions` vectors is added to embeddings."""
    turns: bool = False
    """Whether pairs of query and key values are rotated, by the fields `model.rotary_*`."""
    bias: str | None = None
    """The import path of a function of distances `[q, k]`, `num_heads`, `causal` and the parameters
    by name, which returns the bias `[h, q, k]` of self-attention scores."""
    parameters: Callable[["ModelConfig"], Mapping[str, Parameter]] = nothing
    """A function from the `ModelConfig` to the parameters of each stack by name. The last axis is
    d_model, or the number of heads for a bias."""


def _table(size: int, width: int, model: "ModelConfig") -> Mapping[str, Parameter]:
    return {"embedding": Parameter((size, width), deviation=model.scaling_width**-0.5)}


POSITIONS = Rows(
    sinusoidal=PositionFacts("t2t_jax.functional.position:sinusoidal_positions"),
    sinusoidal_t2t=PositionFacts("t2t_jax.functional.position:tensor2tensor_sinusoids"),
    learned=PositionFacts(
        has_table=True, parameters=lambda model: _table(model.num_positions, model.d_model, model)
    ),
    rotary=PositionFacts(turns=True),
    alibi=PositionFacts(bias="t2t_jax.functional.position:alibi_bias"),
    relative_bias=PositionFacts(
        bias="t2t_jax.functional.position:relative_bias",
        parameters=lambda model: _table(RELATIVE_BUCKETS, model.num_heads, model),
    ),
    none=PositionFacts(),
)
"""The position schemes, by the value of `model.position`."""

ROTARY_SCALINGS = Rows(
    linear="t2t_jax.functional.position:linear_scaling",
    ntk="t2t_jax.functional.position:ntk_scaling",
)
"""The import paths of the functions that return the divisors of rotary frequencies, by the value of
`model.rotary_scaling`."""


@dataclass(frozen=True)
class OptimizerFacts:
    """The properties of an optimizer."""

    make: str
    """The import path of the function that makes the `training.optimizer.Optimizer` from the config
    section `training` and the declared parameters."""
    decays: bool = True
    """Whether the optimizer supports `training.weight_decay`."""
    least_beta2: float = 0.0
    """The minimum value of `training.adam_beta2`."""
    width_exponent: float | None = None
    """The exponent of the width in the learning rate of layer matrices, for the parametrisations
    "mup" and "complete". The exponent keeps the effect of an update on the outputs independent of
    the width. None means that the optimizer does not support these parametrisations."""


OPTIMIZERS = Rows(
    adam=OptimizerFacts("t2t_jax.training.optimizer:adam", decays=False, width_exponent=-1),
    # Weight decay works the same in all optimizers.
    adamw=OptimizerFacts("t2t_jax.training.optimizer:adam", width_exponent=-1),
    adafactor=OptimizerFacts("t2t_jax.training.optimizer:adafactor"),
    lion=OptimizerFacts("t2t_jax.training.optimizer:lion", least_beta2=0.1, width_exponent=-1),
    # The largest singular value of a Muon update is 0.2 sqrt(max(m, n)): it grows as sqrt(width).
    muon=OptimizerFacts("t2t_jax.training.optimizer:muon", width_exponent=-0.5),
)
"""The optimizers, by the value of `training.optimizer`."""

# Fields that name a row are strings for type checkers, and literals for flags.
if TYPE_CHECKING:
    from t2t_jax.config.config import Config
    from t2t_jax.config.model import ModelConfig

    OptimizerName: TypeAlias = str
    PositionName: TypeAlias = str
    ScalingName: TypeAlias = str
    TaskName: TypeAlias = str
else:
    OptimizerName, PositionName = OPTIMIZERS.choice, POSITIONS.choice
    ScalingName, TaskName = ROTARY_SCALINGS.choice, TASKS.choice

NAMED: Mapping[str, Rows[Any]] = {
    **{f"model.{field}": table for field, table in TABLES.items()},
    "model.position": POSITIONS,
    "model.rotary_scaling": ROTARY_SCALINGS,
    "training.optimizer": OPTIMIZERS,
    "data.task": TASKS,
}
"""The tables by the dotted path of the config field that names a row."""


def named_entries(config: "Config") -> dict[str, Entry]:
    """Return the registered functions that a config uses, by field name."""
    entries = {field: table[getattr(config.model, field)] for field, table in TABLES.items()}
    return {field: entry for field, entry in entries.items() if entry.title}


def environment_of(config: "Config") -> dict[str, str]:
    """Return the environment variables that another process needs for the same config."""
    sources = (entry.source for entry in named_entries(config).values())
    paths = dict.fromkeys(source.path for source in sources if source)
    files = filter(None, [os.environ.get(FILES), *paths])
    return {FILES: os.pathsep.join(files)} if paths else {}


def register_activation(name: str, function: Function, *, is_gated: bool = False) -> None:
    """Register an activation for `model.feed_forward`.

    Args:
      name: the name of the activation.
      function: an elementwise function of an array of any shape and float dtype. Training checks
        that the function is elementwise; see `modules.named_functions`.
      is_gated: whether the function is a gate. The network is then (f(x W) * x V) W_2 without
        biases (Shazeer 2020), instead of f(x W_1 + b_1) W_2 + b_2.

    Raises:
      UserError: the name is invalid or in use, or `function` is not callable.
    """
    ACTIVATIONS.register(name, Entry(function, is_gated=is_gated))


def register_normalization(name: str, function: Function, parameters: Learned = nothing) -> None:
    """Register a normalization for `model.norm`.

    Args:
      name: the name of the normalization.
      function: `function(x, epsilon=..., **learned)`, which normalizes vectors `[..., width]`;
        `epsilon` is `model.norm_epsilon`, and `learned` has the arrays of `parameters`. Training
        checks that the function normalizes each vector independently.
      parameters: a function from the width to the parameters by name; none by default.

    Raises:
      UserError: the name is invalid or in use, or `function` is not callable.
    """
    NORMALIZATIONS.register(name, Entry(function, parameters))


def register_score_function(name: str, function: Function, parameters: Learned = nothing) -> None:
    """Register an attention score function for `model.attention_kind`.

    Fused kernels and blockwise attention support only dot products, so attention with a registered
    function uses neither.

    Args:
      name: the name of the score function.
      function: `function(query, key, **learned)`, which returns the scores `[b, h, q, k]` of
        queries `[b, q, h, d_k]` and keys `[b, k, h, d_k]`. A score must depend only on its query
        and its key, as decoding passes one query at a time. Training checks this condition.
      parameters: a function from d_k to the parameters of each head by name, which `learned`
        contains as `[h, ...]`; none by default.

    Raises:
      UserError: the name is invalid or in use, or `function` is not callable.
    """
    SCORE_FUNCTIONS.register(name, Entry(function, parameters))
