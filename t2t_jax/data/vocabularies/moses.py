"""Words of Moses, split by byte pair encoding, with tables of ids, as in many fairseq models.

A line is split into words by the tokenizer of Moses (Koehn et al. 2007), and a word into subwords
by the merges of subword-nmt (Sennrich et al. 2016) or fastBPE. All subwords of a word but its last
end in `@@`. Text is put together again by the detokenizer of Moses, which has to guess some spaces.
The models of fairseq in transformers (FSMT) have punctuation normalised by Moses before that.
"""

import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from t2t_jax.batch import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from t2t_jax.data.vocabularies.tables import TableVocabulary
from t2t_jax.data.vocabulary import Rows, before_end
from t2t_jax.errors import needs_extra
from t2t_jax.system.records import Schema

_SCHEMA = Schema(
    {
        "kind": str,
        "source_language": str,
        "target_language": str,
        "splits_dashes": bool,
        "escapes": bool,
        "codes": str,
        "source_pieces": list,
        "target_pieces": list,
    },
    {"normalizes": bool},
)
_SPECIAL = ["<pad>", "</s>", "<s>", "<unk>"]
_CONTINUES = "@@ "
_VERSION = re.compile(r"#version: \d+(\.\d+)*")


class MosesVocabulary(TableVocabulary):
    """Words of Moses, merges of characters, and tables that say which id a subword has.

    Ids 0 to 3 are padding, end, begin and unknown.

    Attributes:
      languages: codes of the languages of sources and of targets.
      splits_dashes: whether the tokenizer splits words at hyphens.
      escapes: whether the tokenizer writes characters such as & as &amp;.
      normalizes: whether lines are first rid of special quotation marks and dashes, of full-width
        punctuation and of control characters, as by Moses.
    """

    def __init__(self, serialized: bytes) -> None:
        """Read the vocabulary as `moses_vocabulary` has written it.

        Raises:
          ValueError: the bytes are damaged; the message says in what way.
          UserError: sacremoses or subword-nmt is not installed.
        """
        with needs_extra("interchange", "a vocabulary of Moses"):
            from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer
        super().__init__(serialized, _SCHEMA, _SPECIAL)
        self._codes: str = self.content["codes"]
        self.splits_dashes: bool = self.content["splits_dashes"]
        self.escapes: bool = self.content["escapes"]
        self.normalizes: bool = self.content.get("normalizes", False)
        self.languages: tuple[str, str] = (
            self.content["source_language"],
            self.content["target_language"],
        )
        self._tokenizers = [MosesTokenizer(language) for language in self.languages]
        self._normalizers = [
            MosesPunctNormalizer(
                language, pre_replace_unicode_punct=True, post_remove_control_chars=True
            )
            for language in self.languages
        ]
        self._detokenizer = MosesDetokenizer(self.languages[1])
        # A text cannot spell padding, or the end of a sentence.
        self._ids = [
            {piece: number for piece, number in ids.items() if number >= UNK_ID}
            for ids in self._ids
        ]
        self._merges = _merges(self._codes)

    @property
    def unk_id(self) -> int:
        """Return the id of a subword that is in no table."""
        return UNK_ID

    @property
    def files(self) -> Mapping[str, bytes]:
        """Return the merges, which `subword-nmt apply-bpe` reads."""
        return {"bpecodes": self._codes.encode()}

    def _spelling(self, side: int, token: int) -> bytes:
        if token < len(_SPECIAL):
            return b""
        piece = f"{self._pieces[side][token]} "
        return piece.removesuffix(_CONTINUES).encode()

    def decode(self, ids: Rows) -> list[str]:
        """Return the text of each row of a target's ids, up to its first `EOS_ID`."""
        rows = self.target_pieces(before_end(ids, without=(PAD_ID, BOS_ID)))
        joined = (" ".join([*row, ""]).replace(_CONTINUES, "") for row in rows)
        return [
            self._detokenizer.detokenize(words.split(), unescape=self.escapes) for words in joined
        ]

    def _encoded(self, side: int, lines: Sequence[str]) -> list[list[int]]:
        tokenizer, ids, merges = self._tokenizers[side], self._ids[side], self._merges
        options = {"aggressive_dash_splits": self.splits_dashes, "escape": self.escapes}
        if self.normalizes:
            lines = list(map(self._normalizers[side].normalize, lines))
        # `merges` remembers the subwords of every word.
        rows = (merges.segment_tokens(tokenizer.tokenize(line, **options)) for line in lines)
        return [[*(ids.get(piece, UNK_ID) for piece in row), EOS_ID] for row in rows]


def moses_vocabulary(
    languages: tuple[str, str],
    codes: str,
    pieces: tuple[Sequence[str], Sequence[str]],
    *,
    splits_dashes: bool,
    escapes: bool,
    normalizes: bool = False,
) -> MosesVocabulary:
    """Make a vocabulary from its languages, its merges and the subword of each id.

    Args:
      languages: codes of the languages of sources and of targets, such as "en" and "de".
      codes: the content of the file of merges that `subword-nmt learn-bpe` writes.
      pieces: the subword of each id, of sources and of targets: `<pad>`, `</s>`, `<s>`, `<unk>` and
        then the others.
      splits_dashes: whether `well-known` is the three words `well @-@ known`, as with option -a of
        the tokenizer.
      escapes: whether characters such as & and ' are written as &amp; and &apos;.
      normalizes: whether punctuation is normalised first; see `MosesVocabulary`.

    Raises:
      ValueError: the parts do not make a vocabulary.
      UserError: subword-nmt is not installed.
    """
    content = {
        "kind": "moses",
        "source_language": languages[0],
        "target_language": languages[1],
        "splits_dashes": splits_dashes,
        "escapes": escapes,
        "codes": codes,
        "source_pieces": list(pieces[0]),
        "target_pieces": list(pieces[1]),
        **({"normalizes": True} if normalizes else {}),
    }
    return MosesVocabulary(json.dumps(content, ensure_ascii=False).encode())


def _merges(codes: str) -> Any:
    """Return subword-nmt's object for merges, checked before, as it would exit at a bad line.

    Raises:
      ValueError: the merges are damaged.
      UserError: subword-nmt is not installed.
    """
    with needs_extra("interchange", "a vocabulary of Moses"):
        from subword_nmt.apply_bpe import BPE
    version, *lines = codes.rstrip("\n").split("\n")
    if not version.startswith("#version:"):
        lines = [version, *lines]
    elif not _VERSION.fullmatch(version):
        raise ValueError(f"damaged: its merges begin with {version!r:.60}")
    for number, line in enumerate(lines):
        if len(line.split(" ")) != 2:
            raise ValueError(f"damaged: merge number {number} is {line!r:.60}, no pair of subwords")
    return BPE(io.StringIO(codes))
