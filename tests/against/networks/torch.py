"""The neutral form in PyTorch, written from `docs/interchange.md` and the papers alone."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch.nn import functional

from tests.against.networks.part import inputs
from tests.against.part import Case
from tests.modules.numpy_transformer import (
    alibi_slopes,
    bucket,
    sinusoids,
    sinusoids_of_tensor2tensor,
)

_STEPS, _RATE = 10, 0.02
_ACTIVATIONS = {
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "glu": torch.sigmoid,
    "reglu": torch.relu,
    "geglu": functional.gelu,
    "geglu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "swiglu": functional.silu,
}


def exported(case: Case, folder: str) -> np.ndarray:
    """Return the log-probabilities of an export."""
    with torch.no_grad():
        return _Network(Path(folder, "exported")).log_probs(case)[0].numpy()


def trained(case: Case, folder: str) -> np.ndarray:
    """Train an export, write it, and return its log-probabilities."""
    network, place = _Network(Path(folder, "exported")), Path(folder, "trained")
    optimizer = torch.optim.Adam(network.arrays.values(), _RATE)
    for step in range(_STEPS):
        log_probs, targets = network.log_probs({**case, "seed": case["seed"] + step})
        optimizer.zero_grad()
        functional.nll_loss(log_probs, targets).backward()
        optimizer.step()
    shutil.copytree(Path(folder, "exported"), place)
    (place / "SHA256SUMS").unlink(missing_ok=True)
    save_file(network.arrays, place / "model.safetensors", network.metadata)
    with torch.no_grad():
        return network.log_probs(case)[0].numpy()


class _Network:
    def __init__(self, place: Path) -> None:
        config = json.loads((place / "config.json").read_text(encoding="utf-8"))
        self.config = SimpleNamespace(**config["model"])
        with safe_open(place / "model.safetensors", "pt") as file:
            self.metadata = file.metadata()
            self.arrays = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118
        for array in self.arrays.values():
            array.requires_grad_()
        self.d_k = self.config.d_k or self.config.d_model // self.config.num_heads

    def log_probs(self, case: Case) -> tuple[Any, Any]:
        """Return the log-probabilities of all targets, and the targets."""
        sources, targets = inputs(case)
        logits = [self._logits(*pair) for pair in zip(sources, targets, strict=True)]
        return torch.cat(logits).log_softmax(-1), torch.tensor(np.concatenate(targets))

    def _logits(self, source: list[int], target: list[int]) -> Any:
        config = self.config
        depth = config.num_decoder_layers
        if config.architecture == "decoder_only":
            tokens = [*source, *target[:-1]]
            x = self._embedded("target", tokens)
            number = torch.arange(len(tokens))
            distances = number[:, None] - number
            allowed = distances >= 0
            if config.prefix_attention:
                allowed |= (number < len(source)) & (number[:, None] < len(source))
            bias = self._bias("target", distances, both=config.prefix_attention)
            x = self._stack("decoder", x, depth, (2 * depth) ** 0.25, allowed, bias, distances)
            x = x[len(source) - 1 :]
        else:
            start = {"padding": 0, "end": 1, "begin": 2}[config.start_token]
            n = config.num_encoder_layers
            encoded = self._embedded("source", source)
            number = torch.arange(len(source))
            distances = number[:, None] - number
            bias = self._bias("source", distances, both=True)
            alpha = 0.81 * (n**4 * depth) ** (1 / 16)
            everything = torch.ones(distances.shape, dtype=torch.bool)
            encoded = self._stack("encoder", encoded, n, alpha, everything, bias, distances)
            x = self._embedded("target", [start, *target[:-1]])
            number = torch.arange(len(x))
            distances = number[:, None] - number
            bias = self._bias("target", distances, both=False)
            alpha = (3 * depth) ** 0.25
            x = self._stack("decoder", x, depth, alpha, distances >= 0, bias, distances, encoded)
        return x @ self._matrix("output").T + self.arrays.get("output_bias", 0)

    def _matrix(self, use: str) -> Any:
        config = self.config
        whole = config.share_embeddings or config.architecture == "decoder_only"
        if use == "output" and not config.share_embeddings:
            tied = getattr(config, "share_target_embedding", False) and not whole
            return self.arrays["target_embedding" if tied else "output_projection"]
        whole = whole or config.share_source_embedding
        return self.arrays["embedding" if whole else f"{use}_embedding"]

    def _embedded(self, side: str, tokens: list[int]) -> Any:
        config, length = self.config, len(tokens)
        x = self._matrix(side)[tokens] * (config.d_model**0.5 if config.scale_embeddings else 1)
        if config.position.startswith("sinusoidal"):
            table = sinusoids if config.position == "sinusoidal" else sinusoids_of_tensor2tensor
            first = config.first_position
            rows = table(first + length, config.d_model)[first:]
            x = x + torch.tensor(rows, dtype=torch.float32)
        elif config.position == "learned":
            x = x + self.arrays[f"{side}_position"][:length]
        return self._norm(f"{side}_embedding_norm", x) if config.embedding_norm else x

    def _bias(self, side: str, distances: Any, *, both: bool) -> Any:
        """Return what is added to the scores of self-attention."""
        if self.config.position == "alibi":
            slopes = torch.tensor(alibi_slopes(self.config.num_heads))
            return -slopes[:, None, None] * distances.abs()
        if self.config.position == "relative_bias":
            rows = [[bucket(int(d), bidirectional=both) for d in row] for row in distances]
            return self.arrays[f"{side}_position"][torch.tensor(rows)].permute(2, 0, 1)
        return 0

    def _stack(
        self,
        name: str,
        x: Any,
        depth: int,
        alpha: float,
        allowed: Any,
        bias: Any,
        distances: Any,
        encoded: Any = None,
    ) -> Any:
        config = self.config
        allowed = allowed & (distances.abs() < (config.attention_window or len(x)))
        for number in range(depth):
            layer = f"{name}.layers.{number}"
            sublayers = {
                "self_attention": lambda place, y: self._attention(place, y, y, allowed, bias, True)
            }
            if encoded is not None:
                every = torch.ones(len(x), len(encoded), dtype=torch.bool)
                sublayers["cross_attention"] = lambda place, y, every=every: self._attention(
                    place, y, encoded, every, 0, False
                )
            sublayers["feed_forward"] = self._feed_forward
            for sublayer, function in sublayers.items():
                place = f"{layer}.{sublayer}"
                if config.norm_order == "pre":
                    x = x + function(place, self._norm(f"{place}.norm", x))
                else:
                    scale = alpha if config.norm_order == "deep" else 1
                    x = self._norm(f"{place}.norm", scale * x + function(place, x))
        return self._norm(f"{name}.norm", x) if config.norm_order == "pre" else x

    def _norm(self, name: str, x: Any) -> Any:
        scale, epsilon = self.arrays[f"{name}.scale"], self.config.norm_epsilon
        if self.config.norm == "rms":
            return functional.rms_norm(x, scale.shape, scale, epsilon)
        return functional.layer_norm(x, scale.shape, scale, self.arrays[f"{name}.bias"], epsilon)

    def _feed_forward(self, place: str, x: Any) -> Any:
        kind = _ACTIVATIONS[self.config.feed_forward]
        if f"{place}.W_gate" in self.arrays:
            gate = kind(x @ self.arrays[f"{place}.W_gate"])
            return gate * (x @ self.arrays[f"{place}.W_1"]) @ self.arrays[f"{place}.W_2"]
        return self._linear(place, "2", kind(self._linear(place, "1", x)))

    def _linear(self, place: str, letter: str, x: Any) -> Any:
        return x @ self.arrays[f"{place}.W_{letter}"] + self.arrays.get(f"{place}.b_{letter}", 0)

    def _attention(self, place: str, x: Any, y: Any, allowed: Any, bias: Any, is_self: bool) -> Any:
        config = self.config
        query, key, value = (
            self._linear(place, letter, side) for letter, side in (("Q", x), ("K", y), ("V", y))
        )
        query, key = (one.unflatten(-1, (-1, self.d_k)).transpose(0, 1) for one in (query, key))
        value = value.unflatten(-1, (len(key), -1)).transpose(0, 1)  # [heads, t, width]
        if config.query_key_norm:
            query = self._norm(f"{place}.query_norm", query)
            key = self._norm(f"{place}.key_norm", key)
        if config.position == "rotary" and is_self:
            query, key = self._turned(query), self._turned(key)
        shared_by = len(query) // len(key)
        key, value = (one.repeat_interleave(shared_by, 0) for one in (key, value))
        if config.score_function == "additive":
            sums = torch.tanh(query[:, :, None] + key[:, None])
            scores = (sums * self.arrays[f"{place}.v"][:, None, None]).sum(-1)
        else:
            scores = query @ key.transpose(1, 2)
            if config.score_function == "scaled_dot_product":
                scores = scores / self.d_k**0.5
        weights = (scores + bias).masked_fill(~allowed, -torch.inf).softmax(-1)
        return self._linear(place, "O", (weights @ value).transpose(0, 1).flatten(1))

    def _turned(self, x: Any) -> Any:
        """Return queries or keys, turned as pairs of numbers by their positions."""
        config, width = self.config, self.d_k
        base, positions = config.rotary_base, torch.arange(x.shape[1], dtype=torch.float64)
        if config.rotary_scaling == "linear":
            positions = positions / config.rotary_scale
        elif width > 2:
            base = base * config.rotary_scale ** (width / (width - 2))
        angles = positions[:, None] * base ** (-torch.arange(0, width, 2) / width)
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        turned = pairs * torch.polar(torch.ones_like(angles), angles).to(torch.complex64)
        return torch.view_as_real(turned).flatten(-2)
