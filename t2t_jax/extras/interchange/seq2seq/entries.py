"""Read the vocabulary entries of a model directory, and the file that splits text into them.

    DIR/tokenizer.json                  a tokenizer of the library tokenizers, with all entries; or
    DIR/sentencepiece.bpe.model         a SentencePiece model, with
    DIR/vocab.json                      the id of each subword (M2M100)

Without vocab.json, `<s>`, `<pad>`, `</s>` and `<unk>` have the ids 0 to 3, and subwords have their
SentencePiece id plus one. Languages follow the subwords, in the order of special_tokens_map.json
or tokenizer_config.json, or else in M2M100's order.
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
_M2M100_LANGUAGES = {
    "m2m100": "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga "
    "gd gl gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml "
    "mn mr ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn "
    "tr uk ur uz vi wo xh yi yo zh zu",
    "wmt21": "en ha is ja cs ru zh de",
}
"""The languages of M2M100 and of its WMT 2021 successor, ordered by id."""
_LANGUAGE = re.compile(r"__([a-z]{2,4})__|([a-z]{2,3}_[A-Za-z]{2,4})")


class Entries(NamedTuple):
    """The vocabulary of a Hugging Face model. All ids are those of the model."""

    file: Path
    """The tokenizer file, which splits text."""
    pieces: list[str]
    """The text of each id."""
    silent: frozenset[int]
    """The ids of entries without text, such as special tokens and language tags."""
    languages: dict[str, int]
    """The id of each language's tag, by language code."""

    def vocabulary(self, leading_ids: list[int], bos_id: int) -> tuple[Vocabulary, places.Order]:
        """Return the vocabulary that splits text, and the model's id of each vocabulary entry.

        Args:
          leading_ids: the model's ids of the entries that come first; see `new_order`.
          bos_id: the model's id of `<s>`.
        """
        unknown_id = self.pieces.index(places.UNKNOWN)
        is_distinct = len({*leading_ids}) == len(leading_ids) and unknown_id not in leading_ids[:2]
        if not is_distinct or max(*leading_ids, bos_id) >= len(self.pieces):
            raise UserError(
                f"{self.file.with_name('config.json')} has special ids that do not fit the "
                f"vocabulary: padding, end of sentence and others are {[*leading_ids, bos_id]}; "
                "copy the files of one model"
            )
        names, old_ids = places.new_order(self.pieces, leading_ids)
        data = model_files.read_bytes(self.file)
        with model_files.naming_file(self.file):
            if self.file.name != TOKENIZER:
                return paired_vocabulary((data, data), (names, names)), old_ids
            # tokenizer.json does not define the entries that only the matrices have.
            ids = [places.NONE if self.pieces[n] == unused(n) else n for n in old_ids.tolist()]
            return pretrained_vocabulary(data.decode(), ids, names.index(places.UNKNOWN)), old_ids


def unused(token_id: int) -> str:
    """Return the placeholder for an id without an entry in the vocabulary: <unused NUMBER>."""
    return f"<unused {token_id}>"


def read_entries(path: Path, vocab_size: int) -> Entries:
    """Read the vocabulary entries of the model in a directory.

    Args:
      vocab_size: the number of rows of the embedding matrix.
    """
    file = path / TOKENIZER
    if file.exists():
        ids, textless = model_files.read_tokenizer(file)
    else:
        file = path / SENTENCEPIECE
        ids, textless = _read_sentencepiece(file)
    names = {hf_id: name for name, hf_id in ids.items()}
    if len(names) != len(ids) or not all(0 <= hf_id < vocab_size for hf_id in names):
        raise UserError(
            f"{path} does not give each of {len(ids):,} entries an id of its own below "
            f"vocab_size={vocab_size:,}, which config.json sets; copy the files of one model"
        )
    for name in (places.PAD, places.END, places.UNKNOWN):
        if name not in ids:
            raise UserError(f"{file} has no entry {name}, which every model needs; copy it again")
    pieces = [names.get(hf_id, unused(hf_id)) for hf_id in range(vocab_size)]
    silent = {hf_id for hf_id in range(vocab_size) if hf_id not in names} | set(textless.values())
    languages = {
        (match[1] or match[2]): hf_id
        for name, hf_id in sorted(textless.items(), key=lambda item: item[1])
        if (match := _LANGUAGE.fullmatch(name))
    }
    return Entries(file, pieces, frozenset(silent - {ids[places.UNKNOWN]}), languages)


def tokenizer_settings(path: Path, name: str = SETTINGS) -> Record:
    """Return the fields of tokenizer_config.json or a similar file; {} if it does not exist."""
    file = path / name
    return model_files.read_json(file, _SETTINGS) if file.exists() else {}


def language_codes(languages: Sequence[str]) -> dict[str, str]:
    """Return the `language_codes` field of M2M100's tokenizer_config.json, or {} if none fits."""
    names = [name for name, codes in _M2M100_LANGUAGES.items() if codes.split() == list(languages)]
    return {"language_codes": names[0]} if names else {}


def _read_sentencepiece(file: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Return the ids of all entries of a SentencePiece model, and of the entries without text."""
    path = file.parent
    if not file.exists():
        raise UserError(
            f"{path} has neither {TOKENIZER} nor {SENTENCEPIECE}, and one of them must split text; "
            "copy it from the original model"
        )
    splitter = model_files.read_splitter(file)
    if (path / TABLE).exists():
        ids = model_files.read_json(path / TABLE, dict[str, model_files.ID])
    else:
        pieces = [splitter.id_to_piece(n) for n in range(splitter.get_piece_size())]
        special = {splitter.unk_id(), splitter.bos_id(), splitter.eos_id()}
        if special != {0, 1, 2}:
            raise UserError(f"{file} does not use the ids 0 to 2 for <unk>, <s> and </s>")
        ids = {name: token_id for token_id, name in enumerate(places.FIRST_ENTRIES)}
        ids |= {piece: token_id + 1 for token_id, piece in enumerate(pieces) if token_id > 2}
    textless = {name: ids[name] for name in places.FIRST_ENTRIES if name in ids}
    tokens = tokenizer_settings(path).get("added_tokens_decoder", {})
    try:
        extra_ids = {token["content"]: int(token_id) for token_id, token in tokens.items()}
    except ValueError as error:
        raise UserError(f"{path / SETTINGS} has an added token whose id is not a number") from error
    next_id = max(ids.values(), default=0) + 1
    for token_id, name in enumerate(_extra_tokens(path), next_id):
        extra_ids.setdefault(name, token_id)
    textless |= {name: token_id for name, token_id in extra_ids.items() if name not in ids}
    return {**ids, **textless}, textless


def _extra_tokens(path: Path) -> list[str]:
    """Return the language tags and other tokens that follow the subwords, ordered by id."""
    settings = tokenizer_settings(path)
    tokens = [
        token.get("content") if isinstance(token, dict) else token
        for record in (tokenizer_settings(path, SPECIAL), settings)
        for name in _LISTS
        for token in record.get(name) or []
    ]
    names = dict.fromkeys(token for token in tokens if isinstance(token, str))
    extra = [name for name in names if name not in places.FIRST_ENTRIES]
    # M2M100's files do not list the languages: their order is fixed in transformers.
    if not extra and (path / TABLE).exists():
        codes = _M2M100_LANGUAGES.get(settings.get("language_codes") or "m2m100", "")
        extra = [f"__{code}__" for code in codes.split()]
    return extra
