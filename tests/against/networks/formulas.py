"""The neutral form, read by the formulas of `tests/modules/numpy_transformer.py`."""

import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from scipy.special import log_softmax

from t2t_jax.config import Config
from t2t_jax.data.vocabularies.shared import SharedVocabulary
from t2t_jax.extras.interchange.portable import PortableModel
from t2t_jax.system.safetensors_file import read_safetensors
from tests.against.networks import part
from tests.against.part import Case
from tests.extras.interchange.models import translator_of
from tests.modules.numpy_transformer import decoder_only_logits, logits

_PARAMETERS = "model.safetensors"
_STARTS = {"padding": 0, "end": 1, "begin": 2}


def exported(case: Case, folder: str, name: str = "exported") -> np.ndarray:
    """Return the log-probabilities of an export."""
    place = Path(folder, name)
    config = Config.from_json((place / "config.json").read_text(encoding="utf-8"))
    vocabulary = SharedVocabulary(part.splitter(part.names(case)[1]))
    model, rows = config.model, []
    params = translator_of(
        PortableModel(config, vocabulary, load_file(place / _PARAMETERS), ())
    ).params
    for pair in zip(*part.inputs(case), strict=True):
        if model.architecture == "decoder_only":
            rows += [decoder_only_logits(params, model, *pair)]
        else:
            rows += [logits(params, model, *pair, bos_id=_STARTS[model.start_token])]
    return log_softmax(np.concatenate(rows), -1)


def trained(case: Case, folder: str) -> np.ndarray:
    """Change all parameters of an export, write it, and return its log-probabilities."""
    place = Path(folder, "trained")
    shutil.copytree(Path(folder, "exported"), place)
    (place / "SHA256SUMS").unlink(missing_ok=True)
    arrays, metadata = read_safetensors(place / _PARAMETERS)
    rng = np.random.default_rng(case["seed"])
    changed = {name: x + part.drawn(rng, name, x.shape) / 2 for name, x in arrays.items()}
    save_file(changed, place / _PARAMETERS, metadata)
    return exported(case, folder, "trained")
