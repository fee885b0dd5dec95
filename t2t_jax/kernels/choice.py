"""The implementations of products and attention that suit the devices of a mesh."""

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from jax.sharding import Mesh
from jaxtyping import DTypeLike

from t2t_jax.kernels import bfloat16
from t2t_jax.kernels.cudnn import takes_few_queries
from t2t_jax.system.host import instruction_sets, processor_vendor

AttentionKernel: TypeAlias = Literal["xla", "xla_fused", "cudnn"]
"""The implementation of attention: XLA from its products and softmax; the same, with the gradient
of the scores left in float32 to be fused with the products that read it; or cuDNN's kernel."""

CachedAttentionKernel: TypeAlias = Literal["xla", "cudnn"]
"""The implementation of attention of few queries to many keys, as in decoding, of heads that cuDNN
takes."""

LongRowsKernel: TypeAlias = Literal["blockwise", "splash"]
"""The implementation of attention of long rows, where cuDNN does not compute it: in loops over
blocks, or by JAX's kernel for TPUs where it takes the arrays."""

ShortRowsKernel: TypeAlias = Literal["as_others", "at_once"]
"""The implementation of attention of short rows, on NVIDIA GPUs: that of other rows, or the kernels
of `kernels.short_rows`, which compute a row and a head at once."""

ProductForm: TypeAlias = Literal["plain", "fused", "float32_results"]
"""The form of products and their derivatives: with operands that are computed and kept once, as is
fast on CPUs; with operands that the compiler may fuse with what computes them, as accelerators
need; or in bfloat16 as `kernels.bfloat16` has them for CPUs."""

LogitsForm: TypeAlias = Literal["float32", "rounded"]
"""The dtype of the logits from which training computes the loss: float32, or the activations'. All
sums over them are in float32."""

LayerForm: TypeAlias = Literal["loop", "unrolled"]
"""How the layers of a stack are compiled where they have derivatives: as a loop, or one by one. In
a loop, what a layer keeps for its derivative, and its gradients, are copied into arrays of all
layers and out of them."""

LossForm: TypeAlias = Literal["in_passes", "in_one_pass", "within_the_product"]
"""How the loss finds the sums of the logits over the vocabulary: by reading them several times, or
once, or not at all, within the kernel that computes them."""

GreatestForm: TypeAlias = Literal["in_blocks", "in_one_pass"]
"""How a greedy search finds the greatest logits: block by block, as is fast on CPUs, or in one
reading."""

NormForm: TypeAlias = Literal["plain", "kept_moments", "with_products"]
"""How layer normalisation is computed: as JAX writes it, or as `kernels.normalization` does, in any
dtype or with sums that XLA for TPUs computes beside products, in bfloat16."""

ActivationForm: TypeAlias = Literal["plain", "from_results"]
"""How the derivative of max(0, x) is found: from x, or from the result, which is kept in any case,
as `kernels.recomputed` does."""

DropoutForm: TypeAlias = Literal["kept", "found_again"]
"""How the derivative of dropout knows what was dropped: as XLA chooses, which on CPUs keeps a mask
where that is faster; or found again, as `kernels.recomputed` does."""

UpdateForm: TypeAlias = Literal["in_turn", "at_once"]
"""How parameters and the optimiser's state are updated: one after the other, so that each takes the
place of its old value; or in one kernel, which reads the gradients once."""

_BFLOAT16_ON_CPUS = {"avx512_bf16", "amx_bf16"}
"""Instruction sets that multiply bfloat16 and sum in float32, and that XLA has fast kernels for."""


@dataclass(frozen=True)
class Kernels:
    """The implementations that a model computes with. All of them compute the same formulas.

    The type of a field says what the field chooses.
    """

    attention: AttentionKernel = "xla"
    products: ProductForm = "plain"
    layers: LayerForm = "loop"
    loss: LossForm = "in_passes"
    logits: LogitsForm = "float32"
    norms: NormForm = "plain"
    activations: ActivationForm = "plain"
    dropout: DropoutForm = "kept"
    updates: UpdateForm = "in_turn"
    greatest: GreatestForm = "in_blocks"
    cached_attention: CachedAttentionKernel = "xla"
    long_rows: LongRowsKernel = "blockwise"
    short_rows: ShortRowsKernel = "as_others"


XLA_KERNELS = Kernels()
"""The implementations that XLA makes of the formulas alone, which run on any devices."""

OF_PLATFORMS = {
    "gpu": Kernels(
        products="fused",
        layers="unrolled",
        loss="in_one_pass",
        logits="rounded",
        norms="kept_moments",
        activations="from_results",
        dropout="found_again",
        updates="at_once",
        greatest="in_one_pass",
    ),
    "tpu": Kernels(
        attention="xla_fused",
        products="fused",
        layers="unrolled",
        loss="within_the_product",
        norms="with_products",
        updates="at_once",
        long_rows="splash",
    ),
}
"""The implementations that suit all devices of a platform."""


def kernels_of(mesh: Mesh | None, compute_dtype: DTypeLike) -> Kernels:
    """Return the implementations for the devices of a mesh, and the dtype that a model computes in.

    cuDNN's fused attention needs NVIDIA GPUs of compute capability 8.0 or later. On CPUs with
    instructions for bfloat16, products of such matrices have separate forms. Layers are
    compiled one by one on all other devices: by the bytes of the compiled program, a step of the
    base model takes two thirds of its time in a loop on an NVIDIA H200 and half on a TPU v5e.

    Args:
      mesh: the devices, attached or only described. None means any devices: XLA chooses everything.
    """
    if mesh is None:
        return XLA_KERNELS
    devices = [*mesh.devices.flat]  # `flat` itself can be gone through only once
    kernels = OF_PLATFORMS.get(devices[0].platform, XLA_KERNELS)
    if compute_dtype == "bfloat16" and all(map(_is_bfloat16_cpu, devices)):
        return replace(kernels, products="float32_results")
    if all(_capability(device) >= 8 for device in devices):
        kernels = replace(kernels, attention="cudnn", short_rows="at_once")
        few = all(map(takes_few_queries, devices))
        return replace(kernels, cached_attention="cudnn") if few else kernels
    if kernels.norms == "with_products" and compute_dtype != "bfloat16":
        return replace(kernels, norms="kept_moments")
    return kernels


def fast_compute_dtype(mesh: Mesh) -> Literal["float32", "bfloat16"]:
    """Return the dtype in which training and decoding are fastest on the devices of a mesh.

    It is bfloat16 on TPUs, on NVIDIA GPUs of compute capability 8.0 or later, and on CPUs with
    instructions that multiply it faster than float32: AMX, and AVX-512 BF16 on AMD's processors.
    GPUs below 8.0 multiply float16 fast, which is left out: its gradients need loss scaling. On
    Intel's processors, AVX-512 BF16 by itself multiplies no faster. `benchmarks/products.py`
    measures the products in both.
    """
    has_bfloat16 = (
        device.platform == "tpu" or _capability(device) >= 8 or _is_fast_bfloat16_cpu(device)
        for device in mesh.devices.flat
    )
    return "bfloat16" if all(has_bfloat16) else "float32"


def _capability(device: Any) -> float:
    """Return the compute capability of an NVIDIA GPU, or 0 for another device."""
    capability = getattr(device, "compute_capability", "")  # "gfx942" and the like of AMD's
    is_nvidia = device.platform == "gpu" and capability[:1].isdigit()
    return float(capability) if is_nvidia else 0


def _is_bfloat16_cpu(device: Any) -> bool:
    if device.platform != "cpu" or _BFLOAT16_ON_CPUS.isdisjoint(instruction_sets()):
        return False
    return bfloat16.is_supported()


def _is_fast_bfloat16_cpu(device: Any) -> bool:
    has_amx, is_amd = "amx_bf16" in instruction_sets(), processor_vendor() == "AuthenticAMD"
    return (has_amx or is_amd) and _is_bfloat16_cpu(device)
