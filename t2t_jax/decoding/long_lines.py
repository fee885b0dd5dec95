"""Split or refuse lines that are too long to be decoded as a whole."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from t2t_jax.config import DecodingConfig
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.errors import UserError

_SPACE = "\u2581"  # SentencePiece writes it for the space before a word
_ENDS = tuple(".!?…")
_ENDS_WITHOUT_SPACE = tuple("。！？")
_CLOSING = "\"'’”»)]"


class LinePart(NamedTuple):
    """A line, or a part of a long line."""

    line: int
    """Index of the line."""
    order: int
    """Index of the part within its line."""
    tokens: list[int]
    """Ids of the part's subwords, with an end-of-sentence token."""
    prefix: Sequence[int]
    """Ids with which the part's translation must begin."""


def parts(
    sources: Sequence[list[int]],
    prefixes: Sequence[Sequence[int]],
    decoding: DecodingConfig,
    vocabulary: Vocabulary,
    longest_sentence: float,
    first_line: int,
) -> list[LinePart]:
    """Split lines into parts that are short enough to be decoded; most lines are one part.

    A part ends at the last sentence boundary in the second half of its maximum length, else at the
    last space there, else between two subwords.

    Args:
      sources: ids of the lines, with an end-of-sentence token.
      prefixes: ids with which the translation of each line must begin, without an end-of-sentence
        token. The first part of a line gets the prefix.
    """
    limit = longest_source(decoding, longest_sentence)
    line_parts: list[LinePart] = []
    for line, (source, prefix) in enumerate(zip(sources, prefixes, strict=True)):
        if len(prefix) > limit:
            raise UserError(
                f"the prefix of line {first_line + line} has {len(prefix)} subwords, but a source "
                f"and a prefix may have at most {limit}; shorten it, or raise "
                f"decoding.max_source_length={decoding.max_source_length} as far as the model has "
                "positions"
            )
        if len(source) <= limit:
            line_parts.append(LinePart(line, 0, source, prefix))
            continue
        if decoding.long_lines == "refuse" or limit <= sum(map(len, vocabulary.source_frame)):
            name = f"line {first_line + line}"
            raise too_long(name, len(source), decoding, longest_sentence)
        for part_index, tokens in enumerate(split(source, vocabulary, int(limit))):
            line_parts.append(LinePart(line, part_index, tokens, () if part_index else prefix))
    return line_parts


LONGEST_PASS = 1 << 15
"""The most subwords of a sentence that is scored in one pass; work grows with their square."""


def check_one_pass(name: str, length: int, longest_sentence: float) -> None:
    """Raise a `UserError` if a sentence is too long to be scored in one pass."""
    limit = min(longest_sentence, LONGEST_PASS)
    if length > limit:
        reason = f"and at most {limit} can be scored"
        if limit < LONGEST_PASS:
            reason = f"but the learned positions of this model allow {limit} (model.max_positions)"
        raise UserError(f"{name} has {length} subwords, {reason}; split the line, or leave it out")


def longest_source(decoding: DecodingConfig, longest_sentence: float) -> float:
    """Return the maximum number of tokens in a source line that is decoded without splitting.

    Args:
      longest_sentence: the number of positions that the model has.
    """
    return min(decoding.max_source_length, longest_sentence - decoding.max_extra_length)


def too_long(
    name: str, length: int, decoding: DecodingConfig, longest_sentence: float
) -> UserError:
    """Make the error for a line that is too long to be decoded as a whole."""
    limit = longest_source(decoding, longest_sentence)
    advice = "split the line, or have it split with long_lines=split"
    if limit == decoding.max_source_length:
        return UserError(
            f"{name} has {length} subwords, more than decoding.max_source_length={limit}; "
            f"{advice}, or raise the limit"
        )
    return UserError(
        f"{name} has {length} subwords, but the learned positions of the model allow {limit} "
        f"(model.max_positions={longest_sentence} less decoding.max_extra_length="
        f"{decoding.max_extra_length}); {advice}"
    )


def split(source: list[int], vocabulary: Vocabulary, limit: int) -> Iterator[list[int]]:
    """Cut a source into parts of at most `limit` tokens, and yield the ids of each part.

    The source and its parts have tags and an end-of-sentence token, which count as tokens.
    """
    begin_ids, end_ids = vocabulary.source_frame
    tokens = source[len(begin_ids) : len(source) - len(end_ids)]
    [pieces] = vocabulary.pieces([tokens])
    start, capacity = 0, limit - len(begin_ids) - len(end_ids)
    while len(tokens) - start > capacity:
        cuts = range(start + max(1, capacity // 2), start + capacity + 1)
        cut = max(cuts, key=lambda cut: (_merit(pieces, cut), cut))
        yield [*begin_ids, *tokens[start:cut], *end_ids]
        start = cut
    yield [*begin_ids, *tokens[start:], *end_ids]


def _merit(pieces: list[str], index: int) -> int:
    """Rate a cut before the subword at an index, from 0 (in a character) to 3 (sentence end)."""
    piece = pieces[index]
    text_before = "".join(pieces[max(0, index - 3) : index]).rstrip(_CLOSING)
    after_space = piece.startswith(_SPACE)
    if text_before.endswith(_ENDS_WITHOUT_SPACE) or (after_space and text_before.endswith(_ENDS)):
        return 3
    if after_space:
        return 2
    # These pieces are continuation bytes of a character that is spelled in bytes.
    return 0 if piece.startswith(("<0x8", "<0x9", "<0xA", "<0xB")) else 1
