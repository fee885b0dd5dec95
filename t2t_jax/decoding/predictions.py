"""The most probable label at each target of an example, all computed in one pass."""

from collections.abc import Iterator
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32, Int32

from t2t_jax.batch import Batch
from t2t_jax.data.batching import Batches
from t2t_jax.data.rows import Chosen, Examples
from t2t_jax.decoding.translator import Translator
from t2t_jax.modules.decoding_model import ScoringModel
from t2t_jax.modules.matrices import Parameters
from t2t_jax.parallel.device_memory import within_memory
from t2t_jax.parallel.mesh import batch_layout, on_host, one_ahead


class Prediction(NamedTuple):
    """The most probable labels of an example, in the order of its targets."""

    labels: Int32[np.ndarray, " n"]
    """The numbers of the most probable labels."""
    probabilities: Float32[np.ndarray, " n"]
    """The probability of each label under the model."""
    targets: Int32[np.ndarray, " n"]
    """The numbers of the right labels."""


def predictions(translator: Translator, examples: Examples) -> list[Prediction]:
    """Predict the most probable label of every target of some examples, each by itself.

    Args:
      examples: the examples, whose inputs the model reads and whose targets are predicted.
    """
    translator.check_process()
    found: list[Prediction] = [_NOTHING] * len(examples)
    if not len(examples):
        return found
    batches = Batches(examples, translator.config.data, seed=0)
    with within_memory(decoding=True):
        for (chosen, batch), out in one_ahead(_launched(translator, batches)):
            computed: Any = (np.asarray(x).reshape(-1, x.shape[-1]) for x in on_host(out))
            arrays = *computed, batch.targets.tokens
            for example, row, segment in zip(*chosen, strict=True):
                own = batch.targets.segments[row] == segment
                found[example] = Prediction(*(x[row][own] for x in arrays))
    return found


_NOTHING = Prediction(np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros(0, np.int32))


def _launched(
    translator: Translator, batches: Batches
) -> Iterator[tuple[tuple[Chosen, Batch], tuple[Array, Array]]]:
    """Yield each batch of one epoch, with the labels and probabilities computed for it."""
    for step in range(batches.steps_per_epoch):
        rows, *lengths = batches.shape(step)
        tokens = translator.config.parallel.pass_tokens
        layout = batch_layout(translator.mesh, rows, max(lengths), tokens)
        batch = batches(step, np.arange(layout.passes * layout.rows_per_pass))
        local: Batch = jax.tree.map(itemgetter(layout.local_rows()), batch)
        out = _most_probable(translator.model, translator.params, layout.put(local))
        yield (batches.chosen(step), batch), out


@partial(jax.jit, static_argnums=0)
def _most_probable(
    model: ScoringModel, params: Parameters, batch: Batch
) -> tuple[Int32[Array, "passes rows t"], Float32[Array, "passes rows t"]]:
    """Return the most probable label at every target of a batch, and its probability."""

    def one_pass(rows: Batch) -> tuple[Array, Array]:
        logits = model.logits(params, rows).astype(jnp.float32)
        best = logits.argmax(-1).astype(jnp.int32)
        return best, jnp.exp(logits.max(-1) - jax.nn.logsumexp(logits, -1))

    return jax.lax.map(one_pass, batch)
