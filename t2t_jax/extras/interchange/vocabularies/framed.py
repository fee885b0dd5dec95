"""A vocabulary that adds tags around the text of another one, as in M2M100, NLLB, mBART and BART.

A tag is an entry of the vocabulary. A language tag names the language of a source or of a target;
other tags surround every text.
"""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property

from t2t_jax.data.vocabulary import Rows, Vocabulary, before_end, parse_vocabulary, parsed
from t2t_jax.errors import UserError
from t2t_jax.system.records import schema

LANGUAGE = -1
"""The place, among the marks around a text, of the mark of its language."""

_MARKS = list[int]
_SCHEMA = schema(
    {
        "kind": str,
        "languages": dict[str, int],
        "pair": list[str],
        "source_before": _MARKS,
        "source_after": _MARKS,
        "target_before": _MARKS,
        "silent": _MARKS,
        "first": _MARKS,
        "text": dict,
    }
)
_MANY = 12


class FramedVocabulary(Vocabulary):
    """A vocabulary of text, with tags around sources and before targets."""

    def __init__(self, serialized: bytes) -> None:
        """Read the vocabulary as `framed_vocabulary` has written it.

        Raises:
          ValueError: the bytes are damaged; the message says in what way.
          UserError: a library is missing that the vocabulary of the text needs.
        """
        super().__init__(serialized)
        self._content = content = parsed(serialized, _SCHEMA)
        if content["text"].get("kind") == "framed":
            raise ValueError("damaged: its text has marks of its own")
        self.text: Vocabulary = parse_vocabulary(_bytes(content["text"]))
        """The vocabulary that splits the text."""
        self.marks: Mapping[str, int] = content["languages"]
        """The id of the mark of each language, by the code of the language."""
        self._silent = frozenset(content["silent"])
        self._speller: Vocabulary | None = None
        self.first: list[int] = content["first"]
        """The numbers that the first entries have in the program that the model comes from, where
        all others are in the same order."""
        size = min(len(self.text), self.text.source_size)
        marks = *self.marks.values(), *self._silent
        around = [content[name] for name in ("source_before", "source_after", "target_before")]
        if not all(0 <= number < size for number in marks):
            raise ValueError("damaged: it has marks that are no entries")
        if not all(LANGUAGE <= number < size for row in around for number in row):
            raise ValueError("damaged: it has marks around a text that are no entries")
        if any(LANGUAGE in row for row in around) and not (
            len(content["pair"]) == 2 and set(content["pair"]) <= self.marks.keys()
        ):
            raise ValueError("damaged: it does not say the two languages of its texts")

    @cached_property
    def serialized(self) -> bytes:
        """Return the bytes of the vocabulary, which `between` computes lazily."""
        return self._serialized or _bytes(self._content)

    def __len__(self) -> int:
        """Return the number of ids of targets."""
        return len(self.text)

    @property
    def source_size(self) -> int:
        """See `Vocabulary.source_size`."""
        return self.text.source_size

    @property
    def unk_id(self) -> int:
        """See `Vocabulary.unk_id`."""
        return self.text.unk_id

    @property
    def protected_tokens(self) -> frozenset[str]:
        """See `Vocabulary.protected_tokens`."""
        return self.text.protected_tokens

    @property
    def files(self) -> Mapping[str, bytes]:
        """Return the files that split text, without tags."""
        return self.text.files

    @cached_property
    def source_frame(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """See `Vocabulary.source_frame`."""
        return self._around("source_before", 0), self._around("source_after", 0)

    @cached_property
    def target_begin(self) -> tuple[int, ...]:
        """See `Vocabulary.target_begin`."""
        return self._around("target_before", 1)

    @property
    def marked_languages(self) -> tuple[str, ...]:
        """Return the codes of the languages that have tags."""
        return tuple(self.marks)

    @property
    def pair(self) -> tuple[str, ...]:
        """Return the codes of the languages of sources and of targets; () without languages."""
        return tuple(self._content["pair"])

    def between(self, source: str, target: str) -> "Vocabulary":
        """See `Vocabulary.between`."""
        if not self.marks:
            return super().between(source, target)
        pair = [language_code(name, self.marked_languages) for name in (source, target)]
        if pair == self._content["pair"]:
            return self
        if LANGUAGE not in self._content["target_before"] and pair[1:] != self._content["pair"][1:]:
            raise UserError(
                f"the model is one that starts its translations with the mark of {self.pair[1]}, "
                f"not of {target}; import it again with --target-language {target}"
            )
        other = FramedVocabulary.__new__(FramedVocabulary)  # which parses nothing again
        of_pair = "serialized", "source_frame", "target_begin"
        kept = {name: value for name, value in vars(self).items() if name not in of_pair}
        own = {"_content": {**self._content, "pair": pair}, "_serialized": b""}
        vars(other).update(kept | own | {"_speller": self.speller})
        return other

    @property
    def speller(self) -> Vocabulary:
        """Return the vocabulary that spells the ids of all pairs of languages."""
        return self if self._speller is None else self._speller

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each source, with its tags; see `Vocabulary.encode`."""
        before, after = self.source_frame
        rows = self.text.encode(lines)
        return [[*before, *row[:-1], *after] if len(row) > 1 else row for row in rows]

    def encode_targets(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each target, with its tags; see `Vocabulary.encode_targets`."""
        before, rows = self.target_begin, self.text.encode_targets(lines)
        return [[*before, *row] if len(row) > 1 else row for row in rows]

    def pieces(self, ids: Rows) -> list[list[str]]:
        """See `Vocabulary.pieces`."""
        return self.text.pieces(ids)

    def target_pieces(self, ids: Rows) -> list[list[str]]:
        """See `Vocabulary.target_pieces`."""
        return self.text.target_pieces(ids)

    def spelling(self, token: int) -> bytes:
        """Return the bytes that an id of a target adds to a text; a tag adds none."""
        return b"" if token in self._silent else self.text.spelling(token)

    def source_spelling(self, token: int) -> bytes:
        """Return the bytes of a source id; a tag has none."""
        return b"" if token in self._silent else self.text.source_spelling(token)

    def decode(self, ids: Rows) -> list[str]:
        """Return the text of each row, without tags; see `Vocabulary.decode`."""
        return self.text.decode(before_end(ids, without=tuple(self._silent)))

    def _around(self, name: str, side: int) -> tuple[int, ...]:
        return tuple(
            self.marks[self.pair[side]] if number == LANGUAGE else number
            for number in self._content[name]
        )


def language_code(name: str, codes: Sequence[str]) -> str:
    """Return the code of a language: the name itself, or the one that begins with it and `_`.

    Case is ignored.
    """
    whole = [code for code in codes if code.lower() == name.lower()]
    found = whole or [code for code in codes if re.split("[_-]", code.lower())[0] == name.lower()]
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(f"the language {name} is one of {', '.join(found)} here; name one of them")
    some = ", ".join(codes[:_MANY])
    more = f" and {len(codes) - _MANY} more" if len(codes) > _MANY else ""
    raise UserError(f"there is no language {name!r:.40} here; there are {some}{more}")


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
    """Make a vocabulary from one that splits text, and tags, which are ids of its entries.

    Args:
      text: the vocabulary of the text, an object of JSON.
      source: the tags before a source, and those after it, including its end of sentence;
        `LANGUAGE` is the placeholder of the language tag.
      target: the tags before a target.
      silent: the ids of all entries without text.
      languages: the id of the tag of each language, by its code.
      pair: the codes of the languages of sources and of targets.
      first: the ids of the first entries in the program that the model comes from.

    Raises:
      ValueError: the parts do not make a vocabulary.
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
