"""The formats that models are written in and read from: one module each, behind one interface.

A module of a format that is written has

    DTYPES                              the dtypes of weights that it can have, the usual one first
    VOCABULARIES                        the kinds of vocabularies that it carries
    carried(config)                     what of a config it carries; see `interchange.carried`
    write(model, directory, dtype)      fill an empty directory

and a module of a format that is read has

    read(path, **options)               the `PortableModel` that is there
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from t2t_jax.errors import UserError, needs_extra
from t2t_jax.interchange.carried import refuse_other_models
from t2t_jax.interchange.portable import PortableModel
from t2t_jax.system.atomic_file import writing_directory

WRITTEN: Mapping[str, str] = MappingProxyType(
    {
        "safetensors": "every parameter under its name in the paper; goes in again bit for bit",
        "ctranslate2": "a directory for CTranslate2, a fast engine for CPUs and GPUs",
        "marian": "a Marian model for the library transformers of Hugging Face",
        "gpt2": "a GPT-2 for transformers, from a language model that came from one",
        "bert": "a BERT for transformers, from an encoder that came from one",
        "vit": "a ViT for transformers, from an encoder over images",
        "program": "compiled programs for CPU, GPU and TPU, which JAX alone runs",
    }
)
"""The formats that models are written in, with a line about each."""

READ: Mapping[str, str] = MappingProxyType(
    {
        "safetensors": "what `t2t-jax export --to safetensors` has written",
        "marian": "a Marian model of the library transformers of Hugging Face, as OPUS-MT's are",
        "gpt2": "a GPT-2 of transformers, with its tokenizer.json",
        "bert": "a BERT of transformers for masked words, with its tokenizer.json",
        "vit": "a ViT of transformers for image classification",
        "fairseq": "a checkpoint of fairseq's transformer, with its dictionaries",
        "marian-nmt": "a model of marian-nmt, the toolkit in C++: an .npz and its vocabularies",
    }
)
"""The formats that models are read from, with a line about each."""


def write_model(model: PortableModel, name: str, directory: Path, dtype: str | None = None) -> None:
    """Write a model in a format: all of the directory, or nothing.

    Args:
      model: the model.
      name: one of the formats `WRITTEN`.
      directory: a directory that is not there yet, or is empty.
      dtype: dtype of the weights, such as "int8"; None is what is usual for the format.

    Raises:
      UserError: the format cannot have such a model or such a dtype, a library is missing, or the
        directory cannot be written.
    """
    check_dtype(name, dtype)
    form = form_of(name)
    refuse_other_models(name, form, model)
    with writing_directory(directory) as place:
        form.write(model, place, dtype or form.DTYPES[0])


def check_dtype(name: str, dtype: str | None) -> None:
    """Refuse a dtype that a format cannot have.

    Args:
      name: one of the formats `WRITTEN`.
      dtype: dtype of the weights; None is what is usual for the format.

    Raises:
      UserError: it cannot have it.
    """
    known = form_of(name).DTYPES
    if dtype not in (None, *known):
        raise UserError(
            f"{name} is not written with weights in {dtype}; choose {' or '.join(known)}"
        )


def read_model(name: str, path: Path, **options: Any) -> PortableModel:
    """Read a model of a format. Nothing in its files is ever executed.

    Args:
      name: one of the formats `READ`.
      path: its directory or file.
      options: what else the format's `read` takes.

    Raises:
      UserError: there is no such model, or its files are damaged, or it has what models of this
        package cannot have.
    """
    model: PortableModel = form_of(name).read(path, **options)
    return model


def form_of(name: str) -> Any:
    """The module of a format.

    Args:
      name: one of the formats `WRITTEN` or `READ`.
    """
    with needs_extra("interchange", f"the format {name}"):
        return import_module(f"t2t_jax.interchange.{name.replace('-', '_')}")
