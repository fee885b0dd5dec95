"""Write the outputs of a model on the devices of this process to a file; see `parity.py`.

    python -m on_accelerator.outputs FILE DTYPE [--tiny]

The arrays are the log-probabilities of random targets before training, the gradients of their mean
loss, the losses of 20 steps of training with dropout, and the tokens that a greedy search and one
with a beam of 4 find.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import workload
from workload import jax

from on_accelerator.sizes import config_of
from t2t_jax.batch import Batch
from t2t_jax.config import Config
from t2t_jax.modules.models import make_model
from t2t_jax.parallel.mesh import make_mesh
from t2t_jax.training.state import create_state

STEPS = 20
"""The number of training steps."""

_RECIPE = {"training.warmup_steps": STEPS, "training.learning_rate_factor": 0.1}


def outputs(config: Config, tiny: bool) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name of each array, and the array.

    Args:
      config: the model and the recipe.
      tiny: whether batches are to be small.
    """
    rows, length = (2, 8) if tiny else (16, 32)
    mesh = make_mesh(config.parallel)
    model = make_model(config, config.data.vocab_size, mesh)
    params = create_state(config, model, mesh).params
    batch = jax.tree.map(lambda x: x[0], workload.full_batch(config, mesh, rows, length))

    def mean_nll(params: object, batch: Batch) -> tuple[jax.Array, jax.Array]:
        _, nll = model.apply({"params": params}, batch, label_smoothing=0.0, method="losses")
        return nll.mean(), nll

    (_, nll), gradients = jax.jit(jax.value_and_grad(mean_nll, has_aux=True))(params, batch)
    yield "log-probabilities", -np.asarray(nll, np.float32)
    flat = [np.ravel(x) for x in jax.device_get(jax.tree.leaves(gradients))]
    yield "gradients", np.concatenate(flat)
    (step,) = workload.training_steps(config, [(rows, length)])
    yield "losses", np.array([step.take() for _ in range(STEPS)])
    never_ending = workload.random_parameters(config)
    for name, beam_size in (("greedy tokens", 1), ("tokens of a beam of 4", 4)):
        search = config.replace({"decoding.beam_size": beam_size})
        yield name, workload.decoding(search, never_ending, rows, length, length)()


def main() -> None:
    """Write the arrays that the command line asks for."""
    file, dtype, *flags = sys.argv[1:]
    tiny = "--tiny" in flags
    arrays = dict(outputs(config_of("base", dtype, tiny).replace(_RECIPE), tiny))
    np.savez(Path(file), **arrays)


if __name__ == "__main__":
    main()
