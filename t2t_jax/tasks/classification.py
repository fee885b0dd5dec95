"""Classification: a label of a sentence as a whole."""

from collections.abc import Iterator, Sequence

from t2t_jax.config import Config
from t2t_jax.data.rows import BatchShape
from t2t_jax.tasks.labelled_text import LabellingOfText
from t2t_jax.tasks.task import Task


class Classification(LabellingOfText):
    """Sentences, and a label for each: `train.txt` beside `train.label`."""

    model = "a classifier of sentences"
    what = "sentences"

    def largest_shape(self, config: Config) -> BatchShape:
        """Sentences, and one label of each; see `Task.largest_shape`."""
        return super().largest_shape(config)._replace(target_length=1)

    def positions(self, words: Sequence[Sequence[int]]) -> Iterator[int]:
        """The begin of the sentence, unless it is blank."""
        return iter([0] if words else [])


TASK: Task = Classification()
"""The task of sentences with labels."""
