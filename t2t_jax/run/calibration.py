"""The calibration of a model: the expected quality of a translation, by its probability.

exp of the mean log-probability of a translation's subwords says how sure the model is of it, but
not how good it is. Calibration fits, on the dev split, the chrF of translations as a nondecreasing
function of that mean, and keeps it beside the checkpoints that it was measured with.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from t2t_jax.data.corpus import Corpus, open_corpus
from t2t_jax.decoding.translations import Hypothesis
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.tasks.measures.bleu import chrf_metric
from t2t_jax.tasks.measures.isotonic import Isotonic, isotonic_regression
from t2t_jax.workdir import CALIBRATION

_FEWEST = 4


class Calibration(NamedTuple):
    """The expected chrF of a translation, and the error of that expectation."""

    curve: Isotonic
    """Expected chrF, 0 to 1, by the mean log-probability of a subword, in nats."""
    num_sentences: int
    """The number of sentences of the dev split that the curve was fitted to."""
    correlation: float
    """Pearson's correlation, on half of the sentences, of their chrF with the chrF that a fit to
    the other half expects; 0 if one of the two is constant."""
    mean_absolute_error: float
    """The mean absolute difference of these two, in chrF from 0 to 1."""
    constant_error: float
    """The same error where the mean chrF of the fitted half is expected of every sentence."""


def mean_log_prob(hypothesis: Hypothesis) -> float:
    """Return the mean log-probability of a translation's subwords, in nats; 0 for a blank line."""
    return hypothesis.log_prob / max(1, len(hypothesis.tokens))


def confidence(hypothesis: Hypothesis, calibration: Calibration | None) -> float:
    """Return the confidence in a translation, from 0 to 1; that in a blank line is 1.

    Args:
      calibration: the calibration of the model; with None, the result is exp of `mean_log_prob`.
    """
    if not hypothesis.tokens:
        return 1.0
    if calibration is None:
        return math.exp(mean_log_prob(hypothesis))
    return float(calibration.curve(np.array([mean_log_prob(hypothesis)]))[0])


def calibrate(translator: Translator, corpus: Corpus | None = None) -> Calibration:
    """Calibrate a model on the dev split of its corpus, as its config decodes.

    Every second sentence is held out to measure how well the fit to the others does. The curve is
    then fitted to all.

    Args:
      corpus: where the dev split is; None is the corpus of the model's config.

    Raises:
      UserError: the corpus is no parallel text, or has too few sentences that are not blank, or
        sacreBLEU is not installed.
    """
    chrf = chrf_metric()
    corpus = open_corpus(translator.config.data) if corpus is None else corpus
    if "calibrate" not in corpus.facts.commands:
        raise UserError(f"{corpus.name} is no parallel text, and has no chrF to calibrate by")
    sources, references = corpus.lines("dev")
    found = [best for [best] in translator.nbest(sources, 1)]
    kept = [(best, line) for best, line in zip(found, references, strict=True) if best.tokens]
    if len(kept) < _FEWEST:
        raise UserError(
            f"the dev split of {corpus.name} has {len(kept)} sentences that are not blank; at "
            f"least {_FEWEST} are needed to calibrate"
        )
    x = np.array([mean_log_prob(best) for best, _ in kept])
    y = np.array([chrf.sentence_score(best.text, [line]).score / 100 for best, line in kept])
    return fit(x, y)


def fit(x: np.ndarray, y: np.ndarray) -> Calibration:
    """Fit a calibration to some translations.

    Args:
      x: the mean log-probability of a subword, for each translation.
      y: the chrF of each translation, 0 to 1.
    """
    expected = isotonic_regression(x[::2], y[::2])(x[1::2])
    held_out = y[1::2]
    varies = np.ptp(expected) > 0 and np.ptp(held_out) > 0
    return Calibration(
        curve=isotonic_regression(x, y),
        num_sentences=len(x),
        correlation=float(np.corrcoef(expected, held_out)[0, 1]) if varies else 0.0,
        mean_absolute_error=float(np.abs(expected - held_out).mean()),
        constant_error=float(np.abs(y[::2].mean() - held_out).mean()),
    )


def save_calibration(calibration: Calibration, translator: Translator, workdir: Path) -> None:
    """Write a calibration into the run directory, with the steps of the model's checkpoints.

    Raises:
      UserError: the file cannot be written.
    """
    fields = {**_identity(translator), **calibration._asdict(), **calibration.curve._asdict()}
    del fields["curve"]
    write_whole(workdir / CALIBRATION, f"{json.dumps(fields, indent=2)}\n".encode())


def read_calibration(workdirs: Sequence[Path], translator: Translator) -> Calibration | None:
    """Read the calibration of a model; return None where it has none.

    A file that was written for other checkpoints does not count, and an ensemble has none.

    Args:
      workdirs: the run directories that the model was loaded from.

    Raises:
      UserError: the file is damaged.
    """
    if len(workdirs) != 1 or not (path := workdirs[0] / CALIBRATION).is_file():
        return None
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        if any(fields[name] != value for name, value in _identity(translator).items()):
            return None
        curve = Isotonic(*(tuple(map(float, fields[name])) for name in Isotonic._fields))
        if not curve.x or len(curve.x) != len(curve.y):
            raise ValueError("x and y have no equal lengths")
        figures = {name: fields[name] for name in Calibration._fields if name != "curve"}
        return Calibration(curve, **figures)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged; write it again by t2t-jax calibrate") from error


def _identity(translator: Translator) -> dict[str, object]:
    """Return the fields that are equal if two models of a run are the same."""
    return {
        "steps": list(translator.steps),
        "ema_decays": list(translator.ema_decays),
        "vocabulary": translator.vocabulary.fingerprint,
    }
