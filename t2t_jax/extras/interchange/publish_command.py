"""The command `t2t-jax publish`, which uploads a run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from t2t_jax.commands.model_flags import LoadFlags


@dataclass(frozen=True)
class PublishCommand(LoadFlags):
    """Upload a run with a model card to the Hugging Face Hub, a bucket or a directory.

    The upload is atomic, and contains the files that loading needs. Every command that reads a run
    then accepts the destination as RUN.
    """

    workdir: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = tyro.MISSING
    """Run to publish: a run directory, hf://NAME/MODEL, or an archive of a run."""
    destination: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DEST")] = tyro.MISSING
    """Destination: hf://NAME/MODEL, s3://bucket/name, gs://bucket/name or a directory."""
    licence: str | None = None
    """License of the model, such as apache-2.0 or cc-by-4.0; None is the license of RUN."""
    private: bool = False
    """Create the model on the hub as private."""
    revision: str | None = None
    """Branch on the hub to upload to; None is main."""
    dtype: str | None = None
    """Dtype of the parameters: float32, or bfloat16 for half the size; None is float32."""
    with_state: bool = False
    """Also upload the newest checkpoint, so that another machine can resume training."""
    dry_run: Path | None = None
    """Directory to write all files to, instead of uploading them."""
    space: Path | None = None
    """Directory to write a Gradio Space to: a web page that translates with the run."""

    @property
    def changes_parameters(self) -> bool:
        """Whether a flag changes the published parameters: `--average`, `--step` or `--dtype`."""
        return (self.average, self.step, self.dtype) != (None, None, None)

    def run(self) -> int:
        """Publish the run, print its address, and return exit code 0."""
        from t2t_jax.extras.interchange.publishing.publish import publish
        from t2t_jax.extras.interchange.publishing.space import publish_with_space

        address = publish(self) if self.space is None else publish_with_space(self, self.space)
        print(f"{address} contains the run; README.md there is its model card")
        if self.space is not None:
            print(f"{self.space} contains a Space that translates with the run")
        return 0
