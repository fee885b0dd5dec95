"""Image classification, which predicts one label for each image."""

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

import numpy as np

from t2t_jax.config import Config, ImageEncoderConfig
from t2t_jax.data.corpus import Corpus
from t2t_jax.data.images import LabelledImages, checked_image
from t2t_jax.data.layout import batch_shape, ladder_length
from t2t_jax.data.rows import BatchShape
from t2t_jax.data.vocabularies.labelled import LabelledVocabulary, labelled_vocabulary
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.tasks.labelling import Labelling, labels_in, nothing_to_score


class ImageClassification(Labelling):
    """The task of images with one label each; see `data.images`."""

    model = "a classifier of images"
    inputs = what = "images"

    def largest_shape(self, config: Config) -> BatchShape:
        """Return the shape for images of one size, with a label each; see `Task.largest_shape`."""
        length = config.model.num_positions
        rung = ladder_length(length)
        shape = batch_shape(config.data, rung, rung)
        return shape._replace(source_length=length, target_length=1)

    def vocabulary(
        self, config: Config, corpus: Corpus, given: Vocabulary | None = None
    ) -> Vocabulary:
        """Make a vocabulary of the labels of train; see `Task.vocabulary`."""
        return labelled_vocabulary(None, labels_in(corpus, self.labels_of))

    def training_examples(
        self, config: Config, corpus: Corpus, vocabulary: Vocabulary
    ) -> LabelledImages:
        """Return the images of train."""
        return self._images(config, vocabulary, *corpus.lines("train"), count(1))

    def examples(
        self, config: Config, corpus: Corpus, vocabulary: Vocabulary, split: str, longest: float
    ) -> LabelledImages:
        """Return the images of a split whose labels occur in train.

        Raises:
          UserError: there is no such split, or none of its labels occurs in train.
        """
        images, labels = corpus.lines(split)
        assert isinstance(vocabulary, LabelledVocabulary)
        known = [n for n, label in enumerate(labels) if label in vocabulary.labels]
        if labels and not known:
            raise nothing_to_score(corpus, split)
        chosen = [images[n] for n in known], [labels[n] for n in known]
        return self._images(config, vocabulary, *chosen, [n + 1 for n in known])

    def unlabelled(
        self,
        config: Config,
        vocabulary: LabelledVocabulary,
        inputs: Sequence[Any],
        numbers: Iterable[int],
    ) -> LabelledImages:
        """Return examples for arrays `[height, width, channels]` or `[height, width]`."""
        labels = vocabulary.labels[:1] * len(inputs)
        return self._images(config, vocabulary, inputs, labels, numbers)

    def _images(
        self,
        config: Config,
        vocabulary: Vocabulary,
        images: Sequence[Any],
        labels: Sequence[str],
        numbers: Iterable[int],
    ) -> LabelledImages:
        assert isinstance(vocabulary, LabelledVocabulary)
        model = config.model
        assert isinstance(model, ImageEncoderConfig)
        arrays = [
            checked_image(image, model, f"image {n}")
            for n, image in zip(numbers, images, strict=False)
        ]
        sides = model.image_size, model.image_size, model.image_channels
        stacked = np.stack(arrays) if arrays else np.zeros((0, *sides), np.uint8)
        places = {label: place for place, label in enumerate(vocabulary.labels)}
        known = np.array([places[label] for label in labels], np.int32)
        return LabelledImages(stacked, known, model.patch_size)


TASK = ImageClassification()
"""The task of classifying images."""
