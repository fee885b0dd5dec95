"""Models of this package: made at random, imported, and exported."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from t2t_jax.batch import Batch, Sequence
from t2t_jax.config import ModelConfig
from t2t_jax.data.vocabularies.shared import SharedVocabulary
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.errors import UserError
from t2t_jax.extras.interchange.formats import read_model, write_model
from t2t_jax.extras.interchange.places import new_order
from t2t_jax.extras.interchange.portable import PortableModel, portable_model
from t2t_jax.extras.interchange.vocabularies.framed import FramedVocabulary
from t2t_jax.extras.interchange.vocabularies.paired import paired_vocabulary
from t2t_jax.extras.interchange.vocabularies.pretrained import PretrainedVocabulary
from t2t_jax.modules.models import build, make_scoring_model
from t2t_jax.modules.names import parameters_of
from t2t_jax.modules.network import declared_parameters
from tests.against.networks.part import drawn, names, our_fields, padded, renamed, splitter
from tests.against.part import Case
from tests.extras.interchange.models import portable


def refusal(case: Case, folder: str) -> str:
    """Return the error with which an import refuses a model."""
    try:
        read_model(case["format"], Path(folder, "theirs"))
    except UserError as error:
        return str(error)
    return ""


def imported(case: Case, folder: str) -> np.ndarray:
    """Import a model, export it, and return its logits."""
    model = read_model(case["format"], Path(folder, "theirs"))
    write_model(model, case["format"], Path(folder, "exported"))
    return _logits(model, case)


def make(case: Case, folder: str) -> np.ndarray:
    """Export a random model, and return its logits."""
    source, target = names(case)
    models = splitter(source), splitter(target)
    vocabulary: Vocabulary = SharedVocabulary(models[1])
    if case["source_entries"]:
        vocabulary = paired_vocabulary(models, (source, target))
    rng = np.random.default_rng(case["seed"])
    model = portable(our_fields(case), vocabulary)
    arrays = {name: drawn(rng, name, array.shape) for name, array in model.arrays.items()}
    model = replace(model, arrays=arrays)
    place = Path(folder, "exported")
    write_model(model, case["format"], place, case["dtype"])
    if case["format"] not in ("safetensors", "run"):
        return _logits(model, case)
    again = _read(case, place)
    if case["dtype"] == "float32":
        for name, array in arrays.items():
            np.testing.assert_array_equal(again.arrays[name], array)
    return _logits(again, case)


def trained(case: Case, folder: str) -> np.ndarray:
    """Return the logits of a model that came back."""
    return _logits(_read(case, Path(folder, "trained")), case)


def _read(case: Case, place: Path) -> PortableModel:
    return portable_model(place) if case["format"] == "run" else read_model(case["format"], place)


def _orders(case: Case, vocabulary: Vocabulary) -> list[list[int]]:
    """Return our id of each source entry and target entry of the side that begins."""
    sizes = vocabulary.source_size, len(vocabulary)
    if isinstance(vocabulary, PretrainedVocabulary):
        return [np.argsort(vocabulary.order)[vocabulary.order.count(-1) :].tolist()] * 2
    if isinstance(vocabulary, FramedVocabulary):
        return [np.argsort(new_order([""] * size, vocabulary.first)[1]).tolist() for size in sizes]
    ours = vocabulary.pieces([range(sizes[0])])[0], vocabulary.target_pieces([range(sizes[1])])[0]
    both = zip(ours, names(case), strict=True)
    return [[own.index(name) for name in theirs] for own, theirs in both]


@lru_cache(maxsize=1)
def _network(config: ModelConfig, size: int) -> tuple[Any, Any]:
    """Return a network, and the shapes of its parameters."""
    shapes = nn.unbox(declared_parameters(build(config, size)))
    return make_scoring_model(config, size, None), shapes


def _logits(model: PortableModel, case: Case) -> np.ndarray:
    orders = _orders(case, model.vocabulary)
    rows = renamed(case, orders)
    if model.config.model.architecture == "decoder_only" and case["direction"] == "in":
        rows[0] = [[]] * len(rows[0])
    # GPT-2 has no sources; others have arrays of one size, whose operations are compiled once.
    least = any(rows[0]) * (case["source_length"] + 1), case["target_length"] + 1
    tokens = [padded(side, 0, n).astype(np.int32) for side, n in zip(rows, least, strict=True)]
    numbers = [np.indices(side.shape, np.int32)[1] for side in tokens]
    both = zip(tokens, numbers, strict=True)
    batch = Batch(*(Sequence(side, np.int32(side != 0), number) for side, number in both))
    network, shapes = _network(model.config.model, len(model.vocabulary))
    with jax.disable_jit():  # each operation is compiled once for all networks
        logits = network.logits(parameters_of(model.arrays, shapes), batch)
        found = np.asarray(jax.nn.log_softmax(logits))
    return found[tokens[1] != 0][:, orders[1][: case["entries"]]]
