"""The files of a model of marian-nmt, and the reader of its vocabularies.

`decoder.yml` names the files, all of which have to be in its own directory; no file is trusted.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from jaxtyping import Int

from t2t_jax.data.vocabularies.paired import paired_vocabulary
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.errors import UserError, in_one_line
from t2t_jax.interchange.model_files import SIZE, beside, read_bytes, read_splitter
from t2t_jax.interchange.numbering import END, NONE, UNKNOWN, new_order
from t2t_jax.system.records import Between, Schema, check

Order = Int[np.ndarray, "_"]
"""The id in marian-nmt of each of our entries; see `interchange.numbering`."""

_TABLES = (".yml", ".yaml", ".json")
_SETTINGS = "decoder.yml"
_SEARCH = Schema({}, {"beam-size": SIZE, "normalize": Between(float, 0, 100)})
_MOST_SETTINGS = 100_000
_MOST_LEVELS = 20
_LONGEST_VALUE = 255
# The parser in C, where PyYAML was built with it: tables have many thousands of lines.
_PARSER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


class MarianFiles(NamedTuple):
    """The files of a model of marian-nmt."""

    model: Path
    """The `.npz` file of the parameters."""
    source: Path
    """The file of the vocabulary of sources."""
    target: Path
    """The file of the vocabulary of targets, often the same file."""
    settings: Mapping[str, Any]
    """The contents of `decoder.yml`; empty if there is no such file."""


def find_files(path: Path) -> MarianFiles:
    """Return the files of a model, given its `.npz` file or a directory with one.

    Raises:
      UserError: the directory has no model, or several; or it has not two vocabularies; or a
        file that is named lies outside of the directory.
    """
    if not path.exists():
        raise UserError(f"there is no {path}; name the .npz file of a model, or its directory")
    directory = path if path.is_dir() else path.parent
    settings_file = directory / _SETTINGS
    settings = _read_settings(settings_file)
    model = path
    if path.is_dir():
        found = sorted(file.name for file in path.glob("*.npz"))
        names = _names(settings, "models", settings_file) or found
        if len(names) != 1:
            raise UserError(
                f"{path} has {len(names)} models of marian-nmt; name the .npz file of one"
            )
        model = beside(settings_file, names[0])
    own = directory / f"{model.name}.{_SETTINGS}"
    if own.exists():
        settings_file, settings = own, _read_settings(own)
    vocabularies = [
        beside(settings_file, name) for name in _names(settings, "vocabs", settings_file)
    ] or _only_vocabulary(directory)
    if len(vocabularies) != 2:
        raise UserError(
            f"{settings_file} has to name two vocabularies, of sources and of targets, as "
            "`vocabs: [vocab.spm, vocab.spm]`"
        )
    source, target = vocabularies
    return MarianFiles(model, source, target, settings)


def read_marian_vocabulary(
    files: MarianFiles, sizes: tuple[int, int]
) -> tuple[Vocabulary, tuple[Order, Order]]:
    """Return the vocabulary of a model, in the order of this package.

    A table may have more subwords than the model: those beyond are unknown to the model. A table
    may have fewer: the other entries get names that no text has. marian-nmt does the same.

    Args:
      sizes: the number of entries of the model, of sources and of targets.

    Returns:
      The vocabulary; and for sources and for targets, the original's id of each entry.

    Raises:
      UserError: a file is missing or damaged, or is no vocabulary of this model.
    """
    sides = (files.source, sizes[0]), (files.target, sizes[1])
    given = {side: _pieces(*side) for side in dict.fromkeys(sides)}  # a shared one is read once
    (source, source_order), (target, target_order) = (
        new_order(given[side], (NONE, given[side].index(END))) for side in sides
    )
    splitters = _splitter(files.source, "source"), _splitter(files.target, "target")
    for file in splitters:
        read_splitter(file)
    models = read_bytes(splitters[0]), read_bytes(splitters[1])
    vocabulary = paired_vocabulary(models, (source, target))
    return vocabulary, (source_order, target_order)


def parse_yaml(text: bytes, where: str) -> dict[str, Any]:
    """Parse options or settings in YAML, without executing anything in the text.

    Raises:
      UserError: the text is no such YAML, or is too long, or is nested too deeply.
    """
    try:
        if len(text) > _MOST_SETTINGS:
            raise ValueError(f"it has more than {_MOST_SETTINGS:,} bytes")
        _check_events(yaml.parse(text, _PARSER))
        values = yaml.safe_load(text)
    except Exception as error:  # a value that is not of the type that it names may raise anything
        raise UserError(f"{where} is no YAML: {in_one_line(error)}") from error
    if not isinstance(values, dict):
        raise UserError(f"{where} has no options of marian-nmt")
    return values


def _check_events(events: Iterable[yaml.Event]) -> None:
    """Refuse YAML by which a short text can become large: aliases, deep nesting, long values."""
    depth = 0
    for event in events:
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _MOST_LEVELS or isinstance(event, yaml.AliasEvent):
            raise ValueError("it is nested too deeply, or names a value that stands elsewhere")
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > _LONGEST_VALUE:
            raise ValueError(f"it has a value of {len(event.value):,} characters")


def _pieces(file: Path, size: int) -> list[str]:
    """Return the subword of each entry of a model, in the order of marian-nmt."""
    if file.suffix == ".spm":
        pieces = _pieces_of_model(file)
        if len(pieces) != size:
            raise UserError(f"{file} has {len(pieces)} subwords, and the model {size}: not its own")
    elif file.suffix in _TABLES:
        pieces = [f"<unused {number}>" for number in range(size)]
        for piece, number in _read_table(file).items():
            if number < size:
                pieces[number] = piece
    else:
        raise UserError(
            f"the vocabulary {file} is neither a SentencePiece model (.spm) nor a table of ids "
            "(.yml), and others are not imported"
        )
    if missing := {END, UNKNOWN} - set(pieces):
        raise UserError(f"the vocabulary {file} has no {min(missing)}, which marian-nmt needs")
    return pieces


def _pieces_of_model(file: Path) -> list[str]:
    processor = read_splitter(file)
    pieces = [processor.id_to_piece(number) for number in range(processor.get_piece_size())]
    pieces[processor.unk_id()] = UNKNOWN
    if processor.eos_id() != NONE:
        pieces[processor.eos_id()] = END
    return pieces


def _read_table(file: Path) -> dict[str, int]:
    """Read the id of each subword of a table."""
    content = read_bytes(file)
    try:
        if file.suffix == ".json":
            table = json.loads(content)
        else:
            _check_events(yaml.parse(content, _PARSER))
            table = yaml.load(content, _PARSER)  # as text: `no` and `~` are subwords
        ids = {str(piece): int(number) for piece, number in table.items()}
    except (yaml.YAMLError, RecursionError, ValueError, TypeError, AttributeError) as error:
        raise UserError(
            f"{file} is no table of the id of each subword: {in_one_line(error)}"
        ) from error
    if len(set(ids.values())) != len(ids) or min(ids.values(), default=0) < 0:
        raise UserError(f"{file} is no table of the id of each subword: an id is there twice")
    return ids


def _splitter(vocabulary: Path, side: str) -> Path:
    """Return the file of the SentencePiece model that splits text into a vocabulary's subwords."""
    if vocabulary.suffix == ".spm":
        return vocabulary
    model = vocabulary.with_name(f"{side}.spm")
    if model.exists():
        return model
    if vocabulary.with_name(f"{side}.bpe").exists():
        raise UserError(
            f"the text of {vocabulary} is split by Moses and {side}.bpe, which are not imported; "
            "import a model that is trained with SentencePiece"
        )
    raise UserError(
        f"{vocabulary} says which id a subword has, but nothing splits text into subwords; put the "
        f"SentencePiece model of the {side}s beside it, as {side}.spm"
    )


def _only_vocabulary(directory: Path) -> list[Path]:
    """Return the one vocabulary of a directory, for both sides; [] if there is none, or several."""
    for pattern in ("*vocab.yml", "*.spm"):
        found = sorted(directory.glob(pattern))
        if len(found) == 1:
            return found * 2
    return []


def _read_settings(file: Path) -> dict[str, Any]:
    """Return the settings of a `decoder.yml`; {} if there is no such file."""
    if not file.exists():
        return {}
    settings = parse_yaml(read_bytes(file), str(file))
    try:
        check(settings, _SEARCH)
    except ValueError as error:
        raise UserError(f"{file} is damaged: {error}; copy it anew, or mend it") from error
    return settings


def _names(settings: Mapping[str, Any], key: str, file: Path) -> list[str]:
    """Return the names of files that the settings list under a key; [] if they list none."""
    names = settings.get(key) or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{key} in {file} is no list of files")
    return names
