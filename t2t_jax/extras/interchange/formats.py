"""List the formats of exports and imports, and write or read models.

A module or an object implements each format. A format that exports models defines

    VOCABULARIES                        the vocabulary classes that the format can hold
    carried(config)                     the fields that the format can hold; see `carried.py`
    write(model, directory, dtype)      fill an empty directory; `dtype` only with several dtypes

A format that imports models defines

    read(path, **options)               return the `PortableModel` in a directory
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from t2t_jax.config.registry import Registry
from t2t_jax.errors import UserError
from t2t_jax.plugins import load
from t2t_jax.system.atomic_file import writing_directory
from t2t_jax.system.opening import check_directory_name
from t2t_jax.version import removed_feature

if TYPE_CHECKING:
    from t2t_jax.extras.interchange.portable import PortableModel


class Format(NamedTuple):
    """A format for export, import or both."""

    written: str = ""
    """The description for `t2t-jax export --help`; empty for a format without export."""
    read: str = ""
    """The description for `t2t-jax import --help`; empty for a format without import."""
    options: tuple[str, ...] = ()
    """The flags of `t2t-jax import` that `read` takes as keyword arguments."""
    dtypes: tuple[str, ...] = ("float32",)
    """The dtypes in which `write` can store parameters, the default first."""
    object: str = ""
    """The implementation as MODULE:NAME; empty for the module with the name of the format."""


_SAVE_PRETRAINED = "what save_pretrained of transformers wrote for"


def _seq2seq(model: str, name: str) -> Format:
    """Return the format of a transformers model that the constant `name` implements."""
    return Format(
        f"{model} for transformers",
        f"{_SAVE_PRETRAINED} {model}",
        options=("source_language", "target_language"),
        object=f"t2t_jax.extras.interchange.seq2seq.format:{name}",
    )


FORMATS = Registry(
    "",
    "formats",
    run=Format(
        "the run without its checkpoints; every command opens it as a run",
        dtypes=("float32", "bfloat16"),
    ),
    safetensors=Format(
        "every parameter under its name in the paper; float32 keeps every bit",
        "what export --to safetensors wrote",
        dtypes=("float32", "bfloat16"),
    ),
    ctranslate2=Format(
        "a fast engine for CPUs and GPUs",
        dtypes=("float32", "float16", "bfloat16", "int8", "int8_float16", "int8_bfloat16"),
    ),
    marian=Format(
        "a Marian model for the library transformers of Hugging Face",
        f"{_SAVE_PRETRAINED} a Marian model, such as OPUS-MT's",
        options=("positions",),
    ),
    gpt2=Format("a GPT-2 for transformers", f"{_SAVE_PRETRAINED} GPT2LMHeadModel"),
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
"""Formats that version 0.3 removed. BERT, FSMT, T5 and ViT keep their `model_type` as the name."""


def writable() -> Registry[str]:
    """Return the descriptions of all formats with export, by name."""
    return Registry("", **{name: row.written for name, row in FORMATS.each() if row.written})


def readable() -> Registry[str]:
    """Return the descriptions of all formats that can be imported, by name."""
    return Registry("", **{name: row.read for name, row in FORMATS.each() if row.read})


def described_formats(formats: Registry[str]) -> str:
    """Return the help text of a flag that chooses one of the formats."""
    return f"The format: {', '.join(f'{name} ({phrase})' for name, phrase in formats.items())}."


def check_format(name: str, formats: Registry[str]) -> None:
    """Raise a `UserError` if a name is not in a table of formats, or if version 0.3 removed it."""
    if name in REMOVED_FORMATS:
        raise removed_feature(name, REMOVED_FORMATS[name])
    formats.check("format", name)


def check_written(name: str, dtype: str | None) -> None:
    """Raise a `UserError` if a format has no export, or cannot store parameters in a dtype."""
    check_format(name, writable())
    dtypes = FORMATS[name].dtypes
    if dtype not in (None, *dtypes):
        raise UserError(f"{name} cannot store parameters in {dtype}; choose {' or '.join(dtypes)}")


def write_model(
    model: "PortableModel", name: str, directory: Path, dtype: str | None = None
) -> None:
    """Export a model to a directory atomically.

    The directory also gets `provenance.json`, if the run recorded its software.

    Args:
      name: a format from `writable`.
      directory: a missing or empty directory.
      dtype: dtype of the parameters, such as "int8"; None is the default of the format.

    Raises:
      UserError: the format cannot hold the model, a library is missing, or writing fails.
    """
    from t2t_jax.extras.interchange.carried import refuse_other_models
    from t2t_jax.workdir import PROVENANCE

    check_written(name, dtype)
    writer, dtypes = implementation(name), FORMATS[name].dtypes
    refuse_other_models(name, writer, model)
    check_directory_name(directory)
    with writing_directory(directory) as new_directory:
        options = {"dtype": dtype or dtypes[0]} if len(dtypes) > 1 else {}
        writer.write(model, new_directory, **options)
        if PROVENANCE in model.records:
            (new_directory / PROVENANCE).write_bytes(model.records[PROVENANCE])


def read_model(name: str, path: Path, **options: Any) -> "PortableModel":
    """Import a model from a directory, without executing any code from its files.

    Args:
      name: a format from `readable`.
      options: flags of the format; see `Format.options`.

    Raises:
      UserError: the files are missing or damaged, or t2t_jax lacks an option of the model.
    """
    check_format(name, readable())
    model: PortableModel = implementation(name).read(path, **options)
    return model


def implementation(name: str) -> Any:
    """Return the module or object that implements a format."""
    if path := FORMATS[name].object:
        return load(path)
    return import_module(f"t2t_jax.extras.interchange.{name}")
