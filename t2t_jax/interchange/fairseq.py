"""A reader of checkpoints of fairseq's `transformer`, of any version from 0.6 to 0.12.

    DIR/checkpoint_best.pt              the parameters and the options of the model
    DIR/dict.SRC.txt, dict.TGT.txt      the entries of the vocabulary, in the order of their ids
    DIR/bpecodes                        merges of subword-nmt or fastBPE, for words of Moses; or
    DIR/sentencepiece.bpe.model         a SentencePiece model

In fairseq, begin, padding, end and unknown have the ids 0 to 3, so rows of embeddings are moved. A
target begins with the end of a sentence, positions count from 2, and sinusoids are those of
tensor2tensor. Nothing in the files is executed.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t2t_jax.config import Config
from t2t_jax.data.vocabularies.moses import moses_vocabulary
from t2t_jax.data.vocabularies.paired import paired_vocabulary
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.errors import UserError
from t2t_jax.interchange.fairseq_arrays import (
    orders_of_rows,
    parameters_of_fairseq,
    renamed,
    with_position_table,
)
from t2t_jax.interchange.fairseq_settings import Options, model_fields, options_of
from t2t_jax.interchange.model_files import (
    beside,
    config_of,
    read_bytes,
    read_text,
    vocabulary_of,
)
from t2t_jax.interchange.numbering import BEGIN, END, OF_FAIRSEQ, PAD, UNKNOWN, new_order, rows_in
from t2t_jax.interchange.portable import PortableModel
from t2t_jax.interchange.tensors import Tensors
from t2t_jax.interchange.torch_file import read_torch_file, tensors_of

_FIRST = tuple(OF_FAIRSEQ.index(name) for name in (PAD, END, BEGIN, UNKNOWN))
_OVERWRITE = "#fairseq:overwrite"
_CODES = ("bpecodes", "codes", "code", "*.codes", "*.bpecodes")
_SENTENCEPIECE = ("*.model",)
_BEAM_SIZE = 5


def read(path: Path) -> PortableModel:
    """Read a checkpoint and the files of its vocabulary beside it.

    A directory stands for its `checkpoint_best.pt`, or for its only checkpoint.

    Raises:
      UserError: a file is missing or damaged, or is not of fairseq, or the model has an option that
        models of this package cannot have, or a library is missing.
    """
    file = _checkpoint_file(path)
    checkpoint = read_torch_file(file)
    options = options_of(checkpoint, file)
    fields = model_fields(options, file)
    languages = _languages(options, file)
    source, target = (_dictionary(beside(file, f"dict.{name}.txt")) for name in languages)
    fields |= {"data.source_language": languages[0], "data.target_language": languages[1]}
    config = _config(fields, source, target, file)
    weights = Tensors(file, dict(renamed(tensors_of(checkpoint["model"], file))))
    arrays = parameters_of_fairseq(weights, config.model)
    if "target_position" in arrays:
        config = with_position_table(config, len(arrays["target_position"]))
    (source_names, source_order), (target_names, target_order) = (
        new_order(pieces, _FIRST) for pieces in (source, target)
    )
    orders = orders_of_rows(config.model, source_order, target_order)
    for name, order in orders.items():
        if len(arrays[name]) != len(order):
            raise UserError(
                f"{file} has a matrix for {len(arrays[name])} entries, and the dictionary beside "
                f"it {len(order)}; put the dictionaries there that the model was trained with"
            )
    arrays |= {name: rows_in(arrays[name], order) for name, order in orders.items()}
    vocabulary = _vocabulary(file.parent, options, languages, (source_names, target_names))
    return PortableModel(config, vocabulary, arrays, _steps(checkpoint))


def _checkpoint_file(path: Path) -> Path:
    """Return the checkpoint that a path names, or the one in a directory."""
    if not path.is_dir():
        return path
    found = sorted(path.glob("*.pt"))
    best = path / "checkpoint_best.pt"
    if best in found or len(found) == 1:
        return best if best in found else found[0]
    names = ", ".join(file.name for file in found)
    raise UserError(
        f"{path} has {f'the checkpoints {names}; name one of them' if found else 'no checkpoint'}"
        f"{'' if found else ' (*.pt) of fairseq; name the directory that has one'}"
    )


def _languages(options: Options, file: Path) -> tuple[str, str]:
    if "source_lang" in options and "target_lang" in options:
        return options["source_lang"], options["target_lang"]
    raise UserError(
        f"{file} does not say what languages it translates between (source_lang, target_lang); "
        "choose a checkpoint of the task `translation`"
    )


def _dictionary(file: Path) -> list[str]:
    """Read the entry of each id of a dictionary."""
    pieces, known = list(OF_FAIRSEQ), set(OF_FAIRSEQ)
    for number, line in enumerate(read_text(file).removesuffix("\n").split("\n"), start=1):
        entry, _, count = line.rstrip().rpartition(" ")
        overwrites = count == _OVERWRITE
        if overwrites:
            entry, _, count = entry.rpartition(" ")
        if not (entry and count.isdecimal()):
            raise UserError(f"{file}, line {number}, is {line!r:.60}, no entry with its count")
        if entry in known and not overwrites:
            raise UserError(f"{file}, line {number}, has the entry {entry!r:.60} a second time")
        pieces.append(entry)
        known.add(entry)
    return pieces


def _config(
    fields: Mapping[str, Any], source: Sequence[str], target: Sequence[str], file: Path
) -> Config:
    """Return the config of the model, without the sizes that only the arrays have."""
    changes = {**fields, "data.vocab_size": len(target), "decoding.beam_size": _BEAM_SIZE}
    if not fields["model.share_embeddings"]:
        changes["model.source_vocab_size"] = len(source)
    elif source != target:
        raise UserError(
            f"{file} has one matrix for both languages, and the dictionaries beside it differ; put "
            "those there that the model was trained with"
        )
    return config_of(file, changes)


def _vocabulary(
    directory: Path,
    options: Options,
    languages: tuple[str, str],
    pieces: tuple[Sequence[str], Sequence[str]],
) -> Vocabulary:
    """Return the vocabulary, made with the one file of the directory that splits text."""
    found = {
        file: names is _SENTENCEPIECE
        for names in (_CODES, _SENTENCEPIECE)
        for name in names
        for file in sorted(directory.glob(name))
    }
    if len(found) != 1:
        raise UserError(
            f"{directory} has {' and '.join(file.name for file in found) or 'no file'} to split "
            "text with; leave one: bpecodes (of subword-nmt or fastBPE) or "
            "sentencepiece.bpe.model"
        )
    ((file, is_sentencepiece),) = found.items()
    with vocabulary_of(file):
        if is_sentencepiece:
            model = read_bytes(file)
            return paired_vocabulary((model, model), pieces)
        return moses_vocabulary(
            languages,
            _codes(read_text(file)),
            pieces,
            splits_dashes=not options.get("moses_no_dash_splits"),
            escapes=not options.get("moses_no_escape"),
        )


def _codes(text: str) -> str:
    """Return merges in the form of subword-nmt: fastBPE adds counts, and has no version line."""
    lines = [line.split(" ") for line in text.rstrip("\n").split("\n")]
    if not all(len(line) == 3 and line[2].isdecimal() for line in lines):
        return text
    return "\n".join(["#version: 0.2", *(f"{left} {right}" for left, right, _ in lines), ""])


def _steps(checkpoint: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the number of training steps as a tuple, or () if the checkpoint does not have it."""
    match checkpoint.get("optimizer_history"):
        case [*_, {"num_updates": int(steps)}] if steps >= 0:
            return (steps,)
    return ()
