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
    """Make a run directory of a model in another format, all of it or nothing.

    Nothing in the model's files is executed. The run is used as any other: to translate, score,
    ensemble and export, or to continue text.
    """

    examples: ClassVar = ("marian models/opus-mt-en-de runs/opus",)
    format: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FORMAT", help=_HELP)] = (
        tyro.MISSING
    )
    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")] = tyro.MISSING
    """Directory of the model."""
    workdir: NewRun = tyro.MISSING
    """The run directory to write."""

    positions: Literal["huggingface", "marian"] = "huggingface"
    """For marian: the sinusoids of transformers, or those of Marian's C++ toolkit, with which
    OPUS-MT trained its models."""

    source_language: str | None = None
    """Source language under the name for the run, such as en where the model's files have eng; of a
    model of several, the one that it is to read first; None is the one in the files."""
    target_language: str | None = None
    """Target language under the name for the run; of a model of several, the one that it is to
    write first; None is the one in the files."""

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
