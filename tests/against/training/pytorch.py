"""Train a case by PyTorch: its Transformer, loss, optimizers and schedulers."""

from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import lr_scheduler

from tests.against.part import Case
from tests.against.training.part import LONGEST, Result, sentences

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
}
_ATTENTIONS = {"self_attn": "self_attention", "multihead_attn": "cross_attention"}
_NORMS = {
    "encoder": {"norm1": "self_attention", "norm2": "feed_forward"},
    "decoder": {"norm1": "self_attention", "norm2": "cross_attention", "norm3": "feed_forward"},
}
_MICRO_BATCH = 2
"""Pairs whose gradients are added up, where ours adds up those of several passes."""


class Network(nn.Module):
    """The network of a case, with PyTorch's stacks of layers."""

    def __init__(self, case: Case) -> None:
        """Create the modules; `fill` gives the values."""
        super().__init__()
        self.case, self.width = case, case["model.d_model"]
        names = ["source_embedding", "target_embedding", "output_projection"]
        if case["model.share_embeddings"]:
            names = ["embedding"] * 3
        elif case["model.share_source_embedding"]:
            names = ["embedding", "embedding", "output_projection"]
        elif case["model.share_target_embedding"]:
            names[2] = "target_embedding"
        self.names = dict(zip(("source", "target", "output"), names, strict=True))
        self.tables = nn.ParameterDict({name: self._table(case["vocabulary"]) for name in names})
        if case["model.position"] == "learned":
            for side in ("source_position", "target_position"):
                self.tables[side] = self._table(2 * LONGEST)
        if case["model.output_bias"]:
            self.output_bias = nn.Parameter(torch.zeros(case["vocabulary"]))
        if case["model.embedding_norm"]:
            self.source_embedding_norm, self.target_embedding_norm = self._norm(), self._norm()
        self.encoder, self.decoder = self._stack("encoder"), self._stack("decoder")

    def _table(self, rows: int) -> nn.Parameter:
        return nn.Parameter(torch.zeros(rows, self.width))

    def _norm(self) -> nn.Module:
        kind = nn.LayerNorm if self.case["model.norm"] == "layer" else nn.RMSNorm
        return kind(self.width, eps=self.case["model.norm_epsilon"])

    def _stack(self, name: str) -> nn.Module:
        case, is_pre = self.case, self.case["model.norm_order"] == "pre"
        kinds = {
            "encoder": (
                nn.TransformerEncoderLayer,
                partial(nn.TransformerEncoder, enable_nested_tensor=False),
            ),
            "decoder": (nn.TransformerDecoderLayer, nn.TransformerDecoder),
        }
        make_layer, make_stack = kinds[name]
        layer = make_layer(
            self.width,
            case["model.num_heads"],
            case["model.d_ff"],
            dropout=0.0,
            activation=_ACTIVATIONS[case["model.feed_forward"]],
            batch_first=True,
            norm_first=is_pre,
        )
        for module in _NORMS[name]:
            setattr(layer, module, self._norm())
        for module in _ATTENTIONS:
            if hasattr(layer, module):  # the layer's own bias is for its linear layers as well
                options = {"bias": case["model.attention_bias"], "batch_first": True}
                attention = nn.MultiheadAttention(self.width, case["model.num_heads"], **options)
                setattr(layer, module, attention)
        return make_stack(layer, case[f"model.num_{name}_layers"], self._norm() if is_pre else None)

    def _embedded(self, side: str, tokens: Tensor) -> Tensor:
        x = functional.embedding(tokens, self.tables[self.names[side]])
        if self.case["model.scale_embeddings"]:
            x = x * self.width**0.5
        match self.case["model.position"]:
            case "learned":
                x = x + self.tables[f"{side}_position"][: tokens.shape[1]]
            case "sinusoidal":
                x = x + sinusoids(tokens.shape[1], self.width).to(x.dtype)
        if self.case["model.embedding_norm"]:
            x = getattr(self, f"{side}_embedding_norm")(x)
        return x

    def forward(self, sources: Tensor, targets: Tensor) -> Tensor:
        """Return the logits of padded targets, whose padding is 0."""
        previous = functional.pad(targets[:, :-1], (1, 0), value=2)
        length = targets.shape[1]
        encoded = self.encoder(self._embedded("source", sources), src_key_padding_mask=sources == 0)
        decoded = self.decoder(
            self._embedded("target", previous),
            encoded,
            tgt_mask=torch.ones(length, length, dtype=torch.bool).triu(1),
            tgt_key_padding_mask=targets == 0,
            memory_key_padding_mask=sources == 0,
        )
        return functional.linear(
            decoded, self.tables[self.names["output"]], getattr(self, "output_bias", None)
        )


def sinusoids(length: int, width: int) -> Tensor:
    """Return the table of section 3.5 in float64."""
    angles = np.arange(length)[:, None] / 10_000 ** (np.arange(0, width, 2) / width)
    return torch.from_numpy(np.stack([np.sin(angles), np.cos(angles)], -1).reshape(length, width))


def our_arrays(name: str, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays of this package that a parameter of PyTorch has, without an axis of layers.

    A name with `layers/N/` is that of a layer.
    """
    top, *path, leaf = ["", *name.split(".")] if name == "output_bias" else name.split(".")
    plain = {"weight": "scale", "bias": "bias"}
    if top == "tables":
        yield f"{leaf}/embedding", values
    elif not path:
        yield f"{top}/{plain[leaf]}" if top else leaf, values
    elif path == ["norm"]:
        yield f"{top}/norm/{plain[leaf]}", values
    else:
        _, number, module, *_ = path
        where = f"{top}/layers/{number}"
        kind = "kernel" if leaf.endswith("weight") else "bias"
        if module in _NORMS[top]:
            yield f"{where}/{_NORMS[top][module]}_residual/norm/{plain[leaf]}", values
        elif module.startswith("linear"):
            yield f"{where}/feed_forward/{kind}_{module[-1]}", values.T
        elif leaf.startswith("in_proj"):
            for role, rows in zip(("query", "key", "value"), np.split(values, 3), strict=True):
                yield f"{where}/{_ATTENTIONS[module]}/{role}/{kind}", rows.T
        else:
            yield f"{where}/{_ATTENTIONS[module]}/output/{kind}", values.T


def by_our_names(values: Mapping[str, Tensor | None]) -> Result:
    """Return a value of each parameter, where it has one, in the names and shapes of ours."""
    arrays: dict[str, list[np.ndarray]] = {}
    for name, value in values.items():
        if value is not None:
            for ours, array in our_arrays(name, value.detach().double().numpy()):
                arrays.setdefault(without_number(ours), []).append(array.copy())
    return {
        name: np.stack(each) if "/layers/" in name else each[0] for name, each in arrays.items()
    }


def without_number(path: str) -> str:
    """Return a path without the number of the layer."""
    return "/".join(part for part in path.split("/") if not part.isdigit())


def fill(network: Network, case: Case) -> None:
    """Give the network random parameters, and freeze those that the case freezes."""
    rng = np.random.default_rng([case["seed"], 1])
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            values = 0.3 * rng.normal(size=tuple(parameter.shape))
            if "norm" in name and name.endswith("weight"):
                values += 1
            parameter.copy_(torch.from_numpy(values.astype(np.float32)))
            for ours, _ in our_arrays(name, parameter.numpy()):
                path = without_number(ours)
                for pattern in case["training.freeze"]:
                    if fnmatchcase(path, pattern) or fnmatchcase(path, f"{pattern}/*"):
                        parameter.requires_grad_(False)


def optimizer_of(network: Network, case: Case) -> torch.optim.Optimizer:
    """Return the optimizer, whose rate is multiplied by the scheduler's."""
    training = {name.removeprefix("training."): value for name, value in case.items()}
    matrices, others = [], []
    for name, parameter in network.named_parameters():
        (matrices if ".layers." in name and parameter.ndim == 2 else others).append(parameter)
    peak = training["peak_learning_rate"]
    if peak is None:
        width, warmup = case["model.d_model"], training["warmup_steps"]
        peak = training["learning_rate_factor"] * (width * warmup) ** -0.5
    options = {
        "lr": peak,
        "betas": (training["adam_beta1"], training["adam_beta2"]),
        "eps": training["adam_epsilon"],
    }
    if training["optimizer"] == "adam":
        return torch.optim.Adam([*matrices, *others], **options)
    groups = [
        {"params": matrices, "weight_decay": training["weight_decay"]},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, **options)


def scheduler_of(optimizer: torch.optim.Optimizer, case: Case) -> Any:
    """Return the scheduler, whose first rate is that of the first step."""
    schedule, warmup = case["training.schedule"], case["training.warmup_steps"]
    end = case["training.schedule_steps"]
    if schedule == "inverse_sqrt":  # equation 3, divided by its peak

        def share(updates: int) -> float:
            n = updates + 1
            return min(n**-0.5, n * warmup**-1.5) * warmup**0.5

        return lr_scheduler.LambdaLR(optimizer, share)
    parts, starts = [], []
    if warmup > 1:
        parts.append(lr_scheduler.LinearLR(optimizer, 1 / warmup, total_iters=warmup - 1))
        starts.append(warmup - 1)
    if schedule == "cosine":
        parts.append(lr_scheduler.CosineAnnealingLR(optimizer, end - warmup))
    elif schedule == "linear":
        parts.append(lr_scheduler.LinearLR(optimizer, 1.0, 0.0, end - warmup))
    else:
        parts.append(lr_scheduler.ConstantLR(optimizer, 1.0))
    if schedule == "wsd":
        falling = round(case["training.decay_fraction"] * end)
        parts.append(lr_scheduler.LinearLR(optimizer, 1.0, 0.0, falling))
        starts.append(end - falling - 1)
    return lr_scheduler.SequentialLR(optimizer, parts, starts)


def padded(texts: tuple[list[int], ...], fill_value: int) -> Tensor:
    """Return sentences in rows of one length."""
    rows = [torch.tensor(text) for text in texts]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=fill_value)


def gradient(
    network: Network, case: Case, pairs: list[Any], rounds: bool
) -> tuple[float, float, int]:
    """Compute the gradient of the mean loss, and return the mean losses and the tokens."""
    loss = nll = 0.0
    size = _MICRO_BATCH if case["parallel.tokens_per_device"] else len(pairs)
    tokens = sum(len(target) for _, target in pairs)
    for first in range(0, len(pairs), size):
        sources, targets = zip(*pairs[first : first + size], strict=True)
        with torch.autocast("cpu", torch.bfloat16, rounds):
            logits = network(padded(sources, 0), padded(targets, 0)).flatten(0, 1)
        goal = padded(targets, -100).flatten()
        if rounds:
            logits = logits.float()
        smoothing = case["training.label_smoothing"]
        one = functional.cross_entropy(logits, goal, reduction="sum", label_smoothing=smoothing)
        (one / tokens).backward()
        loss += one.item()
        nll += functional.cross_entropy(logits.detach(), goal, reduction="sum").item()
    return loss / tokens, nll / tokens, tokens


def trained(case: Case, dtype: torch.dtype, rounds: bool = False) -> Result:
    """Train, and return what `ours.train` returns.

    Args:
      rounds: whether PyTorch computes in bfloat16 where it thinks fit.
    """
    network = Network(case).to(dtype)
    fill(network, case)
    parameters = dict(network.named_parameters())
    trainable = [one for one in parameters.values() if one.requires_grad]
    optimizer = optimizer_of(network, case)
    scheduler = scheduler_of(optimizer, case)
    decay, limit = case["training.ema_decay"], case["training.clip_gradient_norm"]
    average = {name: torch.zeros_like(one) for name, one in parameters.items()}
    result: Result = {}
    logged = []

    def keep(prefix: str, values: Mapping[str, Tensor | None]) -> None:
        result.update({f"{prefix}/{name}": x for name, x in by_our_names(values).items()})

    for number, pairs in enumerate(sentences(case), 1):
        optimizer.zero_grad()
        sums = gradient(network, case, pairs, rounds)
        norm = nn.utils.get_total_norm([one.grad for one in trainable])
        if limit is not None:  # PyTorch divides by a norm that is 1e-6 longer
            nn.utils.clip_grads_with_norm_(trainable, limit, norm - 1e-6)
        logged.append((*sums, norm.item(), scheduler.get_last_lr()[0]))
        optimizer.step()
        scheduler.step()
        if number == 1:
            keep("gradient", {name: one.grad for name, one in parameters.items()})
            keep("first", parameters)
        if decay is not None:
            for name, one in parameters.items():
                average[name].mul_(decay).add_(one.detach(), alpha=1 - decay)
    keep("last", parameters)
    if decay is not None:
        weights = 1 - decay ** case["steps"]
        keep("average", {name: total / weights for name, total in average.items()})
    names = "loss", "nll", "tokens", "norm", "rate"
    return result | dict(zip(names, np.array(logged).T, strict=True))


def train(case: Case, folder: str) -> tuple[Result, Result]:
    """Return the results in float64, and with roundings; write the initial parameters."""
    network = Network(case)
    fill(network, case)
    np.savez(f"{folder}/parameters.npz", **by_our_names(dict(network.named_parameters())))
    exact = trained(case, torch.float64)
    match case["dtype"]:
        case "float64":
            return exact, exact
        case "float32":
            return exact, trained(case, torch.float32)
        case _:
            return exact, trained(case, torch.float32, rounds=True)
