"""The table of the formats that models are written in and read from: a row and a form for each.

A form is a module of `interchange`, or an object in one. That of a format that is written has

    VOCABULARIES                        the classes of vocabularies that it can hold
    carried(config)                     the fields that it can hold; see `interchange.carried`
    write(model, directory)             fill an empty directory, with weights in `dtype=`, where the
                                        row of the format has several

and that of a format that is read has

    read(path, **options)               return the `PortableModel` in a file or directory, or raise
                                        the `UserError`s of `read_model`
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from t2t_jax.config.registry import Rows, load_named
from t2t_jax.errors import UserError, needs_extra
from t2t_jax.system.atomic_file import writing_directory
from t2t_jax.system.opening import check_directory_name

if TYPE_CHECKING:
    from t2t_jax.interchange.portable import PortableModel


class Format(NamedTuple):
    """A format, whose form is the module of its name in `interchange`, or what `place` names."""

    written: str = ""
    """A phrase about the written files; empty for a format that is only read."""
    read: str = ""
    """A phrase about the files to read; empty for a format that is only written."""
    options: tuple[str, ...] = ()
    """The flags of `t2t-jax import` that its `read` takes by name."""
    dtypes: tuple[str, ...] = ("float32",)
    """The dtypes of weights that its `write` can have, the usual one first."""
    place: str = ""
    """The module and the name of its form, as `load_named` takes them."""


_LANGUAGES = "source_language", "target_language"
_OF_TRANSFORMERS = "what save_pretrained of transformers wrote for"
_SEQ2SEQ = "t2t_jax.interchange.seq2seq.forms"

FORMATS = Rows(
    run=Format("the run without its checkpoints, which opens as the run does"),
    safetensors=Format(
        "every parameter under its name in the paper; goes in again bit for bit",
        "what export --to safetensors wrote",
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
    m2m100=Format(
        "an M2M100 or NLLB for transformers",
        f"{_OF_TRANSFORMERS} an M2M100 or NLLB",
        options=_LANGUAGES,
        place=f"{_SEQ2SEQ}:M2M100",
    ),
    mbart=Format(
        "an mBART for transformers",
        f"{_OF_TRANSFORMERS} an mBART",
        options=_LANGUAGES,
        place=f"{_SEQ2SEQ}:MBART",
    ),
    bart=Format(
        "a BART for transformers",
        f"{_OF_TRANSFORMERS} a BART",
        options=_LANGUAGES,
        place=f"{_SEQ2SEQ}:BART",
    ),
)
"""All formats by name."""

WRITTEN = Rows(**{name: one.written for name, one in FORMATS.items() if one.written})
READ = Rows(**{name: one.read for name, one in FORMATS.items() if one.read})
"""The formats that are written, and those that are read, each with its phrase."""


def described_formats(formats: Rows[str]) -> str:
    """Return the help of a flag that names one of `WRITTEN` or `READ`."""
    return f"The format: {', '.join(f'{name} ({phrase})' for name, phrase in formats.items())}."


def write_model(
    model: "PortableModel", name: str, directory: Path, dtype: str | None = None
) -> None:
    """Write a model in a format: all of the directory, or nothing.

    Args:
      name: one of the formats `WRITTEN`.
      directory: a directory that does not exist yet, or is empty.
      dtype: dtype of the weights, such as "int8"; None is the usual one of the format.

    Raises:
      UserError: the format cannot have such a model or dtype, a library is missing, or the
        directory cannot be written.
    """
    from t2t_jax.interchange.carried import refuse_other_models

    check_dtype(name, dtype)
    form, (usual, *others) = form_of(name), FORMATS[name].dtypes
    refuse_other_models(name, form, model)
    check_directory_name(directory)
    with writing_directory(directory) as place:
        form.write(model, place, **({"dtype": dtype or usual} if others else {}))


def check_dtype(name: str, dtype: str | None) -> None:
    """Refuse a dtype of weights that a format cannot have; None is the usual one.

    Raises:
      UserError: the format cannot have weights in this dtype.
    """
    known = FORMATS[name].dtypes
    if dtype not in (None, *known):
        raise UserError(
            f"{name} is not written with weights in {dtype}; choose {' or '.join(known)}"
        )


def read_model(name: str, path: Path, **options: Any) -> "PortableModel":
    """Read a model in a format. Nothing in its files is ever executed.

    Args:
      name: one of the formats `READ`.
      options: further arguments of the format's `read`.

    Raises:
      UserError: there is no such model, or its files are damaged, or it has an option that models
        of this package cannot have.
    """
    model: PortableModel = form_of(name).read(path, **options)
    return model


def form_of(name: str) -> Any:
    """Return the form of a format, which is one of `WRITTEN` or `READ`."""
    with needs_extra("interchange", f"the format {name}"):
        if place := FORMATS[name].place:
            return load_named(place)
        return import_module(f"t2t_jax.interchange.{name}")
