"""A reader of the entries of a vocabulary, and of the file that splits text into them.

    DIR/tokenizer.json                  a tokenizer of the library tokenizers, with all entries; or
    DIR/sentencepiece.bpe.model         a SentencePiece model, with
    DIR/vocab.json                      the id of each subword, as M2M100 has it

Without vocab.json, begin, padding, end and unknown have the ids 0 to 3, and subwords have the ids
of the SentencePiece model plus one. Languages follow the subwords, in the order of
special_tokens_map.json or tokenizer_config.json, or else in the order of M2M100.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.errors import UserError
from t2t_jax.extras.interchange import model_files, places
from t2t_jax.extras.interchange.vocabularies.paired import paired_vocabulary
from t2t_jax.extras.interchange.vocabularies.pretrained import pretrained_vocabulary
from t2t_jax.system.records import Record, schema

TOKENIZER, SENTENCEPIECE, TABLE = "tokenizer.json", "sentencepiece.bpe.model", "vocab.json"
SETTINGS, SPECIAL = "tokenizer_config.json", "special_tokens_map.json"
_LISTS = "additional_special_tokens", "extra_special_tokens"
_SETTINGS = schema(
    {},
    {
        **dict.fromkeys(("src_lang", "tgt_lang", "tokenizer_class"), str | None),
        "legacy_behaviour": bool | None,
        "language_codes": str | None,
        "added_tokens_decoder": dict[str, model_files.Token],
        **dict.fromkeys(_LISTS, list | None),
    },
)
_OF_M2M100 = {
    "m2m100": "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga "
    "gd gl gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml "
    "mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn "
    "tr uk ur uz vi wo xh yi yo zh zu",
    "wmt21": "en ha is ja cs ru zh de",
}
"""The languages of M2M100 and of its successor for WMT 2021, in the order of their ids."""
_LANGUAGE = re.compile(r"__([a-z]{2,4})__|([a-z]{2,3}_[A-Za-z]{2,4})")


class Entries(NamedTuple):
    """The entries of a model's vocabulary, by the ids that the model has for them."""

    file: Path
    """The file that splits text."""
    pieces: list[str]
    """The name of each entry."""
    added: frozenset[int]
    """The ids of the entries that stand for no text."""
    languages: dict[str, int]
    """The id of the mark of each language, by the code of the language."""

    def vocabulary(self, first: list[int], *others: int) -> tuple[Vocabulary, places.Order]:
        """Return the vocabulary that splits text, and the model's id of each of its entries.

        Args:
          first: the model's ids of the entries that come first; see `new_order`.
          others: further ids that config.json names.
        """
        is_apart = (
            len({*first}) == len(first) and self.pieces.index(places.UNKNOWN) not in first[:2]
        )
        if not is_apart or max(*first, *others) >= len(self.pieces):
            raise UserError(
                f"{self.file.with_name('config.json')} has special ids that do not fit the "
                f"vocabulary: those of padding, end and others are {[*first, *others]}; copy the "
                "files of one model"
            )
        names, order = places.new_order(self.pieces, first)
        model = model_files.read_bytes(self.file)
        with model_files.vocabulary_of(self.file):
            if self.file.name != TOKENIZER:
                return paired_vocabulary((model, model), (names, names)), order
            there = [places.NONE if self.pieces[n] == unused(n) else n for n in order.tolist()]
            return pretrained_vocabulary(model.decode(), there, names.index(places.UNKNOWN)), order


def unused(number: int) -> str:
    """Return the name of an entry that only the matrices of a model have."""
    return f"<unused {number}>"


def read_entries(path: Path, size: int) -> Entries:
    """Read the entries of a model in a directory.

    Args:
      size: the number of rows of the model's matrix of embeddings.
    """
    file = path / TOKENIZER
    if file.exists():
        ids, added = model_files.read_tokenizer(file)
    else:
        file = path / SENTENCEPIECE
        ids, added = _of_sentencepiece(file)
    names = {number: name for name, number in ids.items()}
    if len(names) != len(ids) or not all(0 <= number < size for number in names):
        raise UserError(
            f"{path} does not give each of {len(ids):,} entries an id of its own below "
            f"vocab_size={size:,}, as config.json has it; its files are of several models"
        )
    for name in (places.PAD, places.END, places.UNKNOWN):
        if name not in ids:
            raise UserError(f"{file} has no entry {name}, which the vocabulary of a model needs")
    pieces = [names.get(number, unused(number)) for number in range(size)]
    nothing = {number for number in range(size) if number not in names} | set(added.values())
    languages = {
        (match[1] or match[2]): number
        for name, number in sorted(added.items(), key=lambda one: one[1])
        if (match := _LANGUAGE.fullmatch(name))
    }
    return Entries(file, pieces, frozenset(nothing - {ids[places.UNKNOWN]}), languages)


def tokenizer_settings(path: Path, name: str = SETTINGS) -> Record:
    """Return the fields of tokenizer_config.json, or another file; none if there is no such file.

    Args:
      path: the directory of the model.
    """
    file = path / name
    return model_files.read_json(file, _SETTINGS) if file.exists() else {}


def language_codes(codes: Sequence[str]) -> dict[str, str]:
    """Return the field of tokenizer_config.json for languages in the order of M2M100's."""
    names = [name for name, own in _OF_M2M100.items() if own.split() == list(codes)]
    return {"language_codes": names[0]} if names else {}


def _of_sentencepiece(file: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Return the same as `model_files.read_tokenizer` for a SentencePiece model."""
    path = file.parent
    if not file.exists():
        raise UserError(
            f"{path} has neither {TOKENIZER} nor {SENTENCEPIECE}, one of which splits text; copy "
            "it from where the model was"
        )
    splitter = model_files.read_splitter(file)
    if (path / TABLE).exists():
        ids = model_files.read_json(path / TABLE, dict[str, model_files.ID])
    else:
        pieces = [splitter.id_to_piece(n) for n in range(splitter.get_piece_size())]
        special = {splitter.unk_id(), splitter.bos_id(), splitter.eos_id()}
        if special != {0, 1, 2}:
            raise UserError(f"{file} has other ids than 0 to 2 for unknown, begin and end")
        ids = {name: number for number, name in enumerate(places.FIRST_ENTRIES)}
        ids |= {piece: number + 1 for number, piece in enumerate(pieces) if number > 2}
    added = {name: ids[name] for name in places.FIRST_ENTRIES if name in ids}
    tokens = tokenizer_settings(path).get("added_tokens_decoder", {})
    try:
        known = {token["content"]: int(number) for number, token in tokens.items()}
    except ValueError as error:
        raise UserError(f"{path / SETTINGS} has an added token whose id is no number") from error
    last = max(ids.values(), default=0) + 1
    for place, name in enumerate(_named_tokens(path)):
        known.setdefault(name, last + place)
    added |= {name: number for name, number in known.items() if name not in ids}
    return {**ids, **added}, added


def _named_tokens(path: Path) -> list[str]:
    """Return the names of languages and other entries beyond the subwords, in their order."""
    settings = tokenizer_settings(path)
    found = [
        token.get("content") if isinstance(token, dict) else token
        for record in (tokenizer_settings(path, SPECIAL), settings)
        for name in _LISTS
        for token in record.get(name) or []
    ]
    names = dict.fromkeys(token for token in found if isinstance(token, str))
    named = [name for name in names if name not in places.FIRST_ENTRIES]
    if not named and (path / TABLE).exists():
        codes = _OF_M2M100.get(settings.get("language_codes") or "m2m100", "")
        named = [f"__{code}__" for code in codes.split()]
    return named
