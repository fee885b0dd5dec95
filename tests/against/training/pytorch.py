"""Train a case by PyTorch: its Transformer, loss, optimizers and tools of training."""

import math
import warnings
from collections.abc import Mapping
from copy import deepcopy
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

warnings.filterwarnings("ignore", "enable_nested_tensor")  # which is for inference only

_ACTIVATIONS = {"gelu_tanh": partial(functional.gelu, approximate="tanh")}
"""Those that are no functions of PyTorch by our name."""
_ATTENTION = {"self_attn": "self_attention", "multihead_attn": "cross_attention"}
_OF_DECODER = "self_attention", "cross_attention", "feed_forward"
_SUBLAYERS = {"encoder": _OF_DECODER[::2], "decoder": _OF_DECODER}
"""Our names of the sub-layers of a stack, in the order of their norms."""
_MICRO_BATCH = 2
"""Pairs whose gradients are added up, where ours adds up those of several passes."""


class Network(nn.Module):
    """The network of a case: PyTorch's Transformer between embeddings and an output projection."""

    def __init__(self, case: Case) -> None:
        """Create the modules, with random parameters."""
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
        self.tables = nn.ParameterDict({name: torch.zeros(shapes[name]) for name in shapes})
        kind = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}[case["model.norm"]]
        norm = partial(kind, width, eps=case["model.norm_epsilon"])
        if case["model.embedding_norm"]:
            self.source_embedding_norm, self.target_embedding_norm = norm(), norm()
        self._add_transformer(norm)
        self._draw_parameters()

    def _add_transformer(self, norm: Any) -> None:
        """Create the Transformer, with modules for the options that it does not have itself."""
        case, is_pre = self.case, self.case["model.norm_order"] == "pre"
        names = "d_model", "num_heads", "num_encoder_layers", "num_decoder_layers", "d_ff"
        sizes, name = [case[f"model.{size}"] for size in names], case["model.feed_forward"]
        activation = _ACTIVATIONS.get(name) or getattr(functional, name)
        options = {"batch_first": True, "norm_first": is_pre}
        self.transformer = nn.Transformer(*sizes, 0.0, activation, **options)
        # Its option `bias` is for feed-forward networks and norms as well.
        attention = partial(nn.MultiheadAttention, *sizes[:2], batch_first=True)
        for parent in [*self.transformer.modules()]:
            for name, child in [*parent.named_children()]:
                if isinstance(child, nn.MultiheadAttention):
                    setattr(parent, name, attention(bias=case["model.attention_bias"]))
                elif isinstance(child, nn.LayerNorm):  # one named `norm` ends a stack
                    setattr(parent, name, norm() if is_pre or name != "norm" else None)

    def _draw_parameters(self) -> None:
        """Draw the parameters, and freeze those that the case freezes."""
        rng = np.random.default_rng([self.case["seed"], 1])
        for name, parameter in self.named_parameters():
            is_scale = "norm" in name and name.endswith("weight")
            values = rng.normal(is_scale, 0.3, tuple(parameter.shape))
            parameter.data.copy_(torch.from_numpy(values))
            for path in our_arrays(name, values):
                for pattern in self.case["training.freeze"]:
                    if fnmatchcase(f"{path}/", f"{pattern}/*"):
                        parameter.requires_grad_(False)

    def _embedded(self, side: str, tokens: Tensor) -> Tensor:
        x = functional.embedding(tokens, self.tables[self.names[side]])
        length, width = x.shape[1:]
        if self.case["model.scale_embeddings"]:
            x = x * width**0.5
        if self.case["model.position"] == "learned":
            x = x + self.tables[f"{side}_position"][:length]
        if self.case["model.position"] == "sinusoidal":
            powers = torch.arange(0, width, 2, dtype=torch.float64) / width
            angles = torch.arange(length)[:, None] / 10_000**powers
            x = x + torch.stack([angles.sin(), angles.cos()], -1).flatten(1).to(x.dtype)
        return getattr(self, f"{side}_embedding_norm", nn.Identity())(x)

    def forward(self, sources: Tensor, targets: Tensor) -> Tensor:
        """Return the logits of padded targets, whose padding is 0."""
        length = targets.shape[1]
        decoded = self.transformer(
            self._embedded("source", sources),
            self._embedded("target", functional.pad(targets[:, :-1], (1, 0), value=2)),
            tgt_mask=torch.ones(length, length, dtype=torch.bool).triu(1),
            src_key_padding_mask=sources == 0,
            tgt_key_padding_mask=targets == 0,
            memory_key_padding_mask=sources == 0,
        )
        matrix, bias = self.tables[self.names["output"]], self.tables.get("output_bias", None)
        return functional.linear(decoded, matrix, bias)


def our_arrays(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Return the arrays of a parameter of PyTorch by our names, for one layer."""
    kind = "bias" if name.endswith("bias") else "kernel"
    match name.removeprefix("transformer.").split("."):
        case ["tables", table]:
            return {table if values.ndim == 1 else f"{table}/embedding": values}
        case [stack, "layers", _, ("self_attn" | "multihead_attn") as module, *_, leaf]:
            roles = ("query", "key", "value") if leaf.startswith("in_proj") else ("output",)
            parts = zip(roles, np.split(values, len(roles)), strict=True)
            top = f"{stack}/layers/{_ATTENTION[module]}"
            return {f"{top}/{role}/{kind}": rows.T for role, rows in parts}
        case [stack, "layers", _, ("linear1" | "linear2") as module, _]:
            return {f"{stack}/layers/feed_forward/{kind}_{module[-1]}": values.T}
        case [stack, "layers", _, norm, _]:
            top = f"{stack}/layers/{_SUBLAYERS[stack][int(norm[-1]) - 1]}_residual/norm"
        case [*modules, _]:
            top = "/".join(modules)
    return {f"{top}/{kind.replace('kernel', 'scale')}": values}


def by_our_names(values: Mapping[str, Tensor]) -> Result:
    """Return the values of parameters by our names and in our shapes."""
    layers: dict[str, list[np.ndarray]] = {}
    for name, value in values.items():
        for ours, array in our_arrays(name, value.detach().double().numpy()).items():
            layers.setdefault(ours, []).append(array.copy())
    return {ours: np.stack(x) if "/layers/" in ours else x[0] for ours, x in layers.items()}


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


def optimizer_of(network: Network) -> torch.optim.Optimizer:
    """Return the optimizer, at a learning rate of 1 for the scheduler to multiply."""
    case, groups = network.case, []
    for name, parameter in network.named_parameters():
        decays = ".layers." in name and parameter.ndim == 2
        decay = case["training.weight_decay"] if decays else 0.0
        groups.append({"params": [parameter], "weight_decay": decay})
    betas = case["training.adam_beta1"], case["training.adam_beta2"]
    return torch.optim.AdamW(groups, lr=1.0, betas=betas, eps=case["training.adam_epsilon"])


def padded(texts: tuple[list[int], ...], filler: int) -> Tensor:
    """Return sentences in rows of one length."""
    return nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], True, filler)


def gradient(network: Network, pairs: list[Any], rounds: bool) -> list[float]:
    """Compute the gradient of the mean loss; return the mean losses and the number of tokens."""
    case, sums = network.case, torch.zeros(2, dtype=torch.float64)
    size = _MICRO_BATCH if case["parallel.tokens_per_device"] else len(pairs)
    num_tokens = sum(len(target) for _, target in pairs)
    for first in range(0, len(pairs), size):
        sources, targets = zip(*pairs[first : first + size], strict=True)
        with torch.autocast("cpu", torch.bfloat16, rounds):
            logits = network(padded(sources, 0), padded(targets, 0)).flatten(0, 1)
        logits, labels = logits.float() if rounds else logits, padded(targets, -100).flatten()
        loss = partial(functional.cross_entropy, logits, labels, reduction="sum")
        smoothed = loss(label_smoothing=case["training.label_smoothing"])
        sums += torch.stack([smoothed, loss()]).detach()
        (smoothed / num_tokens).backward()
    return [*(sums / num_tokens).tolist(), num_tokens]


def trained(network: Network, rounds: bool = False) -> Result:
    """Train, and return what `ours.train` returns.

    Args:
      rounds: whether to compute in bfloat16, where PyTorch thinks fit.
    """
    case, parameters = network.case, dict(network.named_parameters())
    trainable = {name: one for name, one in parameters.items() if one.requires_grad}
    optimizer = optimizer_of(network)
    scheduler = lr_scheduler.LambdaLR(optimizer, partial(learning_rate, case))
    decay, limit = case["training.ema_decay"], case["training.clip_gradient_norm"]
    average = swa_utils.AveragedModel(network, avg_fn=partial(_averaged, decay))
    logged = []
    for number, pairs in enumerate(part.sentences(case), 1):
        optimizer.zero_grad()
        means = gradient(network, pairs, rounds)
        norm = nn.utils.get_total_norm([one.grad for one in trainable.values()])
        if limit is not None:  # PyTorch adds 1e-6 to the norm
            nn.utils.clip_grads_with_norm_(trainable.values(), limit, norm - 1e-6)
        logged.append((*means, norm.item(), scheduler.get_last_lr()[0]))
        optimizer.step()
        scheduler.step()
        if number == 1:
            gradients = by_our_names({name: one.grad for name, one in trainable.items()})
            first = by_our_names(parameters)
        average.update_parameters(network)
    last, averages = map(by_our_names, (parameters, dict(average.module.named_parameters())))
    return part.results(logged, gradient=gradients, first=first, last=last, average=averages)


def _averaged(decay: float, average: Tensor, new: Tensor, num_before: Any) -> Tensor:
    """Update an average whose weights add up to 1."""
    return average + (1 - decay) / (1 - decay ** (int(num_before) + 1)) * (new - average)


def train(case: Case, folder: str) -> tuple[Result, Result]:
    """Return the results in float64, and with roundings; write the first parameters."""
    network = Network(case)
    np.savez(f"{folder}/parameters.npz", **by_our_names(dict(network.named_parameters())))
    exact = trained(deepcopy(network).double())
    if case["dtype"] == "float64":
        torch.manual_seed(case["seed"])
        for parameter in network.double().parameters():  # norms would undo one common factor
            parameter.data *= 1 + 2**-50 * torch.randn_like(parameter).sign()
    return exact, trained(network, rounds=case["dtype"] == "bfloat16")
