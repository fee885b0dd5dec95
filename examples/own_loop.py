"""Train a translator in a loop of your own: JAX, optax and parameters, without `t2t_jax.train`.

    python examples/own_loop.py --workdir runs/own_loop

The bundled demo calls a password "Passwort". The loop fine-tunes it on pairs that say "Kennwort",
saves it as a run directory, and loads that again: a minute on two cores.
"""

import gzip
from collections.abc import Iterable, Iterator
from importlib.resources import files
from typing import Any

import jax
import numpy as np
import optax
import tyro

import t2t_jax
from t2t_jax import Batch, Translator


def read_pairs() -> tuple[list[str], list[str]]:
    """Return the bundled sources and targets about passwords, with the new word."""
    sides = []
    for language in ("en", "de"):
        content = files("t2t_jax").joinpath(f"data/bundled/train.{language}.gz").read_bytes()
        sides.append(gzip.decompress(content).decode().splitlines())
    pairs = [pair for pair in zip(*sides, strict=True) if "passw" in pair[1].lower()]
    targets = [t.replace("Passw", "Kennw").replace("passw", "kennw") for _, t in pairs]
    return [source for source, _ in pairs], targets


def make_batches(
    translator: Translator, sources: list[str], targets: list[str], rows: int = 32
) -> Iterator[Batch]:
    """Yield random batches without end. All have one shape, so the step compiles once."""
    pairs = Batch.of(translator.encode(sources), translator.encode_targets(targets))
    rng = np.random.default_rng(0)
    while True:
        indices = rng.choice(len(sources), rows)
        yield jax.tree.map(lambda x, indices=indices: x[indices], pairs)


def train(
    module: Any,
    params: Any,
    batches: Iterable[Batch],
    optimizer: optax.GradientTransformation,
    *,
    label_smoothing: float = 0.1,
    dropout: bool = True,
) -> tuple[Any, list[float]]:
    """Take a step on each batch; return the new parameters, and the loss before each step."""

    def mean_loss(params: Any, batch: Batch, key: jax.Array) -> jax.Array:
        losses, _ = module.apply(
            {"params": params},
            batch,
            label_smoothing=label_smoothing,
            deterministic=not dropout,
            rngs={"dropout": key},
            method="losses",
        )
        is_token = batch.targets.segments > 0  # False at padding
        return (losses * is_token).sum() / is_token.sum()

    @jax.jit
    def step(params: Any, state: Any, batch: Batch, key: jax.Array) -> Any:
        loss, gradient = jax.value_and_grad(mean_loss)(params, batch, key)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, loss

    state, losses = optimizer.init(params), []
    for number, batch in enumerate(batches):
        params, state, loss = step(params, state, batch, jax.random.key(number))
        losses.append(float(loss))
    return params, losses


def main(workdir: str = "runs/own_loop", num_train_steps: int = 40, start: str = "demo") -> None:
    """Fine-tune the run `start`, and write the run `workdir`."""
    translator = t2t_jax.load(start)
    # For random parameters: translator.module.init(key, translator.module.example())["params"].
    batches = make_batches(translator, *read_pairs())
    steps = (next(batches) for _ in range(num_train_steps))
    schedule = optax.warmup_constant_schedule(0.0, 3e-4, warmup_steps=10)
    params, losses = train(translator.module, translator.params, steps, optax.adam(schedule))
    translator.with_params(params).save(workdir)
    print(f"loss {losses[0]:.3f} before the first step, {losses[-1]:.3f} before the last")
    for model in (translator, t2t_jax.load(workdir)):
        print(*model.translate(["Enter your password"]))


if __name__ == "__main__":
    tyro.cli(main)
