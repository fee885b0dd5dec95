"""The tables of the names in a config: functions of a network, positions, optimisers.

A name stands for an equation and for the facts that the rest of the program needs: the parameters
that are learned, and so the costs, and whether a network has a gate. Flags, errors, documents,
modules and costs read these tables alone; `config.tasks` has the table of tasks. A config file adds
an activation, a norm or a score function::

    import jax
    import t2t_jax
    from t2t_jax.config import Config, EncoderDecoderConfig

    t2t_jax.register_activation("relu6", jax.nn.relu6)

    def get_config():
        return Config(model=EncoderDecoderConfig(feed_forward="relu6"))

A run keeps the name, and a copy of the file that registered it; see `workdir.claim`. Loading a run
never executes that copy: a config file registers the name before, or a file that the environment
variable T2T_JAX_REGISTER names.
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
"""The functions of a hidden layer, by the value of `model.feed_forward`; see
`functional.feed_forward` for their formulas."""

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
"""The norms, by the value of `model.norm`."""

SCORE_FUNCTIONS = Table(
    "score function",
    scaled_dot_product=Entry(None),
    dot_product=Entry(None),
    additive=Entry(
        "t2t_jax.functional.attention:additive_scores",
        lambda d_k: {"vector": Parameter((d_k,), deviation=d_k**-0.5)},
    ),
)
"""The scores of queries and keys, by the value of `model.score_function`. Each head learns its own
parameters of a score function."""

TABLES: Mapping[str, Table] = {
    "feed_forward": ACTIVATIONS,
    "norm": NORMALIZATIONS,
    "score_function": SCORE_FUNCTIONS,
}
"""The tables by the field of the config's section `model` that names one of their entries."""


RELATIVE_BUCKETS = 32
"""Learned numbers of each head for relative positions, as in T5 (Raffel et al. 2020)."""


@dataclass(frozen=True)
class PositionFacts:
    """The facts of a scheme by which a network knows positions: one of four ways, or none."""

    sinusoids: str | None = None
    """The place of a function of the number t of positions and the even width d_model, which
    returns fixed vectors `[t, d_model]` to add to embeddings."""
    has_table: bool = False
    """Whether `model.num_positions` learned vectors are added to embeddings."""
    turns: bool = False
    """Whether pairs of numbers of queries and keys are rotated, by the fields `model.rotary_*`."""
    bias: str | None = None
    """The place of a function of distances `[q, k]`, `num_heads`, `causal` and the learned arrays
    by name, which returns the bias `[h, q, k]` to add to the scores of self-attention."""
    parameters: Callable[["ModelConfig"], Mapping[str, Parameter]] = nothing
    """A function from the `ModelConfig` to the parameters that each stack learns, by name. The last
    axis of an array has the width of the model, or for a bias the number of heads."""


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
"""The schemes of positions, by the value of `model.position`."""

ROTARY_SCALINGS = Rows(
    linear="t2t_jax.functional.position:linear_scaling",
    ntk="t2t_jax.functional.position:ntk_scaling",
)
"""The places of the functions that return the divisor of each frequency of rotary positions under
`model.rotary_scale`, by the value of `model.rotary_scaling`."""


@dataclass(frozen=True)
class OptimizerFacts:
    """The facts of an optimiser."""

    make: str
    """The place of the function that makes the `training.optimizer.Optimizer`, given the section
    `training` of a config and the parameters in the boxes that declare them."""
    decays: bool = True
    """Whether `training.weight_decay` may be above 0."""
    least_beta2: float = 0.0
    """The least value of `training.adam_beta2` that the optimiser takes."""
    width_exponent: float | None = None
    """The power of the width with which the learning rate of layers' matrices goes in the
    parametrisations "mup" and "complete", so that what an update adds to their outputs stays of one
    size. For matrices outside of stacks whose sizes both grow it is -1. None means that the
    optimiser has no such rule."""


OPTIMIZERS = Rows(
    adam=OptimizerFacts("t2t_jax.training.optimizer:adam", decays=False, width_exponent=-1),
    # Weight decay is the same for all.
    adamw=OptimizerFacts("t2t_jax.training.optimizer:adam", width_exponent=-1),
    adafactor=OptimizerFacts("t2t_jax.training.optimizer:adafactor"),
    lion=OptimizerFacts("t2t_jax.training.optimizer:lion", least_beta2=0.1, width_exponent=-1),
    # The largest singular value of its updates is 0.2 sqrt(max(m, n)), which grows with the root.
    muon=OptimizerFacts("t2t_jax.training.optimizer:muon", width_exponent=-0.5),
)
"""The optimisers, by the value of `training.optimizer`."""

# A field that names a row is a string for type checkers, and one of the names for flags.
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
"""The tables by the path of the field of a config that names one of their rows."""


def named_entries(config: "Config") -> dict[str, Entry]:
    """Return the entries of the registered functions that a config names, by the field's name."""
    named = {field: table[getattr(config.model, field)] for field, table in TABLES.items()}
    return {field: entry for field, entry in named.items() if entry.title}


def environment_of(config: "Config") -> dict[str, str]:
    """Return the environment variables with which another process can make the same config."""
    sources = (entry.source for entry in named_entries(config).values())
    paths = dict.fromkeys(source.path for source in sources if source)
    given = filter(None, [os.environ.get(FILES), *paths])
    return {FILES: os.pathsep.join(given)} if paths else {}


def register_activation(name: str, function: Function, *, is_gated: bool = False) -> None:
    """Add an activation, which `model.feed_forward` can then name.

    Args:
      name: the name of the activation.
      function: an elementwise function of an array of any shape and float dtype. A training
        checks that each result depends on its own number only; see `modules.named_functions`.
      is_gated: whether the function is that of a gate: the network is then (f(x W) * x V) W_2
        without biases ("GLU Variants Improve Transformer"), and not f(x W_1 + b_1) W_2 + b_2.

    Raises:
      UserError: the name is no word or is taken, or `function` cannot be called.
    """
    ACTIVATIONS.register(name, Entry(function, is_gated=is_gated))


def register_normalization(name: str, function: Function, parameters: Learned = nothing) -> None:
    """Add a normalisation, which `model.norm` can then name.

    Args:
      name: the name of the normalisation.
      function: `function(x, epsilon=..., **learned)` of vectors `[..., width]`, which it returns
        normalised; `epsilon` is `model.norm_epsilon`, and `learned` has the arrays of `parameters`.
        A training checks that each vector is normalised independently of all others.
      parameters: a function from the width to the learned parameters by name; none by default.

    Raises:
      UserError: the name is no word or is taken, or `function` cannot be called.
    """
    NORMALIZATIONS.register(name, Entry(function, parameters))


def register_score_function(name: str, function: Function, parameters: Learned = nothing) -> None:
    """Add a score function of attention, which `model.score_function` can then name.

    Attention with such a function is computed in the plain form: fused kernels and blocks of long
    rows are for products of queries and keys alone.

    Args:
      name: the name of the score function.
      function: `function(query, key, **learned)` of queries `[b, q, h, d_k]` and keys
        `[b, k, h, d_k]`, which returns their scores `[b, h, q, k]`. The score of a query and a key
        of a head must depend on these alone, as decoding calls it with one query at a time. A
        training checks this.
      parameters: a function from d_k to the parameters that each head learns, by name; `learned`
        has these arrays as `[h, ...]`. None by default.

    Raises:
      UserError: the name is no word or is taken, or `function` cannot be called.
    """
    SCORE_FUNCTIONS.register(name, Entry(function, parameters))
