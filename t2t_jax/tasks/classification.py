"""Classification, which predicts one label for each sentence."""

from collections.abc import Iterator, Sequence

from t2t_jax.config import Config
from t2t_jax.data.rows import BatchShape
from t2t_jax.tasks.labelled_text import LabellingOfText
from t2t_jax.tasks.task import Task


class Classification(LabellingOfText):
    """The task of sentences with one label each: `train.txt` beside `train.label`."""

    model = "a classifier of sentences"
    what = "sentences"

    def largest_shape(self, config: Config) -> BatchShape:
        """Return the shape for sentences with one label each; see `Task.largest_shape`."""
        return super().largest_shape(config)._replace(target_length=1)

    def positions(self, words: Sequence[Sequence[int]]) -> Iterator[int]:
        """Return the position of `<s>`, or none for a blank sentence."""
        return iter([0] if words else [])


TASK: Task = Classification()
"""The task of classifying sentences."""
