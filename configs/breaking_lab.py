"""Take each part out of the Transformer and measure what breaks, on toy tasks and on sentences.

    t2t-jax sweep --config configs/breaking_lab.py --workdir runs/lab/reverse --only 'reverse*' \
        --seeds 3 --jobs 2
    t2t-jax sweep runs/lab/reverse --report --only 'reverse*' --base reverse

docs/results/breaking_lab.md has hardware, time, scores and outputs.

The base is the preset `tiny`, but with dropout 0.1. `text` trains it on the bundled corpus. The toy
tasks are copying, reversing and sorting 4 to 12 letters, and recall: the model reads three pairs of
a letter and a digit, and writes the pairs in alphabetical order. After each letter it writes, it
has to recall the digit.

The family `lab` is the paper's Transformer, of which the residual connections or the causal mask
can be left out. Its other parts are config fields, for some of which this file registers a part
that does nothing.

To add a part or a toy task, copy this file, and use another --workdir: a sweep does not compare
runs whose registered functions come from different versions of a file.
"""

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import jax.numpy as jnp
from jaxtyping import Array, Float

import t2t_jax
from t2t_jax.config import Config, DataConfig
from t2t_jax.config.families import FAMILIES, EncoderDecoderConfig
from t2t_jax.config.file import load_config
from t2t_jax.config.model import Stack
from t2t_jax.config.tasks import TASKS
from t2t_jax.data.splits import Chunk, Split, chunks

Vectors: TypeAlias = Float[Array, "... d"]
LETTERS, DIGITS = "abcdefghijklmnop", "0123456789"


@dataclass(frozen=True)
class LabConfig(EncoderDecoderConfig):
    """The paper's Transformer, with two parts that can be left out."""

    architecture: Literal["lab"] = "lab"  # type: ignore[assignment]
    has_residuals: bool = True
    """Add the input of each sub-layer to its output."""
    is_causal: bool = True
    """Hide later tokens from the decoder, in training and in the loss on dev."""

    @cached_property
    def stacks(self) -> tuple[Stack, ...]:
        """Return encoder and decoder."""
        changes: dict[str, Any] = {} if self.has_residuals else {"residual_scale": 0.0}
        encoder, decoder = (stack._replace(**changes) for stack in super().stacks)
        return encoder, decoder._replace(is_causal=self.is_causal)


t2t_jax.register("family", "lab")(
    replace(FAMILIES["encoder_decoder"], config=LabConfig, tasks=("translation", "toy"))
)


@t2t_jax.register("normalization")
def no_norm(x: Vectors, epsilon: float) -> Vectors:
    """Return the vectors unchanged."""
    return x


@t2t_jax.register("activation")
def no_activation(x: Vectors) -> Vectors:
    """Return zeros, which leave only the output bias of the feed-forward network."""
    return jnp.zeros_like(x)


@t2t_jax.register("position")
def no_positions(num_positions: int, d_model: int) -> Vectors:
    """Return zeros, `[num_positions, d_model]`."""
    return jnp.zeros((num_positions, d_model))


@t2t_jax.register("measure")
def exact_match(hypotheses: list[str], references: list[str]) -> list[float]:
    """Return 100 for each right output, and 0 for each wrong output."""
    return [100.0 * (h == r) for h, r in zip(hypotheses, references, strict=True)]


def _recall(_: list[str], rng: random.Random) -> tuple[list[str], list[str]]:
    pairs = [(letter, rng.choice(DIGITS)) for letter in rng.sample(LETTERS[:8], 3)]
    return [symbol for pair in pairs for symbol in pair], [s for p in sorted(pairs) for s in p]


TOYS: dict[str, Callable[[list[str], random.Random], tuple[list[str], list[str]]]] = {
    "copy": lambda letters, _: (letters, letters),
    "reverse": lambda letters, _: (letters, letters[::-1]),
    "sort": lambda letters, _: (letters, sorted(letters)),
    "recall": _recall,
}
"""Functions that return a source and its target, from random letters and a random generator."""


def _pairs(toy: str, split: str, number: int) -> Iterator[tuple[str, str]]:
    rng = random.Random(f"{toy} {split}")
    for _ in range(number):
        source, target = TOYS[toy](rng.choices(LETTERS, k=rng.randint(4, 12)), rng)
        yield " ".join(source), " ".join(target)


def _read(toy: str, split: str, number: int) -> Iterator[Chunk]:
    return chunks(_pairs(toy, split, number))


def _fingerprint(toy: str, split: str, number: int) -> str:
    # The cache of tokens must notice changes of the tasks above.
    lines = "".join(map(" > ".join, _pairs(toy, split, number)))
    return hashlib.sha256(lines.encode()).hexdigest()


def toy_splits(name: str, _: DataConfig) -> dict[str, Split]:
    """Return the splits of a toy task, such as "toy:reverse"."""
    toy, sizes = name.partition(":")[2], {"train": 20_000, "dev": 500, "test": 500}
    return {split: Split.of(_fingerprint, _read, toy, split, size) for split, size in sizes.items()}


t2t_jax.register("task", "toy")(
    replace(
        TASKS["translation"],
        schemes=None,
        corpora=toy_splits,
        task="t2t_jax.tasks.translation:TASK",
    )
)

PARTS: dict[str, dict[str, Any]] = {
    "scale": {"model.attention_kind": "dot_product"},
    "mask": {"model.is_causal": False},
    "positions": {"model.position": "no_positions"},
    "residuals": {"model.has_residuals": False},
    "norms": {"model.norm": "no_norm"},
    "warmup": {"training.warmup_steps": 1},
    "smoothing": {"training.label_smoothing": 0.0},
    "heads": {"model.num_heads": 1},
    "dropout": {"model.dropout_rate": 0.0},
    "feed-forward": {"model.feed_forward": "no_activation"},
}
"""The changes that take each part out; `t2t-jax sweep --help model` lists the fields."""

TEXT = load_config("tiny").replace(
    {
        "model.architecture": "lab",
        "model.dropout_rate": 0.1,
        "evaluation.num_sentences": 500,
    }
)
TOY = TEXT.replace(
    {
        "data.task": "toy",
        "data.vocab_size": 37,  # two subwords for each of 16 symbols, and 5 more
        "data.max_length": 32,
        "training.num_train_steps": 500,
        "training.warmup_steps": 150,
        # Half the paper's rate: with its whole rate, scores of a toy vary more between seeds.
        "training.learning_rate_factor": 0.5,
        "checkpoint.every_steps": 500,
        "evaluation.every_steps": 500,
        "evaluation.metric": "exact_match",
    }
)
CHANGES: dict[str, dict[str, Any]] = {
    "recall": {
        "data.vocab_size": 41,
        # The model learns to recall all at once, at a step between 300 and 700.
        "training.num_train_steps": 800,
        "checkpoint.every_steps": 800,
        "evaluation.every_steps": 800,
    }
}
"""Other settings of toy tasks."""


def _variants(name: str, base: Config) -> dict[str, Config]:
    return {name: base} | {f"{name}-{part}": base.replace(PARTS[part]) for part in PARTS}


VARIANTS = _variants("text", TEXT)
for name in TOYS:
    changes = {"data.corpus": f"toy:{name}"} | CHANGES.get(name, {})
    VARIANTS |= _variants(name, TOY.replace(changes))
