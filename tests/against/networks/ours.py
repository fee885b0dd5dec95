"""Models of this package: made at random, imported, and exported."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from t2t_jax.batch import Batch, padded
from t2t_jax.data.vocabularies.shared import SharedVocabulary
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.extras.interchange.formats import read_model, write_model
from t2t_jax.extras.interchange.portable import PortableModel, portable_model
from t2t_jax.extras.interchange.vocabularies.paired import paired_vocabulary
from tests.against.networks import part
from tests.against.part import Case
from tests.extras.interchange.models import assert_same_arrays, portable, translator_of


def imported(case: Case, folder: str) -> np.ndarray:
    """Import a model, export it, and return its log-probabilities."""
    model = read_model(case["format"], Path(folder, "theirs"))
    write_model(model, case["format"], Path(folder, "exported"))
    return _log_probs(model, case)


def make(case: Case, folder: str) -> np.ndarray:
    """Export a random model, and return its log-probabilities."""
    names = part.names(case)
    models = [part.splitter(side) for side in names]
    vocabulary: Vocabulary = SharedVocabulary(models[1])
    if case["source_entries"]:
        vocabulary = paired_vocabulary((models[0], models[1]), (names[0], names[1]))
    rng = np.random.default_rng(case["seed"])
    model = portable(part.our_fields(case), vocabulary)
    arrays = {name: part.drawn(rng, name, array.shape) for name, array in model.arrays.items()}
    model, place = replace(model, arrays=arrays), Path(folder, "exported")
    write_model(model, case["format"], place, case["dtype"])
    if part.has_other_norms(case):
        write_model(model, "safetensors", Path(folder, "neutral"))
    if part.PEERS.get(case["format"]) == part.FORMULAS:
        is_run = case["format"] == "run"
        model = portable_model(place) if is_run else read_model(case["format"], place)
        if case["dtype"] == "float32":
            assert_same_arrays(model.arrays, arrays)
    return _log_probs(model, case)


def trained(case: Case, folder: str) -> np.ndarray:
    """Return the log-probabilities of a model that came back."""
    return _log_probs(read_model(case["format"], Path(folder, "trained")), case)


def _orders(case: Case, vocabulary: Vocabulary) -> list[list[int]]:
    """Return our id of each source entry and target entry of the side that begins."""
    ids = range(vocabulary.source_size), range(len(vocabulary))
    ours = vocabulary.pieces(ids[:1])[0], vocabulary.target_pieces(ids[1:])[0]
    # The last of a name: GPT-2 has no padding, but may have an entry of that name after ours.
    tables = [dict(zip(own, range(len(own) - case["unused_rows"]), strict=False)) for own in ours]
    both = zip(tables, part.names(case), strict=True)
    return [[table[name] for name in theirs] for table, theirs in both]


def _log_probs(model: PortableModel, case: Case) -> np.ndarray:
    """Return the log-probabilities of all entries, in the order of the side that begins."""
    orders = _orders(case, model.vocabulary)
    rows = part.renamed(case, orders)
    # GPT-2 has no sources.
    lengths = any(rows[0]) * (case["source_length"] + 1), case["target_length"] + 1
    sides = [padded(side, len(side), length) for side, length in zip(rows, lengths, strict=True)]
    translator = translator_of(model)
    found = np.asarray(log_probs(translator.model, translator.params, Batch.of(*sides)))
    return found[sides[1] != 0][:, orders[1]]


@partial(jax.jit, static_argnums=0)
def log_probs(model: Any, params: Any, batch: Batch) -> jax.Array:
    """Return the log-probabilities of a network, which is compiled once for equal configs."""
    return jax.nn.log_softmax(model.logits(params, batch))
