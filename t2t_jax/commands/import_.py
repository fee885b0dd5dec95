"""The command that makes a run directory of a model in another format."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from t2t_jax.system.console import ResultConsole


@dataclass(frozen=True)
class ImportCommand:
    """Make a run directory of a model in another format, all of it or nothing.

    Nothing in the model's files is executed. The run translates, scores, ensembles and is exported
    as any other, or continues text, fills in words or labels images.
    """

    format: Annotated[
        Literal["safetensors", "marian", "marian-nmt", "fairseq", "gpt2", "bert", "vit"],
        tyro.conf.Positional,
    ] = tyro.MISSING
    """The format: safetensors (what export --to safetensors wrote), marian (what save_pretrained of
    transformers wrote for a Marian model, such as OPUS-MT's), marian-nmt (an .npz of marian-nmt, or
    its directory), fairseq (a checkpoint of its transformer, or its directory), or gpt2, bert or
    vit (what save_pretrained wrote for GPT2LMHeadModel, BertForMaskedLM or
    ViTForImageClassification)."""
    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")] = tyro.MISSING
    """The model's directory."""
    run_directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = (
        tyro.MISSING
    )
    """The run directory to write."""

    positions: Literal["huggingface", "marian-nmt"] = "huggingface"
    """Of marian: the sinusoids as transformers computes them, or as marian-nmt does, by which
    OPUS-MT's models were trained."""

    source_language: str | None = None
    """The language translated from, as the run shall name it, such as en where the model's files
    have eng; None is what they have."""
    target_language: str | None = None
    """The language translated to."""

    def run(self) -> int:
        """Write the run directory; returns the exit code."""
        from t2t_jax.interchange.formats import read_model
        from t2t_jax.interchange.runs import write_run

        options = {"positions": self.positions} if self.format == "marian" else {}
        model = read_model(self.format, self.path, **options)
        named = {"source": self.source_language, "target": self.target_language}
        languages = {f"data.{side}_language": name for side, name in named.items() if name}
        model = replace(model, config=model.config.replace(languages))
        write_run(model, self.run_directory, {"format": self.format, "path": str(self.path)})
        said = f"{self.run_directory} is a run with the model of {self.path}"
        ResultConsole(highlight=False, markup=False).print(said, soft_wrap=True)
        return 0
