"""The loss and the metrics of a training step: the paper's loss, or functions of the user.

A loss returns a sum and its weight, and a metric a sum and its count. The step adds both up over
passes, devices and processes, and divides once.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int, Key

from t2t_jax.batch import Batch
from t2t_jax.config import Config
from t2t_jax.config.tables import LOSSES
from t2t_jax.errors import UserError, quote
from t2t_jax.kernels.reference import Losses
from t2t_jax.modules.network import Network
from t2t_jax.modules.parameters import Parameters
from t2t_jax.modules.transformer import PROJECTED
from t2t_jax.workdir import LOG_FIGURES

LOSS = "loss"
"""The name of the pair of a custom loss."""


class LossSums(NamedTuple):
    """Sums of losses over target tokens.

    Attributes:
      smoothed: label-smoothed cross-entropy, in nats; 0 if a custom loss replaces it.
      nll: negative log-likelihood, in nats; 0 with a custom loss.
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
      pairs: the pairs of metrics by name, and of a custom loss under `LOSS`.
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
    ) -> Losses:
        """Compute label-smoothed loss and negative log-likelihood of every target token, in nats.

        With `parallel.loss_chunks`, the logits of all positions are never in memory together.

        Args:
          key: random key of dropout; None disables dropout.
          label_smoothing: eps_ls; None means `training.label_smoothing`.
        """
        return cast(Losses, self._losses(batch, key, label_smoothing))

    def outputs(self, batch: Batch, key: Key[Array, ""]) -> Outputs:
        """Call a `TokenNetwork` with dropout; no gradient flows through the logits."""
        losses, variables = self._losses(batch, key, mutable=[PROJECTED])
        params, (x,) = jax.lax.stop_gradient((self.params, variables[PROJECTED]["x"]))
        project = partial(self.model.apply, {"params": params}, x, method="logits_of")
        return Outputs(losses, project)

    def _losses(
        self,
        batch: Batch,
        key: Key[Array, ""] | None,
        epsilon: float | None = None,
        mutable: Sequence[str] | bool = False,
    ) -> Any:
        if epsilon is None:
            epsilon = self.config.training.label_smoothing
        options = {"num_chunks": self.config.parallel.loss_chunks, "mutable": mutable}
        return self._call(batch, key, label_smoothing=epsilon, method="losses", **options)

    def _call(self, batch: Batch, key: Key[Array, ""] | None, **options: Any) -> Any:
        options |= {"deterministic": key is None, "first_row": self.first_row}
        rngs = {} if key is None else {"dropout": key}
        return self.model.apply({"params": self.params}, batch, rngs=rngs, **options)


LossFunction: TypeAlias = Callable[[Apply, Batch, Key[Array, ""]], Pair]
"""A function of the model, the rows of a pass `[b, t]` and the random key of the step, which all
passes share. It returns the sum of the loss, and the weight that divides it."""
MetricsFunction: TypeAlias = Callable[[Outputs, Batch], Mapping[str, Pair]]
"""A function of the results of the model and the rows of a pass. It returns sums and counts by
name."""


def step_sums(
    apply: Apply, batch: Batch, key: Key[Array, ""], metrics: MetricsFunction | None = None
) -> StepSums:
    """Compute the sums of a pass, with the loss of the config.

    Args:
      metrics: a function of the results of the call of the model for the paper's loss. With a
        custom loss, it reads another call with dropout by `key`, which costs a forward pass.

    Raises:
      UserError: the result of the loss or of the metrics has another form.
    """
    loss = LOSSES[apply.config.training.loss].function
    outputs, pairs = None, {}
    if loss is not None:
        pairs[LOSS] = _check_pair(loss(apply, batch, key), f"loss {name_of(loss)}", "weight")
        num_tokens = (batch.targets.segments != 0).sum(dtype=jnp.float32)
        losses = LossSums(jnp.zeros(()), jnp.zeros(()), num_tokens)
    elif metrics is None:
        losses = loss_sums(apply.losses(batch, key), batch)
    else:
        outputs = apply.outputs(batch, key)
        losses = loss_sums(outputs.losses, batch)
    if metrics is not None:
        if outputs is None:  # calls of the loss may be inside of another transformation, as a scan
            params = jax.lax.stop_gradient(apply.params)
            outputs = replace(apply, params=params).outputs(batch, key)
        fixed = replace(outputs, losses=jax.lax.stop_gradient(outputs.losses))
        pairs |= _check_pairs(metrics(fixed, batch), f"metrics {name_of(metrics)}")
    return StepSums(losses, pairs)


def loss_sums(losses: Losses, batch: Batch) -> LossSums:
    """Sum the losses over the target tokens of a batch `[b, t]` (section 5.4)."""
    smoothed, nll = losses
    mask = (batch.targets.segments != 0).astype(jnp.float32)  # [b, t], 0 at padding
    return LossSums((smoothed * mask).sum(), (nll * mask).sum(), mask.sum())


def name_of(function: object) -> str:
    """Return the name of a function of the user, for messages."""
    return getattr(function, "__qualname__", type(function).__qualname__)


def _check_pair(value: object, source: str, divisor: str) -> Pair:
    numbers = int | float | np.generic | np.ndarray | jax.Array
    parts = [*value] if isinstance(value, tuple | list) else []
    arrays = [jnp.asarray(x, jnp.float32) for x in parts if isinstance(x, numbers)]
    if len(parts) != 2 or [x.shape for x in arrays] != [(), ()]:
        raise UserError(
            f"{source} returns {quote(value)}; return (sum, {divisor}), two scalars over the rows "
            "of the batch, such as ((values * mask).sum(), mask.sum())"
        )
    return arrays[0], arrays[1]


def _check_pairs(value: Any, source: str) -> dict[str, Pair]:
    names = [*value] if isinstance(value, Mapping) else [""]
    for name in names:
        if not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", str(name)):
            raise UserError(
                f"{source} returns {quote(value)}; return a dict of (sum, count) by name, of "
                'letters, digits and "_": {"token_accuracy": ((correct * mask).sum(), mask.sum())}'
            )
        if name in LOG_FIGURES:
            raise UserError(f"{source} has the name {name}, as the log itself; use another name")
    return {name: _check_pair(value[name], f"{source} for {name}", "count") for name in value}
