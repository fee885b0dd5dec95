"""The command that publishes a run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from t2t_jax.commands.model_flags import LoadFlags
from t2t_jax.commands.tables import print_line


@dataclass(frozen=True)
class PublishCommand(LoadFlags):
    """Publish a run: what loading it needs, and a model card, all of it or nothing.

    The run then opens by its name wherever a run is named for reading.
    """

    workdir: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")] = tyro.MISSING
    """Directory of the run, or hf://NAME/MODEL, or an archive of a run."""
    destination: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DEST")] = tyro.MISSING
    """The place: hf://NAME/MODEL, s3://bucket/name, gs://bucket/name or a directory."""
    licence: str | None = None
    """Licence of the model, such as apache-2.0 or cc-by-4.0; None is that of a published run."""
    private: bool = False
    """Make a new model on the hub private."""
    revision: str | None = None
    """Branch on the hub to publish to; None is main."""
    dtype: str | None = None
    """Dtype of the parameters: float32, or bfloat16 for half the size; None is float32."""
    with_state: bool = False
    """Publish the newest checkpoint too, from which train goes on elsewhere."""
    dry_run: Path | None = None
    """Directory to write everything into, instead of publishing it."""
    space: Path | None = None
    """Directory to write the files of a Gradio Space into, a page that translates with the run."""

    @property
    def changes_parameters(self) -> bool:
        """Whether the parameters differ from those that the run is scored with, in float32."""
        return (self.average, self.step, self.dtype) != (None, None, None)

    def run(self) -> int:
        """Publish the run, print its name, and return the exit code."""
        from t2t_jax.extras.interchange.publishing.publish import publish
        from t2t_jax.extras.interchange.publishing.space import publish_with_space

        name = publish(self) if self.space is None else publish_with_space(self, self.space)
        print_line(f"{name} has the run; README.md there is its model card")
        if self.space is not None:
            print_line(f"{self.space} has a Space that translates with it")
        return 0
