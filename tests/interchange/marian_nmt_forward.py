"""What marian-nmt computes, by its file `transformer.h`, with NumPy in float64."""

from collections.abc import Mapping, Sequence
from math import erf
from typing import Any

import numpy as np

ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "swish": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2))),
    "old gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
}


class MarianNmt:
    """A model as marian-nmt has it: its parameters, and its options."""

    def __init__(self, weights: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> None:
        self.w = {name: array.astype(np.float64) for name, array in weights.items()}
        self.options = options
        self.pre = options["transformer-preprocess"]
        self.post = options["transformer-postprocess"]
        self.top = options.get("transformer-postprocess-top", "")

    def log_probs(self, source: Sequence[int], target: Sequence[int]) -> np.ndarray:
        """The log-probability of every entry at every position of a target, `[target, entries]`."""
        w, options = self.w, self.options
        y = x = self.embed(w.get("Wemb", w.get("encoder_Wemb"))[list(source)], "encoder")
        for number in range(1, options["enc-depth"] + 1):
            place = f"encoder_l{number}"
            y = self.feed(f"{place}_ffn", self.attend(f"{place}_self", y))
        memory = self.process(self.top, "encoder_top", y, x)
        table = w.get("Wemb", w.get("decoder_Wemb"))
        first = np.zeros((1, options["dim-emb"]))
        y = x = self.embed(np.concatenate([first, table[list(target)[:-1]]]), "decoder")
        for number in options["transformer-tied-layers"] or range(1, options["dec-depth"] + 1):
            place = f"decoder_l{number}"
            y = self.attend(f"{place}_self", y, causal=True)
            y = self.feed(f"{place}_ffn", self.attend(f"{place}_context", y, memory))
        y = self.process(self.top, "decoder_top", y, x)
        logits = y @ w.get("decoder_ff_logit_out_Wt", table).T
        logits += w.get("decoder_ff_logit_out_b", 0.0)
        logits -= logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    def norm(self, x: np.ndarray, place: str, suffix: str) -> np.ndarray:
        if f"{place}_rms_scale{suffix}" in self.w:
            x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
            return x * self.w[f"{place}_rms_scale{suffix}"]
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        return x * self.w[f"{place}_ln_scale{suffix}"] + self.w[f"{place}_ln_bias{suffix}"]

    def process(self, operations: str, place: str, x: np.ndarray, before: Any = None) -> np.ndarray:
        """The operations before a sub-layer, or after one whose input was `before`."""
        for operation in operations.replace("d", ""):
            suffix = "_pre" if before is None else ""
            x = x + before if operation == "a" else self.norm(x, place, suffix)
        return x

    def embed(self, rows: np.ndarray, stack: str) -> np.ndarray:
        length, d = rows.shape
        if "Wpos" in self.w:
            rows = rows + self.w["Wpos"][:length]
        elif not self.options.get("transformer-disable-position-embeddings"):
            angle = np.arange(length)[:, None] * 10_000.0 ** (-np.arange(d // 2) / (d / 2 - 1))
            rows = rows * np.sqrt(d) + np.concatenate([np.sin(angle), np.cos(angle)], -1)
        return self.process(self.options["transformer-postprocess-emb"], f"{stack}_emb", rows)

    def linear(self, x: np.ndarray, place: str, name: str) -> np.ndarray:
        return x @ self.w[f"{place}_W{name}"] + self.w[f"{place}_b{name}"]

    def attend(
        self, place: str, x: np.ndarray, memory: Any = None, causal: bool = False
    ) -> np.ndarray:
        query = self.process(self.pre, f"{place}_Wo", x)
        read = query if memory is None else memory
        heads = self.options["transformer-heads"]
        q, k, v = (
            self.linear(y, place, name).reshape(len(y), heads, -1).swapaxes(0, 1)
            for y, name in ((query, "q"), (read, "k"), (read, "v"))
        )
        scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
        if causal:
            scores = np.where(np.tri(len(x)), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        attended = (weights / weights.sum(-1, keepdims=True)) @ v
        out = self.linear(attended.swapaxes(0, 1).reshape(x.shape), place, "o")
        return self.process(self.post, f"{place}_Wo", out, x)

    def feed(self, place: str, x: np.ndarray) -> np.ndarray:
        kind = self.options["transformer-ffn-activation"]
        if kind == "gelu" and self.options["version"].startswith("v1.9."):
            kind = "old gelu"
        hidden = self.linear(self.process(self.pre, f"{place}_ffn", x), place, "1")
        out = self.linear(ACTIVATIONS[kind](hidden), place, "2")
        return self.process(self.post, f"{place}_ffn", out, x)
