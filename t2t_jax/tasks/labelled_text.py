"""The common part of the tasks whose models label text."""

import dataclasses
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from t2t_jax.batch import BOS_ID, EOS_ID
from t2t_jax.config import Config
from t2t_jax.data.corpus import Corpus
from t2t_jax.data.labelled import Labelled, LabelledText, flat
from t2t_jax.data.splits import Chunk, Split, digest
from t2t_jax.data.tokenized import TokenizedSplit, kept, prepare_vocabulary
from t2t_jax.data.vocabularies.labelled import LabelledVocabulary, labelled_vocabulary
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.decoding.long_lines import check_one_pass
from t2t_jax.errors import UserError
from t2t_jax.tasks.labelling import Labelling, labels_in, nothing_to_score

_FORMAT_VERSION = 1
"""Raised whenever the same text would become other arrays."""


class LabellingOfText(Labelling):
    """The part of a `Task` that is common to labels of sentences and of words."""

    @abstractmethod
    def positions(self, words: Sequence[Sequence[int]]) -> Iterator[int]:
        """Return the positions from which a sentence's labels are predicted; `<s>` is at 0.

        Args:
          words: the ids of each word's subwords.
        """

    def vocabulary(
        self, config: Config, corpus: Corpus, given: Vocabulary | None = None
    ) -> Vocabulary:
        """Make a vocabulary of the labels and the sentences of train; see `Task.vocabulary`."""
        if isinstance(given, LabelledVocabulary):
            given = given.source
        source = prepare_vocabulary(config.data, _sentences(corpus)) if given is None else given
        return labelled_vocabulary(source, labels_in(corpus, self.labels_of))

    def training_examples(
        self, config: Config, corpus: Corpus, vocabulary: Vocabulary
    ) -> LabelledText:
        """Return the sentences of train, without those that are blank or too long."""
        return self._examples(config, corpus, vocabulary, "train", config.data.max_length)

    def examples(
        self, config: Config, corpus: Corpus, vocabulary: Vocabulary, split: str, longest: float
    ) -> LabelledText:
        """Return the sentences of a split.

        Raises:
          UserError: there is no such split, a sentence has more subwords than the model has
            positions, or no label of the split is known.
        """
        found = self._examples(config, corpus, vocabulary, split, None)
        if len(found):
            if not len(found.target_tokens):
                raise nothing_to_score(corpus, split)
            line, length = int(found.source_lengths.argmax()) + 1, int(found.source_lengths.max())
            check_one_pass(f"line {line} in the {split} split of {corpus.name}", length, longest)
        return found

    def unlabelled(
        self,
        config: Config,
        vocabulary: LabelledVocabulary,
        inputs: Sequence[str],
        numbers: Iterable[int],
    ) -> LabelledText:
        """Return examples for sentences without labels; see `Labelling.unlabelled`."""
        found = []
        for number, words in zip(numbers, _words(vocabulary, inputs), strict=False):
            tokens = _tokens(words)
            check_one_pass(f"line {number}", len(tokens), config.model.longest_sentence)
            at = list(self.positions(words))
            found.append(Labelled(tokens, at, [0] * len(at)))
        return LabelledText(flat(found, len(vocabulary), {}, len(found)), len(vocabulary))

    def _examples(
        self,
        config: Config,
        corpus: Corpus,
        vocabulary: Vocabulary,
        split: str,
        max_length: int | None,
    ) -> LabelledText:
        assert isinstance(vocabulary, LabelledVocabulary)
        of_text = corpus.fingerprint(split), vocabulary.fingerprint
        key = _FORMAT_VERSION, corpus.task, *of_text, str(max_length)

        def make() -> TokenizedSplit:
            sentences = list(self._labelled(corpus, vocabulary, split))
            skipped = {"empty_source": 0, "too_long": 0}
            used = []
            for one in sentences:
                if max_length is not None and not one.positions:
                    skipped["empty_source"] += 1
                elif max_length is not None and len(one.tokens) > max_length:
                    skipped["too_long"] += 1
                else:
                    used.append(one)
            return flat(used, len(vocabulary), skipped, len(sentences))

        return LabelledText(kept(config.data, key, make), len(vocabulary))

    def _labelled(
        self, corpus: Corpus, vocabulary: LabelledVocabulary, split: str
    ) -> Iterator[Labelled]:
        """Yield the sentences of a split, with their labels and the positions that predict them.

        Raises:
          UserError: a line has too many labels, or too few.
        """
        numbers = {label: number for number, label in enumerate(vocabulary.labels)}
        line = 0
        for sources, targets in corpus.pairs(split):
            for words, target in zip(_words(vocabulary, sources), targets, strict=True):
                line += 1
                at = list(self.positions(words))
                labels = self.labels_of(target) if at else []
                if len(labels) != len(at):
                    raise UserError(
                        f"line {line} in the {split} split of {corpus.name} needs {len(at)} "
                        f"label(s) and has {len(labels)}; give one for each of the {self.what}"
                    )
                known = [numbers.get(label, -1) for label in labels]
                yield Labelled(_tokens(words), at, known)


def _tokens(words: Sequence[Sequence[int]]) -> list[int]:
    return [BOS_ID, *chain.from_iterable(words), EOS_ID]


def _words(vocabulary: Vocabulary, lines: Sequence[str]) -> Iterator[list[list[int]]]:
    """Yield for each line the ids of the subwords of each word, which has at least one."""
    split = [line.split() for line in lines]
    different = sorted(set(chain.from_iterable(split)))
    encoded = (ids[:-1] or [vocabulary.unk_id] for ids in vocabulary.encode(different))
    known = dict(zip(different, encoded, strict=True))
    return ([known[word] for word in words] for words in split)


def _sentences(corpus: Corpus) -> Corpus:
    """Return the corpus without its labels, so that a vocabulary can be learned from it."""

    def alone(part: Split) -> Split:
        def read() -> Iterator[Chunk]:
            return (([""] * len(lines), lines) for lines, _ in part.read())

        return Split(lambda: digest("sentences", part.fingerprint()), read)

    train = {"train": alone(corpus.parts["train"])} if "train" in corpus.parts else {}
    return dataclasses.replace(corpus, parts={**corpus.parts, **train}, mixed=())
