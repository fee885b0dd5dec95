"""What is alike in vocabularies with a table of ids for sources and another one for targets."""

from abc import abstractmethod
from collections.abc import Sequence

from t2t_jax.data.vocabulary import Rows, Vocabulary, parsed
from t2t_jax.system.records import Schema


class TableVocabulary(Vocabulary):
    """Tables that say which id a subword has; a subclass says how text is split into subwords."""

    def __init__(self, serialized: bytes, schema: Schema, special: list[str]) -> None:
        """Read the tables of a vocabulary.

        Args:
          serialized: an object of JSON, with the subword of each id in its fields `source_pieces`
            and `target_pieces`.
          schema: the fields of the object.
          special: the entries that either table begins with.

        Raises:
          ValueError: the bytes are damaged; the message says in what way.
        """
        super().__init__(serialized)
        self.content = parsed(serialized, schema)
        """The fields of the object of JSON."""
        self._pieces: list[list[str]] = [
            self.content["source_pieces"],
            self.content["target_pieces"],
        ]
        for pieces in self._pieces:
            if not all(isinstance(piece, str) for piece in pieces):
                raise ValueError("damaged: a subword is no string")
            if pieces[: len(special)] != special:
                raise ValueError(f"damaged: it does not begin with {' '.join(special)}")
        self._ids = [{piece: number for number, piece in enumerate(own)} for own in self._pieces]

    def __len__(self) -> int:
        """Return the number of ids of targets."""
        return len(self._pieces[1])

    @property
    def source_size(self) -> int:
        """Return the number of ids of sources."""
        return len(self._pieces[0])

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the subword ids of each source, ended by `EOS_ID`."""
        return self._encoded(0, lines)

    def encode_targets(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the subword ids of each target, ended by `EOS_ID`."""
        return self._encoded(1, lines)

    @abstractmethod
    def _encoded(self, side: int, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of lines: of sources if `side` is 0, and of targets if it is 1."""

    def pieces(self, ids: Rows) -> list[list[str]]:
        """Return the subword that each id of a source stands for, row by row."""
        return [[self._pieces[0][token] for token in row] for row in ids]

    def target_pieces(self, ids: Rows) -> list[list[str]]:
        """Return the subword that each id of a target stands for, row by row."""
        return [[self._pieces[1][token] for token in row] for row in ids]

    def spelling(self, token: int) -> bytes:
        """Return the bytes that an id of a target adds to a text, with the space of a word."""
        return self._spelling(1, token)

    def source_spelling(self, token: int) -> bytes:
        """Return the bytes that an id of a source stands for; see `spelling`."""
        return self._spelling(0, token)

    @abstractmethod
    def _spelling(self, side: int, token: int) -> bytes:
        """Return the bytes of an id of either side."""
