"""The common part of the tasks whose models read a sentence and write another."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial

from t2t_jax.config import Config
from t2t_jax.data import tokenized
from t2t_jax.data.corpus import Corpus
from t2t_jax.data.rows import Examples
from t2t_jax.data.tokenized import TrainText
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.decoding.long_lines import check_one_pass, longest_source, too_long
from t2t_jax.tasks.task import Scored, Scoring, Task


class TextToText(Task):
    """The part of a `Task` that is common to translation and parsing."""

    inputs = "sentences"
    unit = "subword"
    searches = True

    def training_examples(self, config: Config, corpus: Corpus, vocabulary: Vocabulary) -> Examples:
        """Return the pairs of train, without those that are too long."""
        pairs = tokenized.prepare_pairs(config.data, corpus, vocabulary, "train")
        return _examples(config, pairs)

    def train_text(self, config: Config, vocabulary: Vocabulary) -> TrainText:
        """Return how pairs of lines become examples; see `Task.train_text`."""
        most = config.data.max_length
        joined = config.training.source_loss and "joined"  # "True" had too few classes of rows
        return TrainText(
            partial(tokenized.tokenize, vocabulary=vocabulary, max_length=most),
            partial(_examples, config),
            ("pairs", most, joined),
        )

    def examples(
        self, config: Config, corpus: Corpus, vocabulary: Vocabulary, split: str, longest: float
    ) -> Examples:
        """Return the pairs of a split, all of which the model can translate and score."""
        pairs = tokenized.prepare_pairs(config.data, corpus, vocabulary, split)
        if not len(pairs):
            return pairs
        for side, lengths in (("source", pairs.source_lengths), ("target", pairs.target_lengths)):
            line, length = int(lengths.argmax()) + 1, int(lengths.max())
            name = f"{side} line {line} in the {split} split of {corpus.name}"
            check_one_pass(name, length, longest)
            refused = side == "source" and config.decoding.long_lines == "refuse"
            if refused and length > longest_source(config.decoding, longest):
                raise too_long(name, length, config.decoding, longest)
        return pairs

    def scored(self, asked: Scoring) -> Scored:
        """Let a model answer the sources of a split, and score its outputs."""
        sources, targets = asked.lines
        outputs = asked.translator.translate(sources, seed=asked.seed, decoding=asked.decoding)
        language = asked.translator.config.data.target_language
        return self.score_outputs(sources, outputs, targets, language)

    def as_source(self, line: str) -> str:
        """Return a line of input as the model reads it."""
        return line

    def answer(self, source: str, output: str) -> tuple[str, bool]:
        """Return a model's output as a user reads it, and whether it had to be repaired."""
        return output, False

    @abstractmethod
    def score_outputs(
        self, sources: Sequence[str], outputs: Sequence[str], targets: Sequence[str], language: str
    ) -> Scored:
        """Score a model's outputs for the sentences of a split.

        Args:
          language: the code of the language of outputs and targets.
        """


def _examples(config: Config, pairs: Examples) -> Examples:
    """Return the pairs as a model is trained on them, which predicts sources too or not."""
    return tokenized.after_first_tokens(pairs) if config.training.source_loss else pairs
