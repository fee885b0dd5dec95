"""The base class of tasks whose models read one sentence and write another sentence."""

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
    """The base class of the translation and parsing tasks."""

    inputs = "sentences"
    unit = "subword"
    searches = True

    def training_examples(self, config: Config, corpus: Corpus, vocabulary: Vocabulary) -> Examples:
        """Return the pairs of the train split, without pairs that are too long."""
        pairs = tokenized.prepare_pairs(config.data, corpus, vocabulary, "train")
        return _examples(config, pairs)

    def train_text(self, config: Config, vocabulary: Vocabulary) -> TrainText:
        """Return the rules that tokenize a train split in shards."""
        max_length = config.data.max_length
        # Not True, the key of older caches, which lack classes of rows.
        joined = config.training.source_loss and "joined"
        return TrainText(
            partial(tokenized.tokenize, vocabulary=vocabulary, max_length=max_length),
            partial(_examples, config),
            ("pairs", max_length, joined),
        )

    def examples(
        self, config: Config, corpus: Corpus, vocabulary: Vocabulary, split: str, longest: float
    ) -> Examples:
        """Return all pairs of a split; refuse pairs that are too long for the model."""
        pairs = tokenized.prepare_pairs(config.data, corpus, vocabulary, split)
        if not len(pairs):
            return pairs
        for side, lengths in (("source", pairs.source_lengths), ("target", pairs.target_lengths)):
            line_number, longest_length = int(lengths.argmax()) + 1, int(lengths.max())
            name = f"{side} line {line_number} in the {split} split of {corpus.name}"
            check_one_pass(name, longest_length, longest)
            is_refused = side == "source" and config.decoding.long_lines == "refuse"
            if is_refused and longest_length > longest_source(config.decoding, longest):
                raise too_long(name, longest_length, config.decoding, longest)
        return pairs

    def scored(self, request: Scoring) -> Scored:
        """Decode the sources of a split, and score the outputs."""
        sources, targets = request.lines
        translator = request.translator
        outputs = translator.translate(sources, seed=request.seed, decoding=request.decoding)
        return self.score_outputs(sources, outputs, targets, translator.config.data.target_language)

    def as_source(self, line: str) -> str:
        """Return the text that the model reads for a line of user input."""
        return line

    def answer(self, source: str, output: str) -> tuple[str, bool]:
        """Return an output as users see it, and whether it needed a repair.

        Here: unchanged, and False; parsing repairs trees.
        """
        return output, False

    @abstractmethod
    def score_outputs(
        self, sources: Sequence[str], outputs: Sequence[str], targets: Sequence[str], language: str
    ) -> Scored:
        """Score model outputs for the sentences of a split.

        Args:
          language: the language code of outputs and targets.
        """


def _examples(config: Config, pairs: Examples) -> Examples:
    # With `training.source_loss`, the model also predicts the source tokens.
    return tokenized.after_first_tokens(pairs) if config.training.source_loss else pairs
