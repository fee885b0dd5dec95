"""Exported models in CTranslate2."""

from pathlib import Path

import ctranslate2
import numpy as np

from tests.against.networks.part import names, renamed
from tests.against.part import Case


def exported(case: Case, folder: str) -> np.ndarray:
    """Return the log-probabilities of the targets."""
    place = str(Path(folder, "exported"))
    engine = ctranslate2.Translator(place, intra_threads=1, compute_type="float32")
    rows = [[row[:-1] for row in side] for side in renamed(case, names(case))]
    return np.concatenate([one.log_probs for one in engine.score_batch(*rows)])
