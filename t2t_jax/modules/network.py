"""What training needs of a network, whichever network it is, and its parameters."""

from functools import cache, partial
from typing import Any, Protocol, runtime_checkable

import jax
from jaxtyping import Array, Float, Int, Key

from t2t_jax.batch import Batch
from t2t_jax.config import ModelConfig
from t2t_jax.modules.matrices import Parameters


@runtime_checkable
class Network(Protocol):
    """A network that can be trained: a Flax module with these fields and methods.

    `modules.transformer` has the paper's. How a network decodes is its `DecodingModel`, and which
    config asks for which network stands in `modules.models`.
    """

    def __hash__(self) -> int:
        """That of its fields: networks are compiled in."""

    @property
    def config(self) -> ModelConfig:
        """Its sizes and options."""

    def init(self, rngs: Any, *args: Any, **options: Any) -> Any:
        """Its variables before training (`flax.linen.Module.init`).

        Args:
          rngs: PRNG key of the initialisation.
          args: a batch.
          options: `deterministic=True`.
        """

    def apply(self, variables: Any, *args: Any, **options: Any) -> Any:
        """What one of its methods computes (`flax.linen.Module.apply`).

        Args:
          variables: with its parameters as "params".
          args: of the method.
          options: `method`, the method's name; `rngs`; and what the method takes by name.
        """

    def example(self) -> Batch:
        """A batch of the form that it takes, by which its parameters are made."""

    def losses(
        self,
        batch: Batch,
        *,
        label_smoothing: float,
        num_chunks: int = 1,
        deterministic: bool = True,
        first_row: Int[Array, ""] | int = 0,
    ) -> tuple[Float[Array, "b t"], Float[Array, "b t"]]:
        """Label-smoothed loss and negative log-likelihood of every target token, in nats.

        Args:
          batch: arrays `[b, s]` and `[b, t]`.
          label_smoothing: eps_ls.
          num_chunks: see `functional.loss.projected_cross_entropy`.
          deterministic: no dropout; otherwise pass `rngs={"dropout": key}`.
          first_row: where the first row stands in the global batch; dropout depends on it.
        """


def init_parameters(model: Network, key: Key[Array, ""]) -> Parameters:
    """Make the parameters before training, each in a box that declares it (see `nn.unbox`).

    Args:
      model: the network.
      key: PRNG key for the initialisers.
    """
    return model.init(key, model.example(), deterministic=True)["params"]


@cache
def declared_parameters(model: Network) -> Parameters:
    """Return the shapes of `init_parameters`, in its boxes: nothing is computed."""
    return jax.eval_shape(partial(init_parameters, model), jax.random.key(0))
