"""What a training step minimizes and measures: the paper's loss, or functions of the user.

A loss returns a sum and its weight, and a metric a sum and its count. The step adds both up over
passes, devices and processes, and divides once.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int, Key

from t2t_jax.batch import Batch
from t2t_jax.config import Config
from t2t_jax.errors import UserError, in_one_line, quote
from t2t_jax.kernels.reference import Losses
from t2t_jax.modules.network import Network
from t2t_jax.modules.parameters import Parameters
from t2t_jax.modules.transformer import PROJECTED
from t2t_jax.workdir import LOG_FIGURES

LOSS = "loss"
"""The name of the pair of an own loss."""
_MAX_ERROR = 300  # characters of an exception; those of JAX are long


class LossSums(NamedTuple):
    """Sums of losses over target tokens, which parts of a batch add up before the division.

    Attributes:
      smoothed: label-smoothed cross-entropy, in nats; 0 if an own loss replaces it.
      nll: negative log-likelihood, in nats; 0 with an own loss.
      tokens: number of target tokens, without padding.
    """

    smoothed: Float32[Array, ""]
    nll: Float32[Array, ""]
    tokens: Float32[Array, ""]


Pair: TypeAlias = tuple[Float32[Array, ""], Float32[Array, ""]]
"""A sum, and the weight or count that divides it."""


class StepSums(NamedTuple):
    """All sums of a step.

    Attributes:
      pairs: the pairs of metrics by name, and of an own loss under `LOSS`.
    """

    losses: LossSums
    pairs: Mapping[str, Pair]

    @property
    def loss(self) -> Pair:
        """Return the sum that the step minimizes, and its weight."""
        return self.pairs.get(LOSS, (self.losses.smoothed, self.losses.tokens))


@dataclass(frozen=True)
class Outputs:
    """The results of a call of the model, for metrics.

    Attributes:
      losses: label-smoothed loss and negative log-likelihood of every target token `[b, t]`, in
        nats; values at padding are meaningless.
    """

    losses: Losses
    _project: Callable[[], Float[Array, "b t vocab"]]

    @cached_property
    def logits(self) -> Float[Array, "b t vocab"]:
        """Compute the logits of every target token; a step computes them only if this is read."""
        return self._project()


@dataclass(frozen=True)
class Apply:
    """The model with the parameters of a step. A loss may call it more than once.

    Attributes:
      first_row: index of the first row of the batch in the global batch, so that dropout does not
        depend on passes and devices. Fold it into the key of random numbers of your own.
    """

    config: Config
    model: Network
    params: Parameters
    first_row: Int[Array, ""] | int = 0

    def __call__(
        self, batch: Batch, key: Key[Array, ""] | None = None
    ) -> Float[Array, "b t vocab"]:
        """Compute the logits of every target token, with dropout by `key`; None disables it."""
        return cast(Array, self._call(batch, key))

    def losses(
        self,
        batch: Batch,
        key: Key[Array, ""] | None = None,
        *,
        label_smoothing: float | None = None,
        **options: Any,
    ) -> Losses:
        """Compute label-smoothed loss and negative log-likelihood of every target token, in nats.

        With `parallel.loss_chunks`, the logits of all positions are never in memory together.

        Args:
          key: random key of dropout; None disables dropout.
          label_smoothing: eps_ls; None means `training.label_smoothing`.
          options: options of `flax.linen.Module.apply`, such as `mutable`.
        """
        if label_smoothing is None:
            label_smoothing = self.config.training.label_smoothing
        options |= {"label_smoothing": label_smoothing, "method": "losses"}
        options["num_chunks"] = self.config.parallel.loss_chunks
        return cast(Losses, self._call(batch, key, **options))

    def outputs(self, batch: Batch, key: Key[Array, ""]) -> Outputs:
        """Call a `TokenNetwork` with dropout; no gradient flows through the logits."""
        losses, variables = cast(Any, self.losses(batch, key, mutable=[PROJECTED]))
        params, (x,) = jax.lax.stop_gradient((self.params, variables[PROJECTED]["x"]))
        project = partial(self.model.apply, {"params": params}, x, method="logits_of")
        return Outputs(losses, project)

    def _call(self, batch: Batch, key: Key[Array, ""] | None, **options: Any) -> Any:
        options |= {"deterministic": key is None, "first_row": self.first_row}
        rngs = {} if key is None else {"dropout": key}
        return self.model.apply({"params": self.params}, batch, rngs=rngs, **options)


LossFunction: TypeAlias = Callable[[Apply, Batch, Key[Array, ""]], Pair]
"""A function of the model, the rows of a pass `[b, t]` and the random key of the step, the same in
all passes. It returns the sum of the loss, and the weight that divides it."""
MetricsFunction: TypeAlias = Callable[[Outputs, Batch], Mapping[str, Pair]]
"""A function of the results of the model and the rows of a pass. It returns sums and counts by
name."""


@dataclass(frozen=True)
class Objective:
    """The functions that a step minimizes and measures.

    Attributes:
      loss: None is the label-smoothed loss of section 5.4 per target token.
      metrics: read the results of the same call of the model as the paper's loss. With an own loss,
        they read a further call with dropout by the key of the step, which costs a forward pass.
    """

    loss: LossFunction | None = None
    metrics: MetricsFunction | None = None

    def sums(self, apply: Apply, batch: Batch, key: Key[Array, ""]) -> StepSums:
        """Compute the sums of a pass.

        Raises:
          UserError: a function of the user fails, or its result has another form.
        """
        pairs, outputs = {}, None
        if self.loss is not None:
            result = _called(self.loss, "loss(apply, batch, key)", apply, batch, key)
            pairs[LOSS] = _pair(result, f"loss {name_of(self.loss)}", "weight")
            num_tokens = (batch.targets.segments != 0).sum(dtype=jnp.float32)
            losses = LossSums(jnp.zeros(()), jnp.zeros(()), num_tokens)
        elif self.metrics is None:
            losses = loss_sums(apply.losses(batch, key), batch)
        else:
            outputs = apply.outputs(batch, key)
            losses = loss_sums(outputs.losses, batch)
        if self.metrics is not None:
            # Not a call of the loss: it may be inside of another transformation, such as a scan.
            params = jax.lax.stop_gradient(apply.params)
            outputs = outputs or replace(apply, params=params).outputs(batch, key)
            fixed = replace(outputs, losses=jax.lax.stop_gradient(outputs.losses))
            result = _called(self.metrics, "metrics(outputs, batch)", fixed, batch)
            pairs |= _named_pairs(result, f"metrics {name_of(self.metrics)}")
        return StepSums(losses, pairs)


PAPER = Objective()
"""The loss of section 5.4, without further metrics."""


def loss_sums(losses: Losses, batch: Batch) -> LossSums:
    """Sum the losses over the target tokens of a batch (section 5.4).

    Args:
      losses: the label-smoothed loss and the negative log-likelihood of every target position.
      batch: arrays `[b, t]`.
    """
    smoothed, nll = losses
    mask = (batch.targets.segments != 0).astype(jnp.float32)  # [b, t], 0 at padding
    return LossSums((smoothed * mask).sum(), (nll * mask).sum(), mask.sum())


def name_of(function: object) -> str:
    """Return the name of a function of the user, for messages."""
    return getattr(function, "__qualname__", type(function).__qualname__)


def _called(function: Callable[..., object], form: str, *args: object) -> object:
    try:
        return function(*args)
    except UserError:
        raise
    except Exception as error:  # of any kind: it is the user's function
        reason = in_one_line(f"{type(error).__name__}: {error}")[:_MAX_ERROR]
        raise UserError(
            f"{name_of(function)} fails as {form}, with arrays [rows, length] of a traced batch: "
            f"{reason}"
        ) from error


def _pair(value: object, source: str, divisor: str) -> Pair:
    """Return a pair in float32, or refuse another value."""
    numbers = int | float | np.generic | np.ndarray | jax.Array
    parts = [*value] if isinstance(value, tuple | list) else []
    arrays = [jnp.asarray(x, jnp.float32) for x in parts if isinstance(x, numbers)]
    if len(parts) != 2 or [x.shape for x in arrays] != [(), ()]:
        raise UserError(
            f"{source} returns {quote(value)}; return (sum, {divisor}), two scalars over the rows "
            "of the batch, such as ((values * mask).sum(), mask.sum())"
        )
    return arrays[0], arrays[1]


def _named_pairs(value: object, source: str) -> dict[str, Pair]:
    if not isinstance(value, Mapping):
        raise UserError(
            f"{source} returns {quote(value)}; return a dict of (sum, count) by name, such as "
            '{"token_accuracy": ((correct * mask).sum(), mask.sum())}'
        )
    for name in value:
        if not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", str(name)) or name in LOG_FIGURES:
            problem = "which the log already has" if name in LOG_FIGURES else "which is no name"
            raise UserError(
                f"{source} names a metric {quote(name)}, {problem}; use another name, of letters, "
                "digits and underscores"
            )
    return {name: _pair(pair, f"{source} for {name}", "count") for name, pair in value.items()}
