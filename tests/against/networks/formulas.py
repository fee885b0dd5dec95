"""The neutral form, read by the formulas of `tests/modules/numpy_transformer.py`."""

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from safetensors.numpy import load_file
from scipy.special import log_softmax

from t2t_jax.config import Config
from t2t_jax.data.vocabularies.shared import SharedVocabulary
from t2t_jax.extras.interchange.portable import PortableModel
from tests.against.networks import part
from tests.against.part import Case
from tests.extras.interchange.models import translator_of
from tests.modules import numpy_transformer as formulas

_STARTS = {"padding": 0, "end": 1, "begin": 2}


def exported(case: Case, folder: str, name: str = "exported") -> np.ndarray:
    """Return the log-probabilities of an export."""
    place = Path(folder, name)
    config = Config.from_json((place / "config.json").read_text(encoding="utf-8"))
    vocabulary = SharedVocabulary(part.splitter(part.names(case)[1]))
    portable = PortableModel(config, vocabulary, load_file(place / "model.safetensors"), ())
    model, params, rows = config.model, translator_of(portable).params, []
    for pair in zip(*part.inputs(case), strict=True):
        if model.architecture == "decoder_only":
            rows += [formulas.decoder_only_logits(params, model, *pair)]
        else:
            rows += [formulas.logits(params, model, *pair, bos_id=_STARTS[model.start_token])]
    return log_softmax(np.concatenate(rows), -1)


def with_first_norms(case: Case, folder: str) -> np.ndarray:
    """Return the log-probabilities with the epsilon that an export gives to the first norms.

    See `rewriting.as_post_norm`: LayerNorm(x + f(x) / a) with the epsilon e is
    LayerNorm(a x + f(x)) with the epsilon a^2 e.
    """
    calls, residual = count(), formulas.residual

    def with_first_norm(params: Any, config: Any, alpha: float, *others: Any) -> Any:
        num_of_encoder = 2 * config.num_encoder_layers
        number = next(calls) % (num_of_encoder + 3 * config.num_decoder_layers)
        if number in (0, num_of_encoder):
            epsilon = 1e-5 if case["format"] == "marian" else config.norm_epsilon
            scale = alpha if config.norm_order == "deep" else 1
            config = replace(config, norm_epsilon=scale**2 * epsilon)
        return residual(params, config, alpha, *others)

    with mock.patch.object(formulas, "residual", with_first_norm):
        return exported(case, folder, "neutral")
