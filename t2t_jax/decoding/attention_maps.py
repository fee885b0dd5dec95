"""Compute the attention weights of all heads of a model for a sentence and its translation."""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from jaxtyping import Array, Float, Float32

from t2t_jax.batch import Batch
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.decoding.arguments import text
from t2t_jax.decoding.forbidden import spelt_by
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError, did_you_mean
from t2t_jax.modules.decoding_model import ScoringModel
from t2t_jax.modules.ensemble import Ensemble
from t2t_jax.modules.interceptors import InterceptedJit
from t2t_jax.modules.parameters import Parameters
from t2t_jax.parallel.mesh import on_host

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_SUBWORDS_OF_A_PICTURE = 100  # larger panels would be thousands of pixels wide
_LONGEST = 2048  # subwords; memory grows with the square of this number


class AttentionMaps(NamedTuple):
    """The attention weights of every layer and head (section 3.2); each matrix row sums to one."""

    source: list[str]
    """The s subwords of the source, including the end-of-sentence token."""
    target: list[str]
    """The t subwords of the translation, including the end-of-sentence token."""
    encoder: Float32[np.ndarray, "n h s s"]
    """The self-attention weights of the encoder."""
    decoder: Float32[np.ndarray, "n h t t"]
    """The self-attention weights of the decoder. Row i predicts target subword i. Column 0 is the
    beginning-of-sentence token, column j is target subword j - 1."""
    cross: Float32[np.ndarray, "n h t s"]
    """Cross-attention weights. Row i predicts target subword i; column j is source subword j."""
    source_words: list[int]
    """The word index of each source subword, from 0; -1 for the end-of-sentence token."""
    target_words: list[int]
    """The word index of each target subword, like `source_words`."""

    def plot(self, attention: Literal["encoder", "decoder", "cross"] = "cross") -> "Figure":
        """Plot the attention weights, with a panel for each layer and head.

        A notebook shows the figure; `.savefig("attention.png")` writes it to a file.

        Raises:
          UserError: matplotlib is not installed.
        """
        from t2t_jax.system.drawing import MAP, Picture

        axis_labels = {
            "encoder": (self.source, self.source),
            "decoder": (self.target, ["<s>", *self.target[:-1]]),
            "cross": (self.target, self.source),
        }
        if attention not in axis_labels:
            choices = f"there are {', '.join(axis_labels)}"
            advice = did_you_mean(attention, axis_labels, choices)
            raise UserError(f"there is no attention {attention!r}; {advice}")
        queries, keys = axis_labels[attention]
        if max(len(queries), len(keys)) > _MOST_SUBWORDS_OF_A_PICTURE:
            raise UserError(
                f"a picture of {len(queries)} x {len(keys)} subwords is too large to read; the "
                f"limit is {_MOST_SUBWORDS_OF_A_PICTURE} subwords on each axis"
            )
        weights = getattr(self, attention)  # [layers, heads, queries, keys]
        rows, columns = weights.shape[:2]
        size = columns * (0.8 + 0.16 * len(keys)), 1 + rows * (0.4 + 0.16 * len(queries))
        figure = Picture(figsize=size, layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for (layer, head), axes in zip(np.ndindex(rows, columns), panels.flat, strict=True):
            image = axes.imshow(weights[layer, head], cmap=MAP, vmin=0, vmax=1)
            axes.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=9)
        # Panels share their axes, and drawing thousands of hidden labels takes seconds.
        for axes in panels[-1]:
            axes.set_xticks(range(len(keys)), keys, rotation=90, fontsize=8, parse_math=False)
        for axes in panels[:, 0]:
            axes.set_yticks(range(len(queries)), queries, fontsize=8, parse_math=False)
        figure.colorbar(image, ax=panels, label=f"{attention} attention; each row sums to 1")
        return figure


def attention_maps(translator: Translator, source: str, target: str | None = None) -> AttentionMaps:
    """Compute the attention weights of a model that translates `source` into `target`.

    Args:
      translator: the model; an ensemble is refused, because each member has different attention.
      source: a sentence.
      target: the translation of `source`; None uses the model's translation.

    Raises:
      TypeError: an argument has the wrong type.
      UserError: the model does not translate or is an ensemble, or a sentence is too long.
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
    weights = weights_of(translator, Batch.of([source_ids], [target_ids]))  # [n, 1, h, q, k]
    [source_pieces] = translator.vocabulary.pieces([source_ids])
    [target_pieces] = translator.vocabulary.target_pieces([target_ids])
    return AttentionMaps(
        source_pieces,
        target_pieces,
        **{name: array[:, 0] for name, array in weights.items()},
        source_words=words_of(source_ids, translator.vocabulary, of_source=True),
        target_words=words_of(target_ids, translator.vocabulary),
    )


def words_of(
    tokens: Sequence[int], vocabulary: Vocabulary, *, of_source: bool = False
) -> list[int]:
    """Compute the word index of each subword, from 0; -1 for an end-of-sentence token.

    A subword that is only a space belongs to the next word. A subword that spans several words
    belongs to the first of these words.

    Args:
      of_source: whether the ids are source ids; a vocabulary may use other ids for targets.
    """
    spellings = _spellings(vocabulary.speller, of_source)
    indices, num_words, after_space = [], 0, True
    for spelling in [spellings[token] for token in tokens]:
        words = len(spelling.split())
        begins_word = after_space or spelling[:1].isspace()
        num_words += words if begins_word else max(0, words - 1)
        indices.append(num_words - words if spelling else -1)
        after_space = spelling[-1:].isspace()
    return [min(index, num_words - 1) for index in indices]


@lru_cache(maxsize=4)
def _spellings(vocabulary: Vocabulary, of_source: bool) -> Sequence[bytes]:
    """Return the text of each vocabulary id (source id if `of_source`)."""
    if not of_source:
        return spelt_by(vocabulary)
    texts_of_ids = [*map(vocabulary.source_spelling, range(vocabulary.source_size))]
    # The unknown token replaces letters of the source, never the spaces around them.
    texts_of_ids[vocabulary.unk_id] = texts_of_ids[vocabulary.unk_id].strip()
    return texts_of_ids


def _check_length(name: str, tokens: list[int], limit: float) -> None:
    if len(tokens) > limit:
        raise UserError(
            f"{name} has {len(tokens)} subwords, but attention maps allow at most {limit}; "
            "shorten the sentence"
        )


def weights_of(translator: Translator, batch: Batch) -> dict[str, Float[np.ndarray, "n b h _ _"]]:
    """Compute the attention weights for a batch, keyed by encoder, decoder or cross."""
    return on_host(_weights(translator.model, translator.params, batch))


@partial(InterceptedJit, static_argnums=0)
def _weights(
    model: ScoringModel, params: Parameters, batch: Batch
) -> dict[str, Float[Array, "n b h _ _"]]:
    return model.attention_weights(params, batch)
