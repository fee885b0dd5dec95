"""The attention weights of all heads of a model for a sentence and its translation."""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from jaxtyping import Array, Float, Float32, Int

from t2t_jax.batch import Batch
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.decoding.arguments import text
from t2t_jax.decoding.forbidden import spelt_by
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError
from t2t_jax.modules.decoding_model import ScoringModel
from t2t_jax.modules.ensemble import Ensemble
from t2t_jax.modules.interceptors import InterceptedJit
from t2t_jax.modules.parameters import Parameters
from t2t_jax.parallel.mesh import on_host

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LONGEST = 2048  # subwords; the weights grow with the square of their number


class AttentionMaps(NamedTuple):
    """The attention weights of every layer and head (section 3.2); each row sums to one."""

    source: list[str]
    """The s subwords of the source, with the end of sentence."""
    target: list[str]
    """The t subwords of the translation, with the end of sentence."""
    encoder: Float32[np.ndarray, "n h s s"]
    """The weights between the source's subwords."""
    decoder: Float32[np.ndarray, "n h t t"]
    """Row i has the weights of the subwords before subword i of the translation in the prediction
    of i: column 0 is the start of the sentence, column j is subword j - 1."""
    cross: Float32[np.ndarray, "n h t s"]
    """Row i has the weights of the source's subwords in the prediction of subword i."""
    source_words: list[int]
    """The number of the word that each subword of the source belongs to, from 0; -1 for the end of
    sentence."""
    target_words: list[int]
    """The same numbers for the translation."""

    def plot(self, attention: Literal["encoder", "decoder", "cross"] = "cross") -> "Figure":
        """Draw the weights of an attention, with a panel for each layer and head.

        A notebook shows the picture; `.savefig("attention.png")` writes it into a file.

        Raises:
          UserError: matplotlib is not installed.
        """
        from t2t_jax.decoding.attention_picture import heads

        return heads(self, attention)


def attention_maps(translator: Translator, source: str, target: str | None = None) -> AttentionMaps:
    """Compute the attention weights of a model that translates `source` into `target`.

    Args:
      translator: the model.
      source: a sentence.
      target: the translation of `source`; None is the model's own.

    Raises:
      TypeError: an argument is of the wrong type.
      UserError: the model does not translate, or is an ensemble, whose members each have weights of
        their own, or a sentence is too long: the weights grow with the square of its length.
    """
    translator.check_translates()
    source = text(source, "source")
    if target is not None:
        target = text(target, "target")
    if isinstance(translator.model, Ensemble):
        raise UserError("an ensemble has no attention of its own; load one of its models")
    limit = min(_LONGEST, translator.longest_sentence)
    [source_ids] = translator.encode([source])
    _check_length("source", source_ids, limit)
    if target is None:
        [target] = translator.translate([source])
    [target_ids] = translator.encode_targets([target])
    _check_length("target", target_ids, limit)
    weights = weights_of(translator, Batch.of([source_ids], [target_ids]))
    [of_source] = translator.vocabulary.pieces([source_ids])
    [of_target] = translator.vocabulary.target_pieces([target_ids])
    return AttentionMaps(
        of_source,
        of_target,
        **{name: of_all[:, 0] for name, of_all in weights.items()},
        source_words=words_of(source_ids, translator.vocabulary, of_source=True),
        target_words=words_of(target_ids, translator.vocabulary),
    )


def words_of(
    tokens: Sequence[int], vocabulary: Vocabulary, *, of_source: bool = False
) -> list[int]:
    """Return the number of each subword's word, counted from 0; -1 for an end of sentence.

    A subword that is nothing but a space belongs to the word after it, and one with letters of
    several words to the first.

    Args:
      of_source: whether the ids are those of a source, which may differ from those of targets.
    """
    shapes = _shapes(vocabulary.speller, of_source)[np.asarray(tokens, np.int64)]
    words, begins, ends, special = shapes.T
    after_space = np.append(True, ends[:-1] > 0)
    goes_on = (words > 0) & (begins == 0) & ~after_space
    so_far = np.cumsum(words - goes_on)
    numbers = np.where(special, -1, np.minimum(so_far - words, so_far[-1] - 1))
    return numbers.tolist()


@lru_cache(maxsize=4)
def _shapes(vocabulary: Vocabulary, of_source: bool) -> Int[np.ndarray, "v 4"]:
    """Return each id's number of words, and if its text begins or ends with a space or is empty."""
    texts_of_ids = spelt_by(vocabulary)
    if of_source:
        texts_of_ids = [*map(vocabulary.source_spelling, range(vocabulary.source_size))]
        # The unknown token stands for letters of a source, which have no spaces around them.
        unknown = vocabulary.unk_id
        texts_of_ids[unknown] = texts_of_ids[unknown].strip()
    rows = [
        (len(text.split()), text[:1].isspace(), text[-1:].isspace(), not text)
        for text in texts_of_ids
    ]
    return np.asarray(rows, np.int64)


def _check_length(name: str, tokens: list[int], limit: float) -> None:
    if len(tokens) > limit:
        raise UserError(
            f"{name} has {len(tokens)} subwords, and attention maps are made of at most {limit}; "
            "give a part of it"
        )


def weights_of(translator: Translator, batch: Batch) -> dict[str, Float[np.ndarray, "n b h _ _"]]:
    """Return the attention weights of a model for a batch, by the name of the attention."""
    return on_host(_weights(translator.model, translator.params, batch))


@partial(InterceptedJit, static_argnums=0)
def _weights(
    model: ScoringModel, params: Parameters, batch: Batch
) -> dict[str, Float[Array, "n b h _ _"]]:
    return model.attention_weights(params, batch)
