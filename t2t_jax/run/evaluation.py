"""Evaluate a model on a corpus split."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from operator import itemgetter
from typing import Any, TypeVar

import jax
import numpy as np
from jaxtyping import Float32, Float64, Int32

from t2t_jax.batch import Batch, Sequence
from t2t_jax.config import Config, DecodingConfig
from t2t_jax.data.batching import Batches
from t2t_jax.data.corpus import Corpus, open_corpus, own_corpus
from t2t_jax.data.rows import Examples, Placement
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.decoding.arguments import whole_number
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError
from t2t_jax.parallel.devices import hardware_name
from t2t_jax.parallel.mesh import batch_layout, mesh_of, on_host, prefetch_one
from t2t_jax.run.provenance import provenance, without_files
from t2t_jax.system.records import Record
from t2t_jax.system.signals import safe_point
from t2t_jax.tasks import task_of
from t2t_jax.tasks.measures.bleu import name_of_test_set
from t2t_jax.tasks.measures.perplexity import perplexity
from t2t_jax.tasks.task import CorpusLoss, Scoring, TaskScores
from t2t_jax.training.step import eval_step

_Out = TypeVar("_Out")


@dataclass(frozen=True)
class Evaluation:
    """The losses and scores of a model on a split."""

    split: str
    """The split's name."""
    loss: CorpusLoss
    """The losses over the split; on train, over the pairs that training uses."""
    scores: TaskScores
    """The scores in the metrics of the corpus's task."""
    sources: list[str]
    """The decoded source sentences, as raw text of the corpus."""
    hypotheses: list[str]
    """The model output for each source: a translation or a bracketed tree."""
    references: list[str]
    """The reference for each source: the raw line of the corpus or its bracketed tree."""
    num_sentences: int
    """The number of scored sentences, documents or images."""
    seconds: float
    """The wall-clock time of the evaluation, including compilation."""

    @property
    def perplexity(self) -> float:
        """Return the perplexity per subword, which depends on the vocabulary."""
        return perplexity(self.loss.nll)

    def summary(self) -> Record:
        """Return losses, scores and counts by name, as plain values."""
        return {
            "split": self.split,
            "num_sentences": self.num_sentences,
            **dataclasses.asdict(self.scores),
            "loss": self.loss.smoothed,
            "nll": self.loss.nll,
            "perplexity": self.perplexity,
            "target_tokens": self.loss.tokens,
            "seconds": self.seconds,
        }


def evaluate(
    translator: Translator,
    corpus: object = None,
    split: str = "test",
    *,
    num_sentences: int | None = None,
    seed: int = 0,
    **overrides: Any,
) -> Evaluation:
    """Evaluate a model on a split or on its first sentences.

    Args:
      translator: the model; its config defines how to read the corpus.
      corpus: a `Corpus`, or data as for `train`, where one sequence is `split` (for dev, the part
        that `data.dev_lines` holds out, if set); None is the corpus of the config.
      split: the split to evaluate.
      num_sentences: the number of sentences, documents or images to evaluate, starting with the
        first; None means all. Losses and scores cover the same sentences.
      seed: the random seed of sampling (`temperature` above 0).
      overrides: decoding fields to change, such as `beam_size=1`.

    Raises:
      TypeError: an argument has a wrong type.
      UserError: `num_sentences` is not positive, or the model cannot be scored on the split.
    """
    translator.check_process()
    whole_number(seed, "seed", 0, 2**32 - 1)
    if num_sentences is not None and whole_number(num_sentences, "num_sentences") < 1:
        raise UserError(f"num_sentences={num_sentences} is not positive; use None for all")
    config = translator.config.data
    opened = open_corpus(config) if corpus is None else own_corpus(corpus, config, split)
    if num_sentences is not None:
        opened = opened.first(split, num_sentences)
    return evaluate_split(translator, opened, split, seed=seed, **overrides)


def evaluate_split(
    translator: Translator,
    corpus: Corpus,
    split: str,
    num_sentences: int | None = None,
    seed: int = 0,
    **overrides: Any,
) -> Evaluation:
    """Compute the losses over a split, and decode and score its first sentences.

    Args:
      num_sentences: the number of sentences to decode; None means all. Tasks without decoding may
        score all sentences.
    """
    start_time = time.monotonic()
    config = translator.configured(**overrides)
    longest = translator.longest_sentence
    pairs = prepare_evaluation(config, corpus, translator.vocabulary, split, longest=longest)
    compute_loss = cache(partial(corpus_loss, translator, pairs))
    task = task_of(corpus.name, corpus.task)
    request = Scoring(translator, corpus, split, compute_loss, num_sentences, seed, config.decoding)
    result = task.scored(request)
    is_whole = task.grid.whole_split
    loss, num_scored = compute_loss(), len(result.sources) if is_whole else pairs.num_pairs_read
    if not is_whole or len(pairs) < pairs.num_pairs_read:
        loss = loss._replace(sentence_nll=None, sentence_tokens=None)
    return Evaluation(split, loss, *result, num_scored, time.monotonic() - start_time)


def score_record(
    translator: Translator,
    corpus: Corpus,
    evaluation: Evaluation,
    *,
    seed: int | None = None,
    decoding: DecodingConfig | None = None,
) -> Record:
    """Return the record of an evaluation for `scores.jsonl`.

    The record contains the scores, the decoding settings, the UTC date, hardware and software.

    Args:
      seed: the sampling seed to record; None records no seed.
      decoding: None if nothing was decoded.
    """
    settings = {} if decoding is None else dataclasses.asdict(decoding)
    figures = evaluation.summary()
    averages = {"ema_decays": list(translator.ema_decays)} if translator.ema_decays else {}
    return {
        "corpus": corpus.name,
        **({} if corpus.task == "auto" else {"task": corpus.task}),
        "test_set": name_of_test_set(corpus.name, evaluation.split, figures["num_sentences"]),
        **figures,
        "checkpoints": list(translator.steps),
        **averages,
        "decoding": settings if seed is None else {"seed": seed, **settings},
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "hardware": hardware_name(jax.local_devices()),
        "provenance": without_files(provenance(translator.config)),
    }


def prepare_evaluation(
    config: Config,
    corpus: Corpus,
    vocabulary: Vocabulary,
    split: str,
    *,
    longest: float | None = None,
) -> Examples:
    """Return the pairs of a split, and refuse a split without pairs or known labels.

    Args:
      longest: the maximum sentence length in tokens; None is the limit of the config's model.
    """
    if longest is None:
        longest = config.model.longest_sentence
    task = task_of(corpus.name, corpus.task)
    pairs = task.examples(config, corpus, vocabulary, split, longest)
    if not len(pairs):
        raise UserError(f"the {split} split of {corpus.name} has no pairs; add some, or remove it")
    if not len(pairs.target_tokens):
        raise UserError(
            f"the {split} split of {corpus.name} has no label that its train split has, so there "
            "is nothing to score; check its labels, or remove it"
        )
    return pairs


def corpus_loss(translator: Translator, pairs: Examples) -> CorpusLoss:
    """Compute the losses over all pairs of a split, in the order of `pairs`.

    The losses of an ensemble use the mean of its models' distributions.
    """
    smoothing = translator.config.training.label_smoothing
    program = partial(eval_step, translator.model, smoothing, translator.params)
    totals, by_example = np.zeros(3), np.zeros((2, len(pairs)))
    for placement, targets, (sums, losses) in computed_batches(translator, pairs, program):
        totals += sums
        by_example[:, placement.examples] = _sums_by_example(placement, targets.segments, losses)
    smoothed, nll, tokens = totals.tolist()
    sentence_nll, sentence_tokens = by_example[0], by_example[1].astype(np.int64)
    return CorpusLoss(smoothed / tokens, nll / tokens, int(tokens), sentence_nll, sentence_tokens)


def computed_batches(
    translator: Translator, examples: Examples, program: Callable[[Batch], _Out]
) -> Iterator[tuple[Placement, Sequence, _Out]]:
    """Run a program on each batch, and yield its placement of examples, its targets and the result.

    Args:
      program: a function of a batch on the devices, `[passes, rows_per_pass, length]`.
    """
    batches = Batches(examples, translator.config.data, seed=0)
    mesh = mesh_of(translator.params)
    tokens_per_device = translator.config.parallel.pass_tokens

    def launch(step: int) -> tuple[Placement, Sequence, _Out]:
        rows, *lengths = batches.shape(step)
        layout = batch_layout(mesh, rows, max(lengths), tokens_per_device)
        # Each process needs the targets of all rows to assign results to examples.
        full_batch = batches(step, np.arange(layout.passes * layout.rows_per_pass))
        local_batch: Batch = jax.tree.map(itemgetter(layout.local_rows()), full_batch)
        return batches.placement(step), full_batch.targets, program(layout.put(local_batch))

    for placement, targets, result in prefetch_one(map(launch, range(batches.steps_per_epoch))):
        safe_point()
        yield placement, targets, on_host(result)


def _sums_by_example(
    placement: Placement,
    segments: Int32[np.ndarray, "rows t"],
    losses: Float32[np.ndarray, "passes rows_per_pass t"],
) -> Float64[np.ndarray, "2 n"]:
    """Return the sum of the losses and the number of targets of each example in a batch."""
    num_segments = int(placement.segments.max()) + 1
    # Packed rows have several examples, one segment each; segment 0 is padding.
    bins = (np.arange(len(segments))[:, None] * num_segments + segments).ravel()
    num_bins = len(segments) * num_segments
    sums = np.bincount(bins, losses.ravel(), num_bins), np.bincount(bins, minlength=num_bins)
    return np.stack(sums)[:, placement.rows * num_segments + placement.segments]
