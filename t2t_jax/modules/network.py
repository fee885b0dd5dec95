"""The protocol of networks for training, and their initial parameters."""

from functools import cache, partial
from typing import Any, Protocol, runtime_checkable

import jax
from jax.sharding import Mesh
from jaxtyping import Array, Int, Key, PyTree

from t2t_jax.batch import Batch
from t2t_jax.config import ModelConfig
from t2t_jax.kernels.reference import Losses
from t2t_jax.modules import interceptors, parameters
from t2t_jax.parallel import axes, jax_settings


@runtime_checkable
class Network(Protocol):
    """A network for training: a Flax module with these fields and methods.

    `modules.transformer` implements the paper's network. A `DecodingModel` defines how a network
    decodes, and `modules.models` maps configs to networks.
    """

    def __hash__(self) -> int:
        """Return the hash of the fields, for keys of compiled programs."""

    @property
    def config(self) -> ModelConfig:
        """Return the sizes and options of the network."""

    def init(self, rngs: Key[Array, ""], batch: Batch, /, *, deterministic: bool) -> PyTree[Array]:
        """Make the variables before training (`flax.linen.Module.init`).

        Args:
          rngs: PRNG key of the initialization.
          batch: a batch like `example`.
          deterministic: True.
        """

    def apply(self, variables: PyTree, *args: object, **options: Any) -> Any:
        """Call a method of the network (`flax.linen.Module.apply`).

        Args:
          options: `method`, the name of the method; `rngs`; and keyword arguments of the method.
        """

    def example(self) -> Batch:
        """Return an example batch, with which Flax initializes the parameters."""

    def losses(
        self,
        batch: Batch,
        *,
        label_smoothing: float,
        num_chunks: int = 1,
        deterministic: bool = True,
        first_row: Int[Array, ""] | int = 0,
    ) -> Losses:
        """Compute label-smoothed loss and negative log-likelihood of every target token, in nats.

        Args:
          batch: arrays `[b, s]` and `[b, t]`.
          label_smoothing: eps_ls.
          num_chunks: see `kernels.cross_entropy.in_chunks`.
          deterministic: whether dropout is off; if not, pass `rngs={"dropout": key}`.
          first_row: index of the first batch row in the global batch, for dropout.
        """


@jax_settings.fixed_random_bits()
def init_parameters(model: Network, key: Key[Array, ""]) -> parameters.Parameters:
    """Initialize the parameters in boxes that declare their kinds (see `nn.unbox`)."""
    # Ignore interceptors: one that skips a method would leave out the parameters of that method.
    with parameters.declaring(), interceptors.only_interceptors(()):
        return model.init(key, model.example(), deterministic=True)["params"]


@cache
def declared_parameters(model: Network) -> parameters.Parameters:
    """Return the shapes of `init_parameters` in boxes, without computing the values."""
    with axes.only_shapes():
        return jax.eval_shape(partial(init_parameters, model), jax_settings.random_key(0))


def abstract_parameters(model: Network, mesh: Mesh) -> parameters.Parameters:
    """Return a `jax.ShapeDtypeStruct` with a sharding for each parameter."""
    for stack in model.config.stacks:
        for attention in stack.attentions:
            attention.check_devices(mesh.shape["tensor"])
    return axes.abstract_arrays(mesh, declared_parameters(model))
