"""A trained model with rows for new entries of its vocabulary, from which fine-tuning starts.

A new row is the mean of the rows of the old entries that the new one takes the place of, which is
among rows that the model knows (Hewitt 2021, "Initializing New Word Embeddings for Pretrained
Language Models"; Mundra et al. 2024). A new bias of the logits is the mean of their biases plus the
logarithm of a share: how often the new entry stands where the old vocabulary began with the first
of them. So a new logit is at most the mean of theirs, and no larger than the largest. A greedy
search for text without new entries therefore finds what it found before.
"""

from collections.abc import Sequence

import flax.linen as nn
import jax
import numpy as np
from flax.core import meta
from jaxtyping import Float32

from t2t_jax.data.vocabularies.extending import Extension
from t2t_jax.interchange.portable import PortableModel
from t2t_jax.modules.models import make_model
from t2t_jax.modules.names import named_arrays, parameters_of
from t2t_jax.modules.network import declared_parameters

_ENTRIES = "vocab"


def extended_model(model: PortableModel, extension: Extension) -> PortableModel:
    """Return a model for an extended vocabulary, with the same logits of all old entries.

    The parameters that have entries of the vocabulary on an axis are found by the logical axes that
    modules declare. What the run recorded of its quality is left out.

    Args:
      model: the model with the old vocabulary.
      extension: the new vocabulary, of `extend_vocabulary`.
    """
    declared = declared_parameters(make_model(model.config, len(model.vocabulary), None))
    params = parameters_of(model.arrays, nn.unbox(declared))
    params = jax.tree.map(
        lambda box, x: _extended(x, getattr(box, "names", ()), extension),
        declared,
        params,
        is_leaf=lambda x: isinstance(x, meta.AxisMetadata),
    )
    config = model.config.replace({"data.vocab_size": len(extension.vocabulary)})
    return PortableModel(config, extension.vocabulary, named_arrays(params), model.steps)


def _extended(
    array: Float32[np.ndarray, "..."], axes: Sequence[str | None], extension: Extension
) -> Float32[np.ndarray, "..."]:
    """Return a parameter, whose logical axes are given, with entries for new subwords.

    A parameter with no other axis than that of the entries is a bias of logits.
    """
    if _ENTRIES not in axes:
        return array
    place = axes.index(_ENTRIES)
    rows = np.moveaxis(array, place, 0)
    new = np.stack([rows[list(ids)].mean(0, dtype=np.float64) for ids in extension.replaced])
    if rows.ndim == 1:
        new += np.log(extension.shares)
    return np.moveaxis(np.concatenate([rows, new.astype(array.dtype)]), 0, place)
