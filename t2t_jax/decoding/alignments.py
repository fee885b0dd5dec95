"""Links from each word of a translation to a word of its source, by the attention of one head.

Some heads of the attention over the source (section 3.2.3) learn to look at the words that the next
word translates, and others at those that the word before it has translated, which is the input of
the step (Chen et al. 2020, "Accurate Word Alignment Induction from Neural Machine Translation").
Agreement shows which heads do, and which of both: a link is agreed upon if the source word is the
one that the target word attends to most, and no other target word attends to it more.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Int32

from t2t_jax.batch import Batch, one_a_row, padded
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.decoding.arguments import texts
from t2t_jax.decoding.forbidden import spelt_by
from t2t_jax.decoding.scoring import batches, check_pairs
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError
from t2t_jax.modules.decoding_model import DecodingModel
from t2t_jax.modules.matrices import Parameters
from t2t_jax.parallel.mesh import on_host, one_ahead, put_rows, row_parts

Links: TypeAlias = Sequence[tuple[int, int]]
"""Pairs of a source word and a target word, both counted from 0."""

_LONGEST = 1024  # subwords; the weights grow with the square of their number
_WEIGHTS_PER_BATCH = 1 << 26  # float32, of all layers and heads: 256 MiB
_LINES_FOR_CHOICE = 10_000
_STEPS = 2
"""When a subword is predicted, and when it is the input."""


class AlignmentHead(NamedTuple):
    """A head of the decoder's attention over the source, and the step at which it is read."""

    layer: int
    """The layer of the decoder, counted from 0."""
    head: int
    """The head, counted from 0."""
    step: int = 0
    """0 for the weights when a subword is predicted, 1 for those in the step after that, whose
    input it is."""


class Alignments(NamedTuple):
    """The links between words of sources and targets."""

    links: list[Links]
    """The links of each pair, in the order of the target: one for each target word, or none if a
    side is blank or too long."""
    head: AlignmentHead
    """The head whose attention gave the links."""


class _Side(NamedTuple):
    """A source or a target with its words."""

    tokens: list[int]
    words: list[int]
    """The number of the word of each token; -1 for the end of sentence."""


class _Pairs(NamedTuple):
    """The arrays of some sources and targets, with the number of each token's word or -1."""

    sources: Int32[Array, "b s"]
    source_words: Int32[Array, "b s"]
    targets: Int32[Array, "b t"]
    target_words: Int32[Array, "b t"]


def alignments(
    translator: Translator,
    sources: Iterable[str],
    targets: Iterable[str],
    *,
    head: tuple[int, ...] | None = None,
    first_line: int = 1,
) -> Alignments:
    """Align the words of sources and translations, in one pass over each pair.

    Words are what spaces and tabs separate. A target word is linked to the source word that it
    attends to most: by the weights of the head when each of its subwords is predicted, or in the
    step after that, their mean over its subwords and their sum over those of the source word. An
    end of sentence is no word.

    Args:
      translator: the model.
      sources: sentences.
      targets: a translation of each.
      head: the fields of an `AlignmentHead`, of which the last may be left out. None chooses the
        head and the step with the greatest agreement on the first ten thousand pairs: the share of
        target words whose link is also the strongest of its source word, as a mean over pairs.
      first_line: number of the first line, by which errors name them.

    Returns:
      The links. A pair has none if one of its sides is blank, has more than 1,024 subwords, or has
      more subwords than the model has positions for.

    Raises:
      TypeError: an argument is of the wrong type.
      UserError: the model does not translate, there are more lines on one side, a line is no text,
        there is no such head, or the model is an ensemble, which has no attention of its own.
    """
    translator.check_process()
    translator.check_translates()
    if not translator.model.shows_attention:
        raise UserError("an ensemble has no attention of its own; load one of its models")
    sources, targets = texts(sources, "sources", first_line), texts(targets, "targets", first_line)
    check_pairs(sources, targets)
    chosen = None if head is None else _checked_head(translator, head)
    pairs = _pairs(translator, sources, targets)
    if chosen is None:
        chosen = _best_head(translator, pairs[:_LINES_FOR_CHOICE])
    found: list[Links] = [[] for _ in pairs]
    for line, (best,) in _passes(translator, pairs, partial(_links, head=chosen)):
        found[line] = _of_words(best, pairs[line])
    return Alignments(found, chosen)


class PairAligner:
    """An aligner of the words of a few sentences at a time, with programs compiled beforehand."""

    def __init__(self, translator: Translator, longest: int) -> None:
        """Keep the model.

        Args:
          translator: the model, which is no ensemble.
          longest: the most subwords of a sentence; a longer one has no links.
        """
        longest = int(min(longest, _LONGEST, translator.longest_sentence))
        self._translator = translator
        self._lengths = [min(1 << power, longest) for power in range(4, longest.bit_length() + 1)]

    def warm_up(self) -> None:
        """Compile the program for sentences of all lengths."""
        nothing = _Side([], [])
        for length in self._lengths:
            self._every_link((nothing, nothing), length)

    def links(self, sources: Sequence[str], targets: Sequence[str]) -> list[Links]:
        """Return each pair's links, by the head that agrees most on these; see `alignments`."""
        pairs = _pairs(self._translator, sources, targets)
        found = {}
        for number, pair in enumerate(pairs):
            longest = _length(pair)
            length = next((one for one in self._lengths if one >= longest), None)
            if longest and length is not None:
                found[number] = self._every_link(pair, length)
        if not found:
            return [[] for _ in pairs]
        head = _most(np.sum([agreed for agreed, _ in found.values()], axis=0))
        aligned: list[Links] = [[] for _ in pairs]
        for number, (_, best) in found.items():
            aligned[number] = _of_words(best[head], pairs[number])
        return aligned

    def _every_link(self, pair: tuple[_Side, _Side], length: int) -> tuple[np.ndarray, np.ndarray]:
        translator = self._translator
        rows = row_parts(translator.mesh)
        arrays = _pair_arrays([pair], rows, length, translator.mesh)
        agreed, links = on_host(_every_link(translator.model, translator.params, arrays))
        return agreed[0], links[0]


def _of_words(best: Int[np.ndarray, " t"], pair: tuple[_Side, _Side]) -> Links:
    """Return the links of a pair, given the best source word of every target word."""
    return [(int(best[word]), word) for word in range(max(pair[1].words) + 1)]


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


def word_weights(
    weights: Float[Array, "... t s"], targets: Int[Array, "b t"], sources: Int[Array, "b s"]
) -> Float[Array, "... t s"]:
    """Compute the attention weights between words from those between subwords.

    Args:
      weights: weights of each source subword when each target subword is predicted; the first of
        the other axes is b.
      targets: the word that each target subword belongs to, or -1.
      sources: the word that each source subword belongs to, or -1.

    Returns:
      The weights of source words for target words, in the first rows and columns; the rest is 0.
    """
    of_targets = jax.nn.one_hot(targets, targets.shape[1])  # [b, t, words]
    of_targets /= jnp.maximum(1.0, jnp.sum(of_targets, axis=1, keepdims=True))
    of_sources = jax.nn.one_hot(sources, sources.shape[1])
    return jnp.einsum("b...ts,btv,bsw->b...vw", weights, of_targets, of_sources)


def agreement(
    weights: Float[Array, "... v w"], has_word: Bool[Array, "... v"]
) -> Float[Array, "..."]:
    """Return the share of target words that are the best target word of their best source word.

    Args:
      weights: weights of source words for target words.
      has_word: whether each row is that of a target word.
    """
    best_source = jnp.argmax(weights, axis=-1)
    best_target = jnp.argmax(weights, axis=-2)
    back = jnp.take_along_axis(best_target, best_source, axis=-1)
    agreed = (back == jnp.arange(weights.shape[-2])) & has_word
    return jnp.sum(agreed, axis=-1) / jnp.maximum(1, jnp.sum(has_word, axis=-1))


def _pairs(
    translator: Translator, sources: Sequence[str], targets: Sequence[str]
) -> list[tuple[_Side, _Side]]:
    """Return each source and target as tokens, with the number of the word of each."""
    encoded, vocabulary = translator.encode_targets(targets), translator.vocabulary
    return [
        (_Side(a, words_of(a, vocabulary, of_source=True)), _Side(b, words_of(b, vocabulary)))
        for a, b in zip(translator.encode(sources), encoded, strict=True)
    ]


def _length(pair: tuple[_Side, _Side]) -> int:
    """Return the number of tokens of the longer side; 0 if a side is blank."""
    is_blank = any(max(side.words, default=-1) < 0 for side in pair)
    return 0 if is_blank else max(len(side.tokens) for side in pair)


def _pair_arrays(
    pairs: Sequence[tuple[_Side, _Side]], rows: int, length: int, mesh: Mesh
) -> _Pairs:
    """Return the arrays of pairs, a pair a row."""
    return _Pairs(
        *(
            put_rows(array, mesh)
            for side in zip(*pairs, strict=True)
            for array in (
                padded([one.tokens for one in side], rows, length),
                padded([one.words for one in side], rows, length, fill=-1),
            )
        )
    )


def _best_head(translator: Translator, pairs: Sequence[tuple[_Side, _Side]]) -> AlignmentHead:
    """Return the head with the greatest agreement, as a mean over pairs."""
    total = np.zeros(_sizes(translator))
    for _, (of_heads, _) in _passes(translator, pairs, _every_link):
        total += of_heads
    return _most(total)


def _sizes(translator: Translator) -> tuple[int, int, int]:
    """Return how many layers attend to the source, and the heads and the steps of each."""
    decoder = translator.config.model.stacks[-1]
    attention = decoder.cross_attention or decoder.self_attention
    return decoder.num_layers, attention.num_heads, _STEPS


def _most(agreements: Float[np.ndarray, "n h 2"]) -> AlignmentHead:
    """Return the head with the greatest agreement; of equal ones, the first."""
    place = np.unravel_index(int(agreements.argmax()), agreements.shape)
    return AlignmentHead(*map(int, place))


def _passes(
    translator: Translator,
    pairs: Sequence[tuple[_Side, _Side]],
    compute: Callable[..., tuple[Array, ...]],
) -> Iterator[tuple[int, tuple[np.ndarray, ...]]]:
    """Yield the index of each pair that can be aligned, with what `compute` returns for it."""
    limit = min(_LONGEST, translator.longest_sentence)
    lengths = [length if (length := _length(pair)) <= limit else 0 for pair in pairs]
    maps = math.prod(_sizes(translator)) * max(1, *lengths, 8)
    tokens = max(1, _WEIGHTS_PER_BATCH // maps)

    def launch(lines: list[int], rows: int, length: int) -> Any:
        arrays = _pair_arrays([pairs[line] for line in lines], rows, length, translator.mesh)
        return compute(translator.model, translator.params, arrays)

    launched = (
        (batch[0], launch(*batch)) for batch in batches(lengths, tokens, row_parts(translator.mesh))
    )
    for lines, result in one_ahead(launched):  # the padding rows of a batch are left out
        yield from zip(lines, zip(*on_host(result), strict=True), strict=False)


@partial(jax.jit, static_argnums=0)
def _every_link(
    model: DecodingModel, params: Parameters, pairs: _Pairs
) -> tuple[Float[Array, "b n h 2"], Int[Array, "b n h 2 t"]]:
    """Compute every head's agreement, and its best source word for every target word."""
    words = _words(model, params, pairs)
    has_word = jnp.arange(words.shape[-2]) <= jnp.max(pairs.target_words, axis=1, keepdims=True)
    agreed = agreement(words, jnp.broadcast_to(has_word[:, None, None, None], words.shape[:-1]))
    return agreed, jnp.argmax(words, axis=-1)


@partial(jax.jit, static_argnums=0)
def _links(
    model: DecodingModel, params: Parameters, pairs: _Pairs, head: AlignmentHead
) -> tuple[Int32[Array, "b t"]]:
    """Return the best source word of every target word, by one head."""
    return (jnp.argmax(_words(model, params, pairs, head), axis=-1),)


def _words(
    model: DecodingModel, params: Parameters, pairs: _Pairs, head: AlignmentHead | None = None
) -> Float[Array, "b *heads t s"]:
    """Compute the weights between words of one head, or of all layers, heads and steps."""
    batch = Batch(one_a_row(pairs.sources), one_a_row(pairs.targets))
    weights = jnp.moveaxis(model.attention_weights(params, batch)["cross"], 1, 0)
    # The last row of a target is that of its end, which is no word, so none needs the row behind.
    if head is None:
        steps = [jnp.roll(weights, -step, axis=-2) for step in range(_STEPS)]
        weights = jnp.stack(steps, axis=-3)
    else:
        weights = jnp.roll(weights[:, head.layer, head.head], -head.step, axis=-2)
    return word_weights(weights, pairs.target_words, pairs.source_words)


def _checked_head(translator: Translator, head: tuple[int, ...]) -> AlignmentHead:
    sizes, chosen = _sizes(translator), AlignmentHead(*head)
    if not all(0 <= one < size for one, size in zip(chosen, sizes, strict=True)):
        raise UserError(
            f"there is no head {':'.join(map(str, head))}; the layers of the decoder are 0 to "
            f"{sizes[0] - 1}, their heads 0 to {sizes[1] - 1}, and the step is 0 or 1"
        )
    return chosen
