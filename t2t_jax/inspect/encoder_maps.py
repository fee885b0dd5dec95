"""The attention weights of an encoder-only model for a sentence or an image."""

from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32

from t2t_jax.batch import BOS_ID
from t2t_jax.config import ImageEncoderConfig
from t2t_jax.data.batching import Batches
from t2t_jax.data.labelled import Labelled, LabelledText, flat
from t2t_jax.data.masking import mask_id, with_masks
from t2t_jax.data.rows import Examples
from t2t_jax.decoding.long_lines import check_one_pass
from t2t_jax.decoding.predictions import predictions
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError
from t2t_jax.inspect.attention_maps import weights_of
from t2t_jax.tasks import task_of
from t2t_jax.tasks.labelling import Labelling


class EncoderMaps(NamedTuple):
    """The attention weights of an encoder-only model on one sentence or image."""

    units: list[str]
    """The name of each position: a subword, or a patch of an image."""
    labels: dict[int, str]
    """The predicted label and its probability as text, by the position it is predicted at."""
    encoder: Float32[np.ndarray, "layers heads s s"]
    """The weights of all positions (last axis) for each position; each row sums to one."""


def encoder_maps(translator: Translator, given: Any) -> EncoderMaps:
    """Compute the attention weights of an encoder-only model.

    Args:
      translator: the model.
      given: a sentence, or an image as an array of `uint8`.

    Raises:
      UserError: the sentence is blank or too long, or the model does not read such an input.
    """
    if isinstance(given, str) and not given.strip():
        raise UserError("the text is blank; give a sentence")
    examples = examples_of(translator, [given])
    [found] = predictions(translator, examples)
    batch = Batches(examples, translator.config.data, seed=0)(0, np.array([0]))
    weights = weights_of(translator, batch)["encoder"]
    length = int((batch.inputs.segments[0] != 0).sum())
    model = translator.config.model
    if isinstance(model, ImageEncoderConfig):
        side = model.image_size // model.patch_size
        patches = (f"patch {n // side + 1}, {n % side + 1}" for n in range(side * side))
        units = ["class token", *patches]
    else:
        [units] = translator.vocabulary.pieces([batch.inputs.tokens[0, :length].tolist()])
    [names] = translator.vocabulary.target_pieces([found.labels.tolist()])
    known = batch.targets.segments[0] != 0
    places = batch.targets.positions[0][known].tolist()
    shares = found.probabilities.tolist()
    labels = {
        place: f"{name} {share:.2f}"
        for place, name, share in zip(places, names, shares, strict=True)
    }
    return EncoderMaps(units, labels, np.asarray(weights, np.float32)[:, 0, :, :length, :length])


def examples_of(translator: Translator, given: Sequence[Any], first: int = 1) -> Examples:
    """Return the examples of an encoder-only model for sentences or images without labels.

    Args:
      translator: the model.
      given: sentences, or images as arrays of `uint8`.
      first: number of the first of them, by which errors name them.

    Raises:
      UserError: a sentence is too long, or the model does not read such inputs.
    """
    config = translator.config
    is_text = all(isinstance(one, str) for one in given)
    vocabulary: Any = translator.vocabulary
    task: Any = task_of(config.data.corpus, config.data.task)
    if isinstance(task, Labelling):
        if is_text == isinstance(config.model, ImageEncoderConfig):
            raise UserError(f"the model reads {'text' if not is_text else 'images'}; give one")
        return task.unlabelled(config, vocabulary, given, count(first))
    if not is_text:
        raise UserError("the model reads text; give a sentence")
    mask, sentences = mask_id(vocabulary), []
    for number, ids in enumerate(translator.encode(given), first):
        tokens = [BOS_ID, *with_masks(vocabulary, mask, ids)]
        check_one_pass(f"line {number}", len(tokens), translator.longest_sentence)
        hidden = [n for n, token in enumerate(tokens) if token == mask]
        at = hidden or list(range(1, len(tokens) - 1))  # without masks, predict every subword
        sentences.append(Labelled(tokens, at, [0] * len(at)))
    return LabelledText(flat(sentences, len(vocabulary), {}, len(sentences)), len(vocabulary))
