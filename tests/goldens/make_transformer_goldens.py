"""Write `transformer.npz`: what PyTorch computes for the network, the loss and the optimizer.

    pip install torch==2.13.0 numpy
    python tests/goldens/make_transformer_goldens.py

The tests read the file and need no PyTorch. Everything is computed in float64 from fixed seeds and
stored as float32, under names that start with

    weights/      the parameters, named and laid out as in t2t_jax, with a leading axis of layers;
                  `encoder/norm` and `decoder/norm` are for the pre-norm order alone
    inputs/       `source [b, s, d]` and `target [b, t, d]`, embedded; their segments; and the
                  cotangents of both outputs, zero in padding
    post/, pre/   of either norm order, the outputs `encoded` and `decoded`, and `gradient/...` of
                  sum(encoded * cotangent) + sum(decoded * cotangent) by every weight and input
    loss/         logits, targets, and of each label smoothing the loss per token (`smoothed_0.1`)
                  and the gradient of its sum weighted with `cotangent` (`gradient_0.1`)
    adam/         twenty steps of Adam: the gradients fed in, the learning rates of equation 3, and
                  the parameters before the first step and after each
"""

from pathlib import Path

import numpy as np
import torch

D_MODEL, NUM_HEADS, D_FF, LAYERS = 8, 2, 16, 2
SOURCE_LENGTHS, TARGET_LENGTHS = (5, 3), (3, 4)
WARMUP_STEPS, ADAM_STEPS = 8, 20

_ATTENTIONS = {"self_attn": "self_attention", "multihead_attn": "cross_attention"}
_NORMS = {
    "encoder": {"norm1": "self_attention", "norm2": "feed_forward"},
    "decoder": {"norm1": "self_attention", "norm2": "cross_attention", "norm3": "feed_forward"},
}


def make_stacks(norm_first):
    """PyTorch's encoder and decoder stack, without the biases that the paper's attention lacks."""
    options = {
        "dropout": 0.0,
        "activation": "relu",
        "layer_norm_eps": 1e-6,
        "batch_first": True,
        "norm_first": norm_first,
        "dtype": torch.float64,
    }
    final_norm = [
        torch.nn.LayerNorm(D_MODEL, eps=1e-6, dtype=torch.float64) if norm_first else None
        for _ in range(2)
    ]
    encoder_layer = torch.nn.TransformerEncoderLayer(D_MODEL, NUM_HEADS, D_FF, **options)
    decoder_layer = torch.nn.TransformerDecoderLayer(D_MODEL, NUM_HEADS, D_FF, **options)
    stacks = {
        "encoder": torch.nn.TransformerEncoder(
            encoder_layer, LAYERS, final_norm[0], enable_nested_tensor=False
        ),
        "decoder": torch.nn.TransformerDecoder(decoder_layer, LAYERS, final_norm[1]),
    }
    return torch.nn.ModuleDict(stacks).train()  # in eval mode, PyTorch takes another code path


def fill(stacks):
    """Give the stacks small weights, the same in either norm order but for the final norms."""
    rng = np.random.default_rng(0)
    with torch.no_grad():
        for name, parameter in sorted(stacks.named_parameters()):
            final_norm = ".layers." not in name
            stream = np.random.default_rng(1) if final_norm else rng
            values = 0.3 * stream.normal(size=tuple(parameter.shape))
            if "norm" in name and name.endswith("weight"):
                values += 1
            if name.endswith(("in_proj_bias", "out_proj.bias")):
                values *= 0
            parameter.copy_(torch.from_numpy(values.astype(np.float32)))


def by_our_names(stacks, of):
    """`of(parameter)` of every parameter, under our name and in our layout."""
    layers = {}
    for name, parameter in stacks.named_parameters():
        values = of(parameter).numpy()
        stack, *path, kind = name.split(".")
        if path == ["norm"]:
            layers[f"{stack}/norm/{'scale' if kind == 'weight' else 'bias'}"] = values
            continue
        for our_name, array in _layer_parameters(stack, path[2:], kind, values):
            layers.setdefault(f"{stack}/layers/{our_name}", []).append(array)
    return {name: np.stack(a) if isinstance(a, list) else a for name, a in layers.items()}


def _layer_parameters(stack, path, kind, values):
    module = path[0]
    if module in _NORMS[stack]:
        leaf = "scale" if kind == "weight" else "bias"
        yield f"{_NORMS[stack][module]}_residual/norm/{leaf}", values
    elif module.startswith("linear"):
        leaf = "kernel" if kind == "weight" else "bias"
        yield f"feed_forward/{leaf}_{module[-1]}", values.T
    elif kind == "in_proj_weight":
        for role, rows in zip(("query", "key", "value"), np.split(values, 3), strict=True):
            yield f"{_ATTENTIONS[module]}/{role}/kernel", rows.T
    elif path[-1] == "out_proj" and kind == "weight":
        yield f"{_ATTENTIONS[module]}/output/kernel", values.T


def make_inputs():
    """Embedded sources and targets with their segments, and a cotangent for each output."""
    rng = np.random.default_rng(2)
    inputs = {}
    for side, lengths in (("source", SOURCE_LENGTHS), ("target", TARGET_LENGTHS)):
        real = np.arange(max(lengths)) < np.array(lengths)[:, None]
        values, cotangent = rng.normal(size=(2, *real.shape, D_MODEL)).astype(np.float32)
        inputs[side] = values
        inputs[f"{side}_segments"] = real.astype(np.int32)
        inputs[f"{side}_cotangent"] = cotangent * real[..., None]
    return inputs


def run_stacks(stacks, inputs):
    """Outputs, and the gradients by every weight and input."""
    tensors = {name: torch.from_numpy(x).double() for name, x in inputs.items()}
    source, target = (tensors[side].requires_grad_() for side in ("source", "target"))
    padding = {side: tensors[f"{side}_segments"] == 0 for side in ("source", "target")}
    length = target.shape[1]
    future = torch.ones(length, length, dtype=torch.bool).triu(1)

    encoded = stacks["encoder"](source, src_key_padding_mask=padding["source"])
    decoded = stacks["decoder"](
        target,
        encoded,
        tgt_mask=future,
        tgt_key_padding_mask=padding["target"],
        memory_key_padding_mask=padding["source"],
    )
    loss = (encoded * tensors["source_cotangent"]).sum()
    (loss + (decoded * tensors["target_cotangent"]).sum()).backward()

    gradients = by_our_names(stacks, lambda parameter: parameter.grad)
    gradients |= {"source": source.grad.numpy(), "target": target.grad.numpy()}
    outputs = {"encoded": encoded.detach().numpy(), "decoded": decoded.detach().numpy()}
    return outputs | {f"gradient/{name}": x for name, x in gradients.items()}


def run_loss():
    """Label-smoothed cross-entropy and its gradient."""
    rng = np.random.default_rng(3)
    logits = (3 * rng.normal(size=(6, 13))).astype(np.float32)
    targets = rng.integers(0, 13, 6).astype(np.int32)
    cotangent = rng.normal(size=6).astype(np.float32)
    results = {"logits": logits, "targets": targets, "cotangent": cotangent}
    for smoothing in (0.0, 0.1):
        scores = torch.from_numpy(logits).double().requires_grad_()
        losses = torch.nn.functional.cross_entropy(
            scores, torch.from_numpy(targets).long(), label_smoothing=smoothing, reduction="none"
        )
        (losses * torch.from_numpy(cotangent).double()).sum().backward()
        results[f"smoothed_{smoothing}"] = losses.detach().numpy()
        results[f"gradient_{smoothing}"] = scores.grad.numpy()
    return results


def run_adam():
    """Adam with the learning rate of equation 3, on given gradients of very different sizes."""
    rng = np.random.default_rng(4)
    parameters = rng.normal(size=12).astype(np.float32)
    gradients = rng.normal(size=(ADAM_STEPS, 12)) * np.logspace(-6, 2, 12)
    gradients = gradients.astype(np.float32)
    tensor = torch.nn.Parameter(torch.from_numpy(parameters).double())
    adam = torch.optim.Adam([tensor], betas=(0.9, 0.98), eps=1e-9)
    trajectory, rates = [parameters], []
    for step, gradient in enumerate(gradients, start=1):
        rate = D_MODEL**-0.5 * min(step**-0.5, step * WARMUP_STEPS**-1.5)
        adam.param_groups[0]["lr"] = rate
        tensor.grad = torch.from_numpy(gradient).double()
        adam.step()
        rates.append(rate)
        trajectory.append(tensor.detach().numpy().copy())
    return {
        "d_model": np.int32(D_MODEL),
        "warmup_steps": np.int32(WARMUP_STEPS),
        "gradients": gradients,
        "learning_rates": np.array(rates),
        "parameters": np.stack(trajectory),
    }


def main():
    """Compute everything and write the file beside this script."""
    inputs = make_inputs()
    goldens = {f"inputs/{name}": x for name, x in inputs.items()}
    for order in ("post", "pre"):
        stacks = make_stacks(norm_first=order == "pre")
        fill(stacks)
        weights = by_our_names(stacks, lambda parameter: parameter.detach())
        goldens |= {f"weights/{name}": x for name, x in weights.items()}
        goldens |= {f"{order}/{name}": x for name, x in run_stacks(stacks, inputs).items()}
    goldens |= {f"loss/{name}": x for name, x in run_loss().items()}
    goldens |= {f"adam/{name}": x for name, x in run_adam().items()}
    narrow = {
        name: x.astype(np.float32) if x.dtype == np.float64 else x for name, x in goldens.items()
    }
    np.savez_compressed(Path(__file__).with_name("transformer.npz"), **narrow)


if __name__ == "__main__":
    main()
