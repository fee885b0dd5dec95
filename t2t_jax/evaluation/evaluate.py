"""The evaluation of a model on a split: one for the training loop and for `eval.py`."""

import dataclasses
import math
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from t2t_jax.data.batching import Batches
from t2t_jax.data.corpus import Corpus
from t2t_jax.data.tokenized import prepare
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError
from t2t_jax.evaluation.bleu import CorpusScores, corpus_scores
from t2t_jax.parallel.mesh import mesh_of, put_batch
from t2t_jax.training.step import eval_step


class CorpusLoss(NamedTuple):
    """Losses of a split, in nats per target subword."""

    smoothed: float
    """The label-smoothed loss, which training minimises."""
    nll: float
    """The negative log-likelihood."""
    tokens: int
    """Target subwords it is the mean of, ends of sentence included."""


@dataclass(frozen=True)
class Evaluation:
    """How good a model is on a split."""

    split: str
    """The split's name."""
    loss: CorpusLoss
    """Losses over all pairs of the split."""
    scores: CorpusScores
    """Scores of the translated sentences."""
    sources: list[str]
    """The translated sentences."""
    hypotheses: list[str]
    """Their translations."""
    references: list[str]
    """What they are compared with: the raw lines of the corpus."""
    seconds: float
    """Wall time of the whole evaluation, compilation included."""

    @property
    def perplexity(self) -> float:
        """exp of the negative log-likelihood per subword; it depends on the vocabulary."""
        return math.exp(min(self.loss.nll, 700.0))

    def summary(self) -> dict[str, Any]:
        """All figures under their own names, as plain values."""
        return {
            "split": self.split,
            "num_sentences": len(self.sources),
            **dataclasses.asdict(self.scores),
            "loss": self.loss.smoothed,
            "nll": self.loss.nll,
            "perplexity": self.perplexity,
            "target_tokens": self.loss.tokens,
            "seconds": self.seconds,
        }


def evaluate(
    translator: Translator,
    corpus: Corpus,
    split: str,
    *,
    num_sentences: int | None = None,
    **overrides: Any,
) -> Evaluation:
    """Evaluate a model on a split.

    Args:
      translator: the model; its config says how the corpus is read.
      corpus: where the split is.
      split: its name.
      num_sentences: how many sentences to translate, from the first on; None means all. The losses
        are always over all pairs.
      overrides: fields of `DecodingConfig`, for the translation.

    Raises:
      UserError: there is no such split, or the translation refuses something.
    """
    start = time.monotonic()
    sources, references = (lines[:num_sentences] for lines in corpus.lines(split))
    hypotheses = translator.translate(sources, **overrides)
    scores = corpus_scores(hypotheses, references)
    loss = corpus_loss(translator, corpus, split)
    seconds = time.monotonic() - start
    return Evaluation(split, loss, scores, sources, hypotheses, references, seconds)


def corpus_loss(translator: Translator, corpus: Corpus, split: str) -> CorpusLoss:
    """The losses over all pairs of a split.

    Raises:
      UserError: there is no such split, or a sentence is longer than a learned position table.
    """
    config = translator.config
    pairs = prepare(config.data, corpus, translator.vocabulary, split)
    longest = max(pairs.source_lengths.max(initial=0), pairs.target_lengths.max(initial=0))
    if longest > config.model.longest_sentence:
        raise UserError(
            f"the {split} split has a sentence of {longest} subwords, more than the learned "
            f"positions of this model (model.max_positions={config.model.max_positions}); split it"
        )
    batches = Batches(pairs, config.data, seed=0)
    smoothing = config.training.label_smoothing
    mesh, tokens_per_device = mesh_of(translator.params), config.parallel.tokens_per_device
    # Nothing is fetched before all is launched: the device never waits for the host.
    sums = [
        eval_step(
            translator.model,
            smoothing,
            translator.params,
            put_batch(batches(step), mesh, tokens_per_device),
        )
        for step in range(batches.steps_per_epoch)
    ]
    smoothed, nll, tokens = np.asarray(jax.device_get(sums), np.float64).sum(axis=0)
    return CorpusLoss(float(smoothed / tokens), float(nll / tokens), int(tokens))
