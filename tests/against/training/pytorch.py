"""Train a case by PyTorch: its Transformer, loss, optimizers and tools of training."""

import math
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import lr_scheduler, swa_utils

from tests.against.part import Case
from tests.against.training import part
from tests.against.training.part import LONGEST, Result

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "silu": functional.silu,
}
_OF_ENCODER = {
    "self_attn": "self_attention",
    "norm1": "self_attention_residual/norm",
    "norm2": "feed_forward_residual/norm",
}
_OF_DECODER = _OF_ENCODER | {
    "multihead_attn": "cross_attention",
    "norm2": "cross_attention_residual/norm",
    "norm3": "feed_forward_residual/norm",
}
_MODULES = {"encoder": _OF_ENCODER, "decoder": _OF_DECODER}
"""The modules of a layer that are made anew, with options of their own, and our names of them."""
_MICRO_BATCH = 2
"""Pairs whose gradients are added up, where ours adds up those of several passes."""


class Network(nn.Module):
    """The network of a case, with PyTorch's stacks of layers."""

    def __init__(self, case: Case) -> None:
        """Create the modules; `fill` gives the values."""
        super().__init__()
        self.case, width, vocabulary = case, case["model.d_model"], case["vocabulary"]
        source, target, output = "source_embedding", "target_embedding", "output_projection"
        if case["model.share_embeddings"] or case["model.share_source_embedding"]:
            source = target = "embedding"
        if case["model.share_embeddings"] or case["model.share_target_embedding"]:
            output = target
        self.names = {"source": source, "target": target, "output": output}
        shapes = dict.fromkeys(self.names.values(), (vocabulary, width))
        if case["model.position"] == "learned":
            shapes |= dict.fromkeys(("source_position", "target_position"), (2 * LONGEST, width))
        if case["model.output_bias"]:
            shapes["output_bias"] = (vocabulary,)
        tables = {name: nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()}
        self.tables = nn.ParameterDict(tables)
        kind = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}[case["model.norm"]]
        norm = partial(kind, width, eps=case["model.norm_epsilon"])
        if case["model.embedding_norm"]:
            self.source_embedding_norm, self.target_embedding_norm = norm(), norm()
        self.encoder = _stack("encoder", case, norm, enable_nested_tensor=False)
        self.decoder = _stack("decoder", case, norm)

    def _embedded(self, side: str, tokens: Tensor) -> Tensor:
        x = functional.embedding(tokens, self.tables[self.names[side]])
        length, width = x.shape[1:]
        if self.case["model.scale_embeddings"]:
            x = x * width**0.5
        if self.case["model.position"] == "learned":
            x = x + self.tables[f"{side}_position"][:length]
        if self.case["model.position"] == "sinusoidal":
            angles = np.arange(length)[:, None] / 10_000 ** (np.arange(0, width, 2) / width)
            pairs = np.stack([np.sin(angles), np.cos(angles)], -1)
            x = x + torch.from_numpy(pairs.reshape(length, width)).to(x.dtype)
        return getattr(self, f"{side}_embedding_norm", nn.Identity())(x)

    def forward(self, sources: Tensor, targets: Tensor) -> Tensor:
        """Return the logits of padded targets, whose padding is 0."""
        length = targets.shape[1]
        encoded = self.encoder(self._embedded("source", sources), src_key_padding_mask=sources == 0)
        decoded = self.decoder(
            self._embedded("target", functional.pad(targets[:, :-1], (1, 0), value=2)),
            encoded,
            tgt_mask=torch.ones(length, length, dtype=torch.bool).triu(1),
            tgt_key_padding_mask=targets == 0,
            memory_key_padding_mask=sources == 0,
        )
        matrix, bias = self.tables[self.names["output"]], self.tables.get("output_bias", None)
        return functional.linear(decoded, matrix, bias)


def _stack(name: str, case: Case, norm: Callable[[], nn.Module], **options: Any) -> nn.Module:
    sizes = case["model.d_model"], case["model.num_heads"]
    is_pre, activation = case["model.norm_order"] == "pre", case["model.feed_forward"]
    choices = {"activation": _ACTIVATIONS[activation], "dropout": 0.0, "norm_first": is_pre}
    make = partial(getattr(nn, f"Transformer{name.title()}Layer"), batch_first=True)
    layer = make(*sizes, case["model.d_ff"], **choices)
    for module, ours in _MODULES[name].items():
        if ours.endswith("norm"):
            setattr(layer, module, norm())
        else:  # the layer's option `bias` is for its feed-forward network and norms as well
            bias = case["model.attention_bias"]
            setattr(layer, module, nn.MultiheadAttention(*sizes, bias=bias, batch_first=True))
    depth, last = case[f"model.num_{name}_layers"], norm() if is_pre else None
    return getattr(nn, f"Transformer{name.title()}")(layer, depth, last, **options)


def our_arrays(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Return the arrays of a parameter of PyTorch by our names, for one layer."""
    top, *path, leaf = name.split(".")
    if top == "tables":
        return {leaf if values.ndim == 1 else f"{leaf}/embedding": values}
    if path:
        module = _MODULES[top].get(path[2], "feed_forward") if len(path) > 1 else ""
        top += f"/layers/{module}" if module else "/norm"
    if top.endswith("norm"):
        return {f"{top}/{leaf.replace('weight', 'scale')}": values}
    kind = "bias" if leaf.endswith("bias") else "kernel"
    if top.endswith("feed_forward"):
        return {f"{top}/{kind}_{path[2][-1]}": values.T}
    roles = ("query", "key", "value") if leaf.startswith("in_proj") else ("output",)
    parts = zip(roles, np.split(values, len(roles)), strict=True)
    return {f"{top}/{role}/{kind}": rows.T for role, rows in parts}


def by_our_names(values: Mapping[str, Tensor]) -> Result:
    """Return the values of parameters by our names and in our shapes."""
    arrays: dict[str, list[np.ndarray]] = {}
    for name, value in values.items():
        for ours, array in our_arrays(name, value.detach().double().numpy()).items():
            arrays.setdefault(ours, []).append(array.copy())
    return {
        name: np.stack(each) if "/layers/" in name else each[0] for name, each in arrays.items()
    }


def fill(network: Network, seed: int) -> None:
    """Give the network random parameters, and freeze those that the case freezes."""
    rng = np.random.default_rng([seed, 1])
    for name, parameter in network.named_parameters():
        values = 0.3 * rng.normal(size=tuple(parameter.shape))
        values += "norm" in name and name.endswith("weight")
        parameter.data.copy_(torch.from_numpy(values.astype(np.float32)))
        for path in our_arrays(name, values):
            for pattern in network.case["training.freeze"]:
                if fnmatchcase(path, pattern) or fnmatchcase(path, f"{pattern}/*"):
                    parameter.requires_grad_(False)


def learning_rate(case: Case, updates: int) -> float:
    """Return the learning rate after so many updates, by equation 3 or the formulas of recipes."""
    n, warmup, end = updates + 1, case["training.warmup_steps"], 50
    greatest = case["training.learning_rate_factor"] * (case["model.d_model"] * warmup) ** -0.5
    peak = case["training.peak_learning_rate"] or greatest
    left = (end - n) / (end - warmup)
    shares = {
        "constant": 1.0,
        "inverse_sqrt": (warmup / n) ** 0.5,
        "linear": left,
        "cosine": (1 + math.cos(math.pi * (1 - left))) / 2,
        "wsd": min(1, (end - n) / (end * case["training.decay_fraction"])),
    }
    return peak * (n / warmup if n < warmup else shares[case["training.schedule"]])


def optimizer_of(network: Network, habit: str | None) -> torch.optim.Optimizer:
    """Return the optimizer, at a learning rate of 1 for the scheduler to multiply."""
    case, matrices, others = network.case, [], []
    for name, parameter in network.named_parameters():
        decays = ".layers." in name and parameter.ndim == 2
        (matrices if decays or habit == part.DECAY else others).append(parameter)
    betas = case["training.adam_beta1"], case["training.adam_beta2"]
    options = {"lr": 1.0, "betas": betas, "eps": case["training.adam_epsilon"]}
    if not case["training.weight_decay"]:
        return torch.optim.Adam(network.parameters(), **options)
    decay = {"params": matrices, "weight_decay": case["training.weight_decay"]}
    return torch.optim.AdamW([decay, {"params": others, "weight_decay": 0.0}], **options)


def padded(texts: tuple[list[int], ...], filler: int) -> Tensor:
    """Return sentences in rows of one length."""
    return nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], True, filler)


def gradient(network: Network, pairs: list[Any], habit: str | None, rounds: bool) -> list[float]:
    """Compute the gradient of the mean loss; return the mean losses and the number of tokens."""
    case, sums = network.case, [0.0, 0.0]
    size = _MICRO_BATCH if case["parallel.tokens_per_device"] else len(pairs)
    num_tokens = sum(len(target) for _, target in pairs)
    for first in range(0, len(pairs), size):
        sources, targets = zip(*pairs[first : first + size], strict=True)
        with torch.autocast("cpu", torch.bfloat16, rounds):
            logits = network(padded(sources, 0), padded(targets, 0)).flatten(0, 1)
        logits = logits.float() if rounds else logits
        loss = partial(functional.cross_entropy, target=padded(targets, -100).flatten())
        smoothed = loss(logits, reduction="sum", label_smoothing=case["training.label_smoothing"])
        mean = smoothed / num_tokens
        if habit == part.MEANS:
            mean = smoothed / sum(map(len, targets)) / -(-len(pairs) // size)
        mean.backward()
        sums[0] += smoothed.item()
        sums[1] += loss(logits.detach(), reduction="sum").item()
    return [*(total / num_tokens for total in sums), num_tokens]


def trained(case: Case, dtype: torch.dtype, rounds: bool = False, nudge: float = 0.0) -> Result:
    """Train, and return what `ours.train` returns.

    Args:
      rounds: whether to compute in bfloat16, where PyTorch thinks fit.
      nudge: a share by which to change the first parameters.
    """
    habit, network = case["habit"], Network(case).to(dtype)
    parameters = dict(network.named_parameters())
    fill(network, case["seed"])
    network.load_state_dict({name: x * (1 + nudge) for name, x in network.state_dict().items()})
    trainable = {name: one for name, one in parameters.items() if one.requires_grad}
    optimizer = optimizer_of(network, habit)
    scheduler = lr_scheduler.LambdaLR(optimizer, partial(learning_rate, case))
    decay, limit = case["training.ema_decay"], case["training.clip_gradient_norm"]
    exact = partial(_averaged, decay)
    average_of = swa_utils.get_ema_avg_fn(decay) if habit == part.AVERAGE else exact
    average = swa_utils.AveragedModel(network, avg_fn=average_of)
    result: Result = {}
    logged = []

    def keep(prefix: str, values: Mapping[str, Tensor]) -> None:
        result.update({f"{prefix}/{name}": x for name, x in by_our_names(values).items()})

    for number, pairs in enumerate(part.sentences(case), 1):
        optimizer.zero_grad()
        means = gradient(network, pairs, habit, rounds)
        norm = nn.utils.get_total_norm([one.grad for one in trainable.values()])
        if limit is not None:
            added = 0.0 if habit == part.CLIPPING else 1e-6
            nn.utils.clip_grads_with_norm_(trainable.values(), limit, norm - added)
        logged.append((*means, norm.item(), scheduler.get_last_lr()[0]))
        optimizer.step()
        scheduler.step()
        if number == 1:
            keep("gradient", {name: one.grad for name, one in trainable.items()})
            keep("first", parameters)
        average.update_parameters(network)
    keep("last", parameters)
    keep("average", dict(average.module.named_parameters()))
    names = "loss", "nll", "tokens", "norm", "rate"
    return result | dict(zip(names, np.array(logged).T, strict=True))


def _averaged(decay: float, average: Tensor, new: Tensor, num_before: Any) -> Tensor:
    """Update an average whose weights add up to 1."""
    return average + (1 - decay) / (1 - decay ** (int(num_before) + 1)) * (new - average)


def train(case: Case, folder: str) -> tuple[Result, Result]:
    """Return the results in float64, and with roundings; write the first parameters."""
    network = Network(case)
    fill(network, case["seed"])
    np.savez(f"{folder}/parameters.npz", **by_our_names(dict(network.named_parameters())))
    exact = trained(case, torch.float64)
    if case["dtype"] == "float64":
        return exact, trained(case, torch.float64, nudge=2**-50)
    return exact, trained(case, torch.float32, rounds=case["dtype"] == "bfloat16")
