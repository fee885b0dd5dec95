"""The stack of equal layers of every network (section 3.1), all positions at once.

Its layers are compiled as one scan: a parameter of all layers of a stack is one array with the
layer as leading axis (`encoder/layers/self_attention/query/kernel`: `[layers, d_model, h * d_k]`).
"""

import flax.linen as nn
import jax
from jaxtyping import Array, Float

from t2t_jax.config import ModelConfig
from t2t_jax.config.model import Stack
from t2t_jax.config.sections import Remat
from t2t_jax.kernels.products import PRODUCT, has_form
from t2t_jax.modules.context import DEFAULT_CONTEXT, Context
from t2t_jax.modules.layers import Layer
from t2t_jax.modules.normalization import Norm
from t2t_jax.parallel.axes import uses_values


class LayerStack(nn.Module):
    """A stack of N layers: an encoder, a decoder, or a decoder-only model.

    Attributes:
      stack: the depth and the attentions of this stack.
      remat: the part of a layer that the backward pass recomputes instead of keeping it in memory.
    """

    config: ModelConfig
    stack: Stack
    remat: Remat = "none"

    def setup(self) -> None:
        """Create the layers, and the norm at their end if there is one."""
        self.layers = Layer(self.config, self.stack)
        self.norm = last_norm(self.config)

    def __call__(
        self, x: Float[Array, "b t d_model"], context: Context = DEFAULT_CONTEXT
    ) -> Float[Array, "b t d_model"]:
        """Pass embedded tokens through all layers."""
        x = _scan(self.layers, self.stack.num_layers, self.remat, x, context)
        return self.norm(x) if self.norm else x


def last_norm(config: ModelConfig) -> Norm | None:
    """Make the norm at the end of a pre-norm stack; None for other stacks."""
    return Norm(config.normalization) if config.norm_order == "pre" else None


def _scan(
    layer: nn.Module, depth: int, remat: Remat, x: Float[Array, "b t d"], context: Context
) -> Float[Array, "b t d"]:
    """Pass `x` through `depth` copies of `layer`, whose parameters are stacked."""

    def one_layer(layer: nn.Module, x: Array, _: None) -> tuple[Array, None]:
        return layer(x, context), None

    if remat != "none":
        products = jax.checkpoint_policies.save_only_these_names(PRODUCT)
        keep = products if remat == "dots" else None
        # Within a scan the compiler cannot undo it by common subexpressions.
        one_layer = nn.remat(one_layer, prevent_cse=False, policy=keep)
    # The check traces every layer a second time, and the random numbers in it depend on that.
    draws = (layer.is_initializing() and uses_values()) or not context.deterministic
    stack = nn.scan(
        one_layer,
        variable_axes={"params": 0, "intermediates": 0},
        split_rngs={"params": True, "dropout": True},
        length=depth,
        unroll=depth if remat == "none" and _unrolls(x, context) else 1,
        metadata_params={nn.PARTITION_NAME: "layers"},
        check_constancy_invariants=draws,
    )
    return stack(layer, x, None)[0]


_LARGE = 1 << 17
"""Least size of a layer's input for which unrolling pays: compiling takes up to twice as long."""


def _unrolls(x: Float[Array, "b t d"], context: Context) -> bool:
    """Return whether layers of a stack are compiled one by one and not as a loop; see `Kernels`.

    In a loop, XLA on CPUs too reads a layer's saved activations out of arrays of all layers. This
    is slow: in bfloat16, it takes a seventh of a step. In float32 it takes a twentieth, which is
    not worth a change of roundings from earlier versions.
    """
    if context.deterministic:  # nothing has derivatives
        return False
    if context.kernels.layers == "unrolled":
        return True
    return has_form(x, context.kernels.products) and x.size >= _LARGE
