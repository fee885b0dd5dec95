"""The command that makes a run directory of a model in another format."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro

from t2t_jax.commands.flag_table import NewRun
from t2t_jax.commands.tables import print_line
from t2t_jax.extras.interchange import formats

_HELP = formats.described_formats(formats.readable())


@dataclass(frozen=True)
class ImportCommand:
    """Make a run directory from a model in another format.

    The run directory is written atomically, and no code from the model files is executed. The run
    works like any other: translate, score, ensemble, export, or generate text.
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
    """For marian, the positional sinusoids: as in transformers, or as in Marian's C++ toolkit,
    which OPUS-MT models were trained with."""

    source_language: str | None = None
    """Name of the source language in the run, such as en if the model files say eng. For a
    multilingual model, the default source language. None is the language in the files."""
    target_language: str | None = None
    """Name of the target language in the run. For a multilingual model, the default target
    language. None is the language in the files."""

    def run(self) -> int:
        """Write the run directory, and return the exit code."""
        from t2t_jax.extras.interchange.runs import write_run

        formats.check_format(self.format, formats.readable())
        options = {name: getattr(self, name) for name in formats.FORMATS[self.format].options}
        model = formats.read_model(self.format, self.path, **options)
        named = {"source": self.source_language, "target": self.target_language}
        languages = {f"data.{side}_language": name for side, name in named.items() if name}
        model = replace(model, config=model.config.replace(languages))
        write_run(model, self.workdir, {"format": self.format, "path": str(self.path)})
        print_line(f"{self.workdir} is a run with the model of {self.path}")
        return 0
