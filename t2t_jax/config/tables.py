"""The tables of config names, which flags, errors, documents, modules and costs read.

A config file, a program or a notebook can add names::

    import jax
    import t2t_jax
    from t2t_jax import Config

    t2t_jax.register("activation", "relu6")(jax.nn.relu6)

    def get_config():
        return Config().replace({"model.feed_forward": "relu6"})

A run stores the name and a copy of the registering file. Loading the run never executes the copy:
the process must register the name before.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from t2t_jax.config.attention_kinds import (
    AttentionKind,
    DotProduct,
    ScoreFunction,
    attention_kind,
)
from t2t_jax.config.field_types import check_callable
from t2t_jax.config.registry import (
    Entry,
    Function,
    Learned,
    Parameter,
    Registry,
    nothing,
    register,
)
from t2t_jax.config.schedules import SCHEDULES
from t2t_jax.config.tasks import TASKS
from t2t_jax.errors import UserError, user_code


def _own_entry(part: Any, title: str) -> Entry:
    is_gated = bool(getattr(part, "is_gated", False))
    parameters = getattr(part, "parameters", nothing)
    entry = part if isinstance(part, Entry) else Entry(part, parameters, is_gated)
    if not callable(entry.function):
        raise UserError(f"{title} is a {type(entry.function).__name__}; register a function")
    return replace(entry, title=title)


ACTIVATIONS = Registry(
    "activation",
    "activations",
    Entry,
    _own_entry,
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

NORMALIZATIONS = Registry(
    "normalization",
    "normalizations",
    Entry,
    _own_entry,
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

ATTENTION_KINDS = Registry(
    "attention",
    "attentions",
    Entry,
    attention_kind,
    scaled_dot_product=Entry(AttentionKind()),
    dot_product=Entry(DotProduct()),
    additive=Entry(
        ScoreFunction(
            "t2t_jax.functional.attention:additive_scores",
            lambda d_k: {"vector": Parameter((d_k,), deviation=d_k**-0.5)},
        )
    ),
)
"""The kinds of attention, by the value of `model.attention_kind`. The function of an entry is an
`AttentionKind`."""

TABLES: Mapping[str, Registry[Entry]] = {
    "feed_forward": ACTIVATIONS,
    "norm": NORMALIZATIONS,
    "attention_kind": ATTENTION_KINDS,
}
"""The tables of functions, by the field of the config section `model`."""


RELATIVE_BUCKETS = 32
"""Number of relative position biases per head, as in T5 (Raffel et al. 2020)."""


@dataclass(frozen=True)
class PositionFacts:
    """The properties of a position scheme."""

    sinusoids: Callable[..., Any] | str | None = None
    """A function, or its import path, of the number of positions t and the width d_model, which
    returns fixed vectors `[t, d_model]` to add to embeddings."""
    has_table: bool = False
    """Whether a learned table of `model.num_positions` vectors is added to embeddings."""
    turns: bool = False
    """Whether pairs of query and key values are rotated, by the fields `model.rotary_*`."""
    bias: Callable[..., Any] | str | None = None
    """A function, or its import path, of distances `[q, k]`, `num_heads`, `causal` and the
    parameters by name, which returns the bias `[h, q, k]` of self-attention scores."""
    parameters: Callable[["ModelConfig"], Mapping[str, Parameter]] = nothing
    """A function from the `ModelConfig` to the parameters of each stack by name. The last axis is
    d_model, or the number of heads for a bias."""


def _table(size: int, width: int, model: "ModelConfig") -> Mapping[str, Parameter]:
    return {"embedding": Parameter((size, width), deviation=model.scaling_width**-0.5)}


def _checked(
    function: Callable[..., Any], title: str, shape_of: Callable[..., tuple[int, ...]]
) -> Callable[..., Any]:
    """Return a function that refuses results of another shape than `shape_of` its arguments."""

    def checked(*arguments: Any, **options: Any) -> Any:
        with user_code(title, "fix the function"):
            result, shape = function(*arguments, **options), shape_of(*arguments, **options)
            if result.shape != shape:
                raise ValueError(f"its result has the shape {result.shape}, not {shape}")
        return result

    return checked


def _own_positions(part: Any, title: str) -> PositionFacts:
    if callable(bias := getattr(part, "bias", None)):
        # A learned parameter may have no default, so the names of all arguments are not known.
        with user_code(f"{title}.bias", "give bias(distances, num_heads, causal, **learned)"):
            inspect.signature(bias).bind_partial(None, num_heads=1, causal=True)
        checked = _checked(bias, title, lambda x, num_heads, **_: (num_heads, *x.shape))
        return PositionFacts(bias=checked, parameters=getattr(part, "parameters", nothing))
    form = (
        " that returns vectors [positions, d_model] to add to embeddings, or an object with the "
        "method bias(distances, num_heads, causal, **learned)"
    )
    check_callable(title, part, "num_positions, d_model", form)
    return PositionFacts(_checked(part, title, lambda *sizes: sizes))


POSITIONS = Registry(
    "position",
    "positions",
    PositionFacts,
    _own_positions,
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

ROTARY_SCALINGS = Registry(
    "",
    linear="t2t_jax.functional.position:linear_scaling",
    ntk="t2t_jax.functional.position:ntk_scaling",
)
"""The import paths of the functions that return the divisors of rotary frequencies, by the value of
`model.rotary_scaling`."""


@dataclass(frozen=True)
class OptimizerFacts:
    """The properties of an optimizer."""

    make: Callable[..., Any] | str
    """A function, or its import path, of the config section `training` and the declared parameters.
    It returns a `training.optimizer.Optimizer` or a transformation of Optax."""
    decays: bool = True
    """Whether the optimizer supports `training.weight_decay`."""
    least_beta2: float = 0.0
    """The minimum value of `training.adam_beta2`."""
    width_exponent: float | None = None
    """The exponent of the width in the learning rate of layer matrices, for the parametrisations
    "mup" and "complete". The exponent keeps the effect of an update on the outputs independent of
    the width. None means that the optimizer does not support these parametrisations."""


def _own_optimizer(part: Any, title: str) -> OptimizerFacts:
    if callable(getattr(part, "init", None)) and callable(getattr(part, "update", None)):
        return OptimizerFacts(lambda training, declared: part)
    form = " that returns a transformation of Optax, or the transformation"
    check_callable(title, part, "training", form)
    return OptimizerFacts(lambda training, declared: part(training))


OPTIMIZERS = Registry(
    "optimizer",
    "optimizers",
    OptimizerFacts,
    _own_optimizer,
    True,
    adam=OptimizerFacts("t2t_jax.training.optimizer:adam", decays=False, width_exponent=-1),
    # Weight decay works the same in all optimizers.
    adamw=OptimizerFacts("t2t_jax.training.optimizer:adam", width_exponent=-1),
    lion=OptimizerFacts("t2t_jax.training.optimizer:lion", least_beta2=0.1, width_exponent=-1),
    # The largest singular value of a Muon update is 0.2 sqrt(max(m, n)): it grows as sqrt(width).
    muon=OptimizerFacts("t2t_jax.training.optimizer:muon", width_exponent=-0.5),
)
"""The optimizers, by the value of `training.optimizer`."""


@dataclass(frozen=True)
class LossFacts:
    """A loss of training."""

    function: Callable[..., Any] | None = None
    """`loss(apply, batch, key)`, which returns a sum and its weight; None is the loss of the paper,
    which fast kernels compute (section 5.4)."""


def _own_loss(part: Any, title: str) -> LossFacts:
    check_callable(title, part, "apply, batch, key", " that returns a sum and its weight")
    return LossFacts(part)


LOSSES = Registry("loss", "losses", LossFacts, _own_loss, True, cross_entropy=LossFacts())
"""The losses, by the value of `training.loss`."""


@dataclass(frozen=True)
class MeasureFacts:
    """A measure of translations, whose mean over sentences selects the best checkpoint."""

    function: Callable[..., Any] | str
    """A function, or its import path, of hypotheses and references that returns one score for each
    sentence; higher is better."""


def _own_measure(part: Any, title: str) -> MeasureFacts:
    check_callable(title, part, "hypotheses, references", " that returns a score per sentence")
    return MeasureFacts(part)


MEASURES = Registry(
    "measure",
    "measures",
    MeasureFacts,
    _own_measure,
    True,
    bleu=MeasureFacts("t2t_jax.tasks.measures.bleu:sentence_bleu"),
    chrf=MeasureFacts("t2t_jax.tasks.measures.bleu:sentence_chrf"),
)
"""The measures, by the value of `evaluation.metric`."""

# Fields that name a row are strings for type checkers, and literals for flags.
if TYPE_CHECKING:
    from t2t_jax.config.model import ModelConfig

    OptimizerName: TypeAlias = str
    PositionName: TypeAlias = str
    ScheduleName: TypeAlias = str
    LossName: TypeAlias = str
    MeasureName: TypeAlias = str
    ScalingName: TypeAlias = str
    TaskName: TypeAlias = str
else:
    OptimizerName, PositionName = OPTIMIZERS.choice, POSITIONS.choice
    ScheduleName, LossName, MeasureName = SCHEDULES.choice, LOSSES.choice, MEASURES.choice
    ScalingName, TaskName = ROTARY_SCALINGS.choice, TASKS.choice

NAMED: Mapping[str, Registry[Any]] = {
    **{f"model.{field}": table for field, table in TABLES.items()},
    "model.position": POSITIONS,
    "model.rotary_scaling": ROTARY_SCALINGS,
    "training.optimizer": OPTIMIZERS,
    "training.schedule": SCHEDULES,
    "training.loss": LOSSES,
    "evaluation.metric": MEASURES,
    "data.task": TASKS,
}
"""The tables by the dotted path of the config field that names a row."""


def register_activation(name: str, function: Function, *, is_gated: bool = False) -> None:
    """Register an activation for `model.feed_forward`.

    Args:
      name: the name in configs.
      function: an elementwise function of an array of any shape and float dtype. Training checks
        that it is elementwise; see `modules.named_functions`.
      is_gated: whether the network is (f(x W) * x V) W_2 without biases (Shazeer 2020), instead of
        f(x W_1 + b_1) W_2 + b_2.

    Raises:
      UserError: the name is invalid or in use, or `function` is not callable.
    """
    register("activation", name)(Entry(function, is_gated=is_gated))


def register_normalization(name: str, function: Function, parameters: Learned = nothing) -> None:
    """Register a normalization for `model.norm`.

    Args:
      name: the name in configs.
      function: `function(x, epsilon=..., **learned)`, which normalizes vectors `[..., width]`;
        `epsilon` is `model.norm_epsilon`, and `learned` has the arrays of `parameters`. Training
        checks that it normalizes each vector independently.
      parameters: a function from the width to the parameters by name; none by default.

    Raises:
      UserError: the name is invalid or in use, or `function` is not callable.
    """
    register("normalization", name)(Entry(function, parameters))


def register_score_function(name: str, function: Function, parameters: Learned = nothing) -> None:
    """Register an attention score function for `model.attention_kind`.

    Fused kernels and blockwise attention support only dot products.

    Args:
      name: the name in configs.
      function: `function(query, key, **learned)`, which returns the scores `[b, h, q, k]` of
        queries `[b, q, h, d_k]` and keys `[b, k, h, d_k]`. A score must depend only on its query
        and its key, as decoding passes one query at a time. Training checks this.
      parameters: a function from d_k to the parameters of each head by name, which `learned`
        contains as `[h, ...]`; none by default.

    Raises:
      UserError: the name is invalid or in use, or `function` is not callable.
    """
    register("attention", name)(Entry(function, parameters))
