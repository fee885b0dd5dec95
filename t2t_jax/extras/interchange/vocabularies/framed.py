"""A vocabulary that adds tags around a text, as in M2M100, NLLB, mBART and BART.

A tag is a vocabulary entry. A language tag names the language of a text; other tags surround every
text.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property

from t2t_jax.data.vocabulary import Rows, Vocabulary, before_end, parse_content, parse_vocabulary
from t2t_jax.errors import UserError
from t2t_jax.system.records import schema

LANGUAGE = -1
"""The placeholder for the language tag, among the tags around a text."""

_IDS = list[int]
_SCHEMA = schema(
    {
        "kind": str,
        "languages": dict[str, int],
        "pair": list[str],
        "source_before": _IDS,
        "source_after": _IDS,
        "target_before": _IDS,
        "silent": _IDS,
        "first": _IDS,
        "text": dict,
    }
)
_MAX_LISTED = 12  # languages in an error message


class FramedVocabulary(Vocabulary):
    """A text vocabulary that adds tags around sources and before targets."""

    def __init__(self, serialized: bytes) -> None:
        """Parse the bytes of a vocabulary that `framed_vocabulary` made.

        Raises:
          ValueError: the bytes are damaged.
          UserError: the text vocabulary needs a library that is missing.
        """
        super().__init__(serialized)
        self._content = content = parse_content(serialized, _SCHEMA)
        if content["text"].get("kind") == "framed":
            raise ValueError("damaged: its text vocabulary has tags too")
        self.text: Vocabulary = parse_vocabulary(_bytes(content["text"]))
        """The vocabulary that splits the text."""
        self.marks: Mapping[str, int] = content["languages"]
        """The id of each language's tag, by language code."""
        self._silent = frozenset(content["silent"])
        self._speller: Vocabulary | None = None
        self.first: list[int] = content["first"]
        """The original ids of the first entries; the other entries keep their original order."""
        vocab_size = min(len(self.text), self.text.source_size)
        tag_ids = *self.marks.values(), *self._silent
        frames = [content[name] for name in ("source_before", "source_after", "target_before")]
        if not all(0 <= token < vocab_size for token in tag_ids):
            raise ValueError("damaged: it has tags that are not entries")
        if not all(LANGUAGE <= token < vocab_size for frame in frames for token in frame):
            raise ValueError("damaged: it has tags around a text that are not entries")
        if any(LANGUAGE in frame for frame in frames) and not (
            len(content["pair"]) == 2 and set(content["pair"]) <= self.marks.keys()
        ):
            raise ValueError("damaged: it does not name the two languages of its texts")

    @cached_property
    def serialized(self) -> bytes:
        """Return the bytes of the vocabulary."""
        # `between` leaves `_serialized` empty: most copies are never serialized.
        return self._serialized or _bytes(self._content)

    def __len__(self) -> int:
        """Return the number of target ids."""
        return len(self.text)

    @property
    def source_size(self) -> int:
        """Return the number of source ids."""
        return self.text.source_size

    @property
    def unk_id(self) -> int:
        """Return the id of text that has no entry."""
        return self.text.unk_id

    @property
    def protected_tokens(self) -> frozenset[str]:
        """Return the strings that always are one token."""
        return self.text.protected_tokens

    @property
    def files(self) -> Mapping[str, bytes]:
        """Return the files of the text vocabulary, without the tags, by name."""
        return self.text.files

    @cached_property
    def source_frame(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the ids, such as language tags, before and after every source's subwords."""
        return self._frame("source_before", 0), self._frame("source_after", 0)

    @cached_property
    def target_begin(self) -> tuple[int, ...]:
        """Return the ids before a target's subwords, such as a language tag."""
        return self._frame("target_before", 1)

    @property
    def marked_languages(self) -> tuple[str, ...]:
        """Return the codes of the languages that have tags."""
        return tuple(self.marks)

    @property
    def pair(self) -> tuple[str, ...]:
        """Return the source and target language codes; () for a model without language tags."""
        return tuple(self._content["pair"])

    def between(self, source: str, target: str) -> "Vocabulary":
        """Return the vocabulary for other language codes."""
        if not self.marks:
            return super().between(source, target)
        pair = [language_code(name, self.marked_languages) for name in (source, target)]
        if pair == self._content["pair"]:
            return self
        if LANGUAGE not in self._content["target_before"] and pair[1:] != self._content["pair"][1:]:
            raise UserError(
                f"the model starts its translations with the tag of {self.pair[1]}, not of "
                f"{target}; import it again with --target-language {target}"
            )
        # Copying the attributes saves parsing the tokenizer again.
        copy = FramedVocabulary.__new__(FramedVocabulary)
        old_caches = "serialized", "source_frame", "target_begin"  # these depend on the pair
        attributes = {name: value for name, value in vars(self).items() if name not in old_caches}
        new_pair = {"_content": {**self._content, "pair": pair}, "_serialized": b""}
        vars(copy).update(attributes | new_pair | {"_speller": self.speller})
        return copy

    @property
    def speller(self) -> Vocabulary:
        """Return the vocabulary to use as the cache key for spellings of ids.

        A copy by `between` returns its original, which spells ids alike.
        """
        return self if self._speller is None else self._speller

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each source, with its tags and `EOS_ID`."""
        before, after = self.source_frame
        rows = self.text.encode(lines)
        # Each row ends with EOS_ID, which `after` includes. An empty line gets no tags.
        return [[*before, *row[:-1], *after] if len(row) > 1 else row for row in rows]

    def encode_targets(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each target, with its tags and `EOS_ID`."""
        before, rows = self.target_begin, self.text.encode_targets(lines)
        return [[*before, *row] if len(row) > 1 else row for row in rows]

    def pieces(self, ids: Rows) -> list[list[str]]:
        """Return each source id's subword, row by row."""
        return self.text.pieces(ids)

    def target_pieces(self, ids: Rows) -> list[list[str]]:
        """Return each target id's subword, row by row."""
        return self.text.target_pieces(ids)

    def spelling(self, token: int) -> bytes:
        """Return the bytes that a target id spells; a tag spells none."""
        return b"" if token in self._silent else self.text.spelling(token)

    def source_spelling(self, token: int) -> bytes:
        """Return the bytes that a source id spells; a tag spells none."""
        return b"" if token in self._silent else self.text.source_spelling(token)

    def decode(self, ids: Rows) -> list[str]:
        """Return the text of each row of target ids, without tags."""
        return self.text.decode(before_end(ids, dropped_ids=tuple(self._silent)))

    def _frame(self, name: str, side: int) -> tuple[int, ...]:
        return tuple(
            self.marks[self.pair[side]] if token == LANGUAGE else token
            for token in self._content[name]
        )


def language_code(name: str, codes: Sequence[str]) -> str:
    """Return the language code with this name, or else the only code that starts with `NAME_`.

    Case is ignored.
    """
    exact = [code for code in codes if code.lower() == name.lower()]
    matches = exact or [code for code in codes if re.split("[_-]", code.lower())[0] == name.lower()]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UserError(f"the language {name} can be {', '.join(matches)}; name one of these codes")
    examples = ", ".join(codes[:_MAX_LISTED])
    suffix = f" and {len(codes) - _MAX_LISTED} more" if len(codes) > _MAX_LISTED else ""
    raise UserError(f"there is no language {name!r:.40} here; there are {examples}{suffix}")


def framed_vocabulary(
    text: Vocabulary,
    *,
    source: tuple[Sequence[int], Sequence[int]],
    target: Sequence[int],
    silent: Sequence[int],
    languages: Mapping[str, int],
    pair: Sequence[str],
    first: Sequence[int],
) -> FramedVocabulary:
    """Make a vocabulary that adds tags to the ids of a text vocabulary.

    All ids except `first` are ids of `text`.

    Args:
      text: the text vocabulary, which contains the tags and serializes to JSON.
      source: the tags before a source, and the tags after it, with the end of sentence;
        `LANGUAGE` is the placeholder of the language tag.
      target: the tags before a target.
      silent: the ids of entries without text.
      languages: the tag id of each language code.
      pair: the codes, in `languages`, of the source language and the target language.
      first: the ids in the imported model of the entries that t2t_jax moved to the front, such as
        padding; the other entries keep their order.

    Raises:
      ValueError: the arguments do not fit together.
    """
    content = {
        "kind": "framed",
        "languages": dict(languages),
        "pair": list(pair),
        "source_before": list(source[0]),
        "source_after": list(source[1]),
        "target_before": list(target),
        "silent": list(silent),
        "first": list(first),
        "text": json.loads(text.serialized),
    }
    return FramedVocabulary(_bytes(content))


def _bytes(content: Mapping[str, object]) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode()
