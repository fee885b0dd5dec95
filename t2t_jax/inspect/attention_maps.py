"""The attention weights of all heads of a model for a sentence and its translation."""

from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float32, Int32

from t2t_jax.batch import Batch, one_a_row
from t2t_jax.decoding.alignments import words_of
from t2t_jax.decoding.arguments import text
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError
from t2t_jax.modules.decoding_model import DecodingModel
from t2t_jax.modules.matrices import Parameters
from t2t_jax.parallel.mesh import on_host

_LONGEST = 2048  # subwords; the weights grow with the square of their number


class AttentionMaps(NamedTuple):
    """The attention weights of every layer and head (section 3.2); each row sums to one.

    Attributes:
      source: the s subwords of the source, with the end of sentence.
      target: the t subwords of the translation, with the end of sentence.
      encoder: the weights between the source's subwords.
      decoder: row i has the weights of the subwords before subword i of the translation in the
        prediction of i: column 0 is the start of the sentence, column j is subword j - 1.
      cross: row i has the weights of the source's subwords in the prediction of subword i.
      source_words: the number of the word that each subword of the source belongs to, from 0; -1
        for the end of sentence.
      target_words: the same numbers for the translation.
    """

    source: list[str]
    target: list[str]
    encoder: Float32[np.ndarray, "n h s s"]
    decoder: Float32[np.ndarray, "n h t t"]
    cross: Float32[np.ndarray, "n h t s"]
    source_words: list[int]
    target_words: list[int]


def attention_maps(translator: Translator, source: str, target: str | None = None) -> AttentionMaps:
    """Compute the attention weights of a model that translates `source` into `target`.

    Without a target, it is the model's own translation.

    Raises:
      TypeError: an argument is of the wrong type.
      UserError: the model does not translate, or is an ensemble, whose members each have weights of
        their own, or a sentence is too long: the weights grow with the square of its length.
    """
    translator.check_process()
    translator.check_translates()
    source = text(source, "source")
    if target is not None:
        target = text(target, "target")
    if not translator.model.shows_attention:
        raise UserError("an ensemble has no attention of its own; load one of its models")
    limit = min(_LONGEST, translator.longest_sentence)
    _check_length("source", translator.encode([source])[0], limit)
    if target is None:
        target = translator.translate([source])[0]
    ids = *translator.encode([source]), *translator.encode_targets([target])
    _check_length("target", ids[1], limit)
    inputs, targets = (np.asarray([tokens], np.int32) for tokens in ids)
    found = on_host(_weights(translator.model, translator.params, inputs, targets))
    weights = {name: of_all[:, 0] for name, of_all in found.items()}
    [of_source] = translator.vocabulary.pieces(ids[:1])
    [of_target] = translator.vocabulary.target_pieces(ids[1:])
    return AttentionMaps(
        of_source,
        of_target,
        **weights,
        source_words=words_of(ids[0], translator.vocabulary, of_source=True),
        target_words=words_of(ids[1], translator.vocabulary),
    )


def _check_length(name: str, tokens: list[int], limit: float) -> None:
    if len(tokens) > limit:
        raise UserError(
            f"{name} has {len(tokens)} subwords, and attention maps are made of at most {limit}; "
            "give a part of it"
        )


@partial(jax.jit, static_argnums=0)
def _weights(
    model: DecodingModel,
    params: Parameters,
    inputs: Int32[Array, "1 s"],
    targets: Int32[Array, "1 t"],
) -> dict[str, Float32[Array, "n 1 h _ _"]]:
    return model.attention_weights(params, Batch(one_a_row(inputs), one_a_row(targets)))
