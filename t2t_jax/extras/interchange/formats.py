"""The table of the formats that models are exported to and imported from.

Each format has an implementation: a module of `interchange`, or an object in one. If the format is
written, its implementation has

    VOCABULARIES                        the classes of vocabularies that it can hold
    carried(config)                     the fields that it can hold; see `interchange.carried`
    write(model, directory)             fill an empty directory; with `dtype=` for a format that
                                        has several dtypes

and if the format is read,

    read(path, **options)               return the `PortableModel` in a directory, or raise
                                        the `UserError`s of `read_model`
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from t2t_jax.config.registry import Rows
from t2t_jax.errors import UserError
from t2t_jax.plugins import load
from t2t_jax.system.atomic_file import writing_directory
from t2t_jax.system.opening import check_directory_name
from t2t_jax.version import removed_feature

if TYPE_CHECKING:
    from t2t_jax.extras.interchange.portable import PortableModel


class Format(NamedTuple):
    """A format."""

    written: str = ""
    """A phrase about the written files; empty for a format that is only read."""
    read: str = ""
    """A phrase about the files to read; empty for a format that is only written."""
    options: tuple[str, ...] = ()
    """The flags of `t2t-jax import` that its `read` takes by name."""
    dtypes: tuple[str, ...] = ("float32",)
    """The dtypes of weights that its `write` can have, the usual one first."""
    object: str = ""
    """The implementation, as MODULE:NAME; empty for the module with the format's name."""


_OF_TRANSFORMERS = "what save_pretrained of transformers wrote for"


def _seq2seq(model: str, name: str) -> Format:
    """Return the format of a kind of encoder-decoders of transformers."""
    return Format(
        f"{model} for transformers",
        f"{_OF_TRANSFORMERS} {model}",
        options=("source_language", "target_language"),
        object=f"t2t_jax.extras.interchange.seq2seq.format:{name}",
    )


FORMATS = Rows(
    "formats",
    run=Format(
        "the run without its checkpoints, which opens as the run does",
        dtypes=("float32", "bfloat16"),
    ),
    safetensors=Format(
        "every parameter under its name in the paper; in float32 it goes in again bit for bit",
        "what export --to safetensors wrote",
        dtypes=("float32", "bfloat16"),
    ),
    ctranslate2=Format(
        "a fast engine for CPUs and GPUs",
        dtypes=("float32", "float16", "bfloat16", "int8", "int8_float16", "int8_bfloat16"),
    ),
    marian=Format(
        "a Marian model for the library transformers of Hugging Face",
        f"{_OF_TRANSFORMERS} a Marian model, such as OPUS-MT's",
        options=("positions",),
    ),
    gpt2=Format("a GPT-2 for transformers", f"{_OF_TRANSFORMERS} GPT2LMHeadModel"),
    m2m100=_seq2seq("an M2M100 or NLLB", "M2M100"),
    mbart=_seq2seq("an mBART", "MBART"),
    bart=_seq2seq("a BART", "BART"),
)
"""All formats by name."""


REMOVED_FORMATS = {
    "bert": "BERT models",
    "fairseq": "fairseq checkpoints",
    "fsmt": "FSMT models",
    "marian-nmt": "models of Marian's C++ toolkit",
    "onnx": "ONNX graphs",
    "program": "compiled programs",
    "t5": "T5 models",
    "vit": "ViT models",
}
"""Formats that version 0.3 removed. The names of transformers' are its `model_type`s too."""


def writable() -> Rows[str]:
    """Return the formats that are written, each with its phrase."""
    return Rows(**{name: row.written for name, row in FORMATS.each() if row.written})


def readable() -> Rows[str]:
    """Return the formats that are read, each with its phrase."""
    return Rows(**{name: row.read for name, row in FORMATS.each() if row.read})


def described_formats(formats: Rows[str]) -> str:
    """Return the help of a flag that names one of some formats."""
    return f"The format: {', '.join(f'{name} ({phrase})' for name, phrase in formats.items())}."


def check_format(name: str, formats: Rows[str]) -> None:
    """Refuse a name that is not one of some formats.

    Raises:
      UserError: there is no such format, or version 0.3 removed it.
    """
    if name in REMOVED_FORMATS:
        raise removed_feature(name, REMOVED_FORMATS[name])
    formats.check("format", name)


def check_written(name: str, dtype: str | None) -> None:
    """Refuse a format that is not written, or a dtype of weights that it cannot have.

    Raises:
      UserError: the format is not one of `writable`, or cannot have weights in this dtype.
    """
    check_format(name, writable())
    dtypes = FORMATS[name].dtypes
    if dtype not in (None, *dtypes):
        raise UserError(
            f"{name} is not written with weights in {dtype}; choose {' or '.join(dtypes)}"
        )


def write_model(
    model: "PortableModel", name: str, directory: Path, dtype: str | None = None
) -> None:
    """Write a model in a format: all of the directory, or nothing.

    `provenance.json` beside it has the software that trained the model, if the run recorded it.

    Args:
      name: one of the formats `writable`.
      directory: a directory that does not exist yet, or is empty.
      dtype: dtype of the weights, such as "int8"; None is the usual one of the format.

    Raises:
      UserError: the format cannot have such a model or dtype, a library is missing, or the
        directory cannot be written.
    """
    from t2t_jax.extras.interchange.carried import refuse_other_models
    from t2t_jax.workdir import PROVENANCE

    check_written(name, dtype)
    format_, dtypes = implementation(name), FORMATS[name].dtypes
    refuse_other_models(name, format_, model)
    check_directory_name(directory)
    with writing_directory(directory) as partial:
        options = {"dtype": dtype or dtypes[0]} if len(dtypes) > 1 else {}
        format_.write(model, partial, **options)
        if PROVENANCE in model.records:
            (partial / PROVENANCE).write_bytes(model.records[PROVENANCE])


def read_model(name: str, path: Path, **options: Any) -> "PortableModel":
    """Read a model in a format. Nothing in its files is ever executed.

    Args:
      name: one of the formats `readable`.
      options: further arguments of the format's `read`.

    Raises:
      UserError: there is no such model, or its files are damaged, or it has an option that models
        of this package cannot have.
    """
    check_format(name, readable())
    model: PortableModel = implementation(name).read(path, **options)
    return model


def implementation(name: str) -> Any:
    """Return the module or object that reads and writes a format, `writable` or `readable`."""
    if place := FORMATS[name].object:
        return load(place)
    return import_module(f"t2t_jax.extras.interchange.{name}")
