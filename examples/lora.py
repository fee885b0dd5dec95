"""Fine-tune a run with LoRA, low-rank updates of its matrices (Hu et al. 2021, "LoRA").

    python examples/lora.py --corpus text:DIR --base demo --workdir runs/lora --rank 8

Each chosen matrix W `[in, out]` becomes W + alpha / rank A B, with A `[in, rank]` and B `[rank,
out]`. Training changes only A and B, by an Optax loop over `translator.params` and the network as a
Flax module. The result is merged into W and saved as a run, which all commands read. `--rank 0`
trains all parameters instead, by the same loop.
"""

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import tyro
from flax.traverse_util import flatten_dict, unflatten_dict

import t2t_jax
from t2t_jax.data.batching import Batches
from t2t_jax.data.corpus import open_corpus
from t2t_jax.data.tokenized import tokenize


@dataclass(frozen=True)
class Lora:
    """The matrices to adapt, and the form of their updates."""

    rank: int = 8
    """Rank of the updates."""
    alpha: float = 16.0
    """Numerator of the factor alpha / rank on the updates (section 4.1)."""
    patterns: tuple[str, ...] = ("*/layers",)
    """Paths of parameters or modules, as in `training.freeze`, such as `*/query` and `*/value` for
    the matrices that the paper adapts. The default adapts every matrix of the layers."""

    def shapes(self, params):
        """Return the shapes of the adapted matrices by path: `[in, out]` or `[layers, in, out]`.

        Raises:
          UserError: a pattern matches no matrix, or the rank or alpha is out of range.
        """
        # The stacks hold one array for all layers, with the layer as the first axis.
        shapes = {
            path: array.shape
            for path, array in flatten_dict(params, sep="/").items()
            if array.ndim == 2 + ("/layers/" in path)
        }
        for pattern in self.patterns:
            if not any(_matches(path, pattern) for path in shapes):
                raise t2t_jax.UserError(
                    f"the pattern {pattern!r} matches no matrix; the matrices of this model are "
                    f"{', '.join(shapes)}"
                )
        if not self.alpha > 0:
            raise t2t_jax.UserError(f"alpha={self.alpha} is not positive")
        adapted = {p: s for p, s in shapes.items() if any(_matches(p, x) for x in self.patterns)}
        for path, shape in adapted.items():
            if not 1 <= self.rank <= min(shape[-2:]):
                raise t2t_jax.UserError(
                    f"rank={self.rank} is not from 1 to {min(shape[-2:])}, the smaller size of "
                    f"{path}; choose another rank or other patterns"
                )
        return adapted

    def init(self, params, key):
        """Make adapters by path: A is Gaussian, and B is 0, so that training starts at the base."""
        adapters = {}
        for n, (path, (*layers, width_in, width_out)) in enumerate(self.shapes(params).items()):
            a_key, a_shape = jax.random.fold_in(key, n), (*layers, width_in, self.rank)
            a = jax.random.normal(a_key, a_shape) / math.sqrt(width_in)
            adapters[path] = {"A": a, "B": jnp.zeros((*layers, self.rank, width_out))}
        return adapters

    def merged(self, params, adapters):
        """Return plain parameters, with W + alpha / rank A B for every adapted W."""
        merged = flatten_dict(params, sep="/")
        for path, adapter in adapters.items():
            merged[path] += self.alpha / self.rank * adapter["A"] @ adapter["B"]
        return unflatten_dict(merged, sep="/")


def _matches(path, pattern):
    return fnmatchcase(path, pattern) or fnmatchcase(path, f"{pattern}/*")


def make_step(network, merged, optimizer):
    """Return the training step of the loop.

    Args:
      network: the Flax module of a translator.
      merged: a function of the base parameters and the trained arrays to all parameters.
      optimizer: a gradient transformation of Optax.
    """

    def mean_loss(trained, base, batch, key):
        params = {"params": merged(base, trained)}
        options = {"label_smoothing": 0.1, "deterministic": False, "rngs": {"dropout": key}}
        smoothed, _ = network.apply(params, batch, method="losses", **options)  # [b, t]
        is_token = batch.targets.segments != 0
        return (smoothed * is_token).sum() / is_token.sum()

    @jax.jit
    def step(trained, state, base, batch, key):
        loss, gradient = jax.value_and_grad(mean_loss)(trained, base, batch, key)
        updates, state = optimizer.update(gradient, state, trained)
        return optax.apply_updates(trained, updates), state, loss

    return step


def fine_tune(translator, batches, lora, *, num_steps, learning_rate, seed):
    """Return a translator with fine-tuned parameters; `lora` None trains all parameters."""
    base, key = translator.params, jax.random.key(seed)
    trained, merged = base, lambda base, trained: trained
    if lora is not None:
        trained, merged = lora.init(base, key), lora.merged
    rate = optax.warmup_cosine_decay_schedule(0, learning_rate, num_steps // 10, num_steps)
    optimizer = optax.adam(rate)
    step, state = make_step(translator.module, merged, optimizer), optimizer.init(trained)
    size = sum(x.size for x in jax.tree.leaves(trained))
    print(f"{size:,} trained parameters, {batches.steps_per_epoch} steps an epoch")
    for n in range(num_steps):
        dropout_key = jax.random.fold_in(key, n)
        trained, state, loss = step(trained, state, base, batches(n), dropout_key)
        if (n + 1) % 40 == 0:
            print(f"step {n + 1}  loss {loss:.3f}")
    return translator.with_params(jax.jit(merged)(base, trained))


def main(
    corpus: str,
    base: str = "demo",
    workdir: str = "runs/lora",
    rank: int = 8,
    alpha: float = 16.0,
    patterns: tuple[str, ...] = Lora.patterns,
    learning_rate: float = 3e-3,
    num_steps: int = 120,
    tokens_per_step: int = 2048,
    seed: int = 0,
):
    """Fine-tune a run on the train split of a corpus, and score it on dev and test.

    Args:
      corpus: `text:DIR`, a directory with train.en, train.de, dev.en and so on.
      base: the run to fine-tune.
      workdir: the new run.
      rank: 0 trains all parameters, without adapters.
      tokens_per_step: the most source and target tokens of a step, with padding.
    """
    if Path(workdir).exists():
        raise t2t_jax.UserError(f"{workdir} exists; give another workdir")
    translator = t2t_jax.load(base)
    fields = {"corpus": corpus, "batching": "pack"}
    fields |= dict.fromkeys(("source_tokens_per_step", "target_tokens_per_step"), tokens_per_step)
    data = translator.config.replace({f"data.{name}": x for name, x in fields.items()}).data
    pairs = open_corpus(data)
    examples = tokenize(pairs.pairs("train"), translator.vocabulary, data.max_length)
    tuned = fine_tune(
        translator,
        Batches(examples, data, seed),
        Lora(rank, alpha, patterns) if rank else None,
        num_steps=num_steps,
        learning_rate=learning_rate,
        seed=seed,
    )
    tuned.save(workdir)
    for split in "dev", "test":
        if split in pairs.splits:
            scores = t2t_jax.evaluate(tuned, pairs, split).scores
            print(f"{split}: {scores.bleu:.2f} sacreBLEU ({scores.bleu_signature})")
    return tuned


if __name__ == "__main__":
    tyro.cli(main)
