"""The command `t2t-jax import`, which converts a model in another format to a run directory."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro

from t2t_jax.commands.flag_table import NewRun
from t2t_jax.extras.interchange import formats

_HELP = formats.described_formats(formats.readable())


@dataclass(frozen=True)
class ImportCommand:
    """Create a run directory from a model in another format.

    The command writes the run directory atomically, and executes no code from the model files. The
    run works like any other: translate, score, ensemble, export, or generate text.
    """

    examples: ClassVar = ("marian models/opus-mt-en-de runs/opus",)
    format: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FORMAT", help=_HELP)] = (
        tyro.MISSING
    )
    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")] = tyro.MISSING
    """Directory of the model to import."""
    workdir: NewRun = tyro.MISSING
    """Run directory to write."""

    positions: Literal["huggingface", "marian"] = "huggingface"
    """For marian, the sinusoidal positions: as in transformers, or as in Marian's C++ toolkit, with
    which OPUS-MT models were trained."""

    source_language: str | None = None
    """Name of the source language in the run, such as en if the model files say eng. For a
    multilingual model, the default source language. None is the language in the model files."""
    target_language: str | None = None
    """Name of the target language in the run. For a multilingual model, the default target
    language. None is the language in the model files."""

    def run(self) -> int:
        """Import the model into a new run directory, and return exit code 0."""
        from t2t_jax.extras.interchange.run import write_run

        formats.check_format(self.format, formats.readable())
        options = {name: getattr(self, name) for name in formats.FORMATS[self.format].options}
        model = formats.read_model(self.format, self.path, **options)
        languages = {"source": self.source_language, "target": self.target_language}
        changes = {f"data.{side}_language": name for side, name in languages.items() if name}
        model = replace(model, config=model.config.replace(changes))
        write_run(model, self.workdir, {"format": self.format, "path": str(self.path)})
        print(f"{self.workdir} is a run with the model from {self.path}")
        return 0
