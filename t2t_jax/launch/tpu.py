"""A training on a queued resource of Cloud TPUs, which gcloud asks for."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from t2t_jax.errors import UserError, quote
from t2t_jax.launch.job import LaunchedTraining, TrainJob, from_template

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class Tpu(TrainJob):
    """Write a script that asks for a slice of TPUs and trains on all of its hosts, and start it.

    Each --option is a flag of gcloud's queued-resources create, such as spot. A host has one
    process, for all of its chips.
    """

    accelerator: str | None = None
    """Kind and size of the slice, as gcloud takes it: v5litepod-16."""
    runtime: str | None = None
    """Version of the hosts' system, as gcloud takes it: v2-alpha-tpuv5-lite."""
    zone: str | None = None
    """Zone of the slice."""
    setup: tuple[str, ...] = (
        "python3 -m pip install --quiet --user uv || exit",
        "[[ -d .venv ]] || ~/.local/bin/uv venv --quiet --python 3.12 || exit",
        ". .venv/bin/activate",
        "~/.local/bin/uv pip install --quiet -e '.[train,tpu,gcs]' || exit",
    )
    """Lines of shell that each host runs before the training, in a copy of this directory. The
    hosts' system has Python 3.10, so uv installs a newer one."""

    file: ClassVar[str] = "tpu.sh"
    client: ClassVar[str] = "gcloud"
    in_foreground: ClassVar[bool] = True

    def check(self, training: LaunchedTraining) -> None:
        """Refuse a name that gcloud would not take, or flags that are missing.

        Raises:
          UserError: a value is refused.
        """
        super().check(training)
        for name in ("accelerator", "runtime", "zone"):
            if getattr(self, name) is None:
                raise UserError(f"a slice of TPUs needs --{name}; see t2t-jax launch tpu --help")
        if not _NAME.fullmatch(self.title(training)):
            raise UserError(
                f"{quote(self.title(training))} is no name of a TPU; give it one of small letters, "
                "digits and hyphens by --name"
            )

    def text(self, training: LaunchedTraining, path: Path) -> str:
        """Return the script."""
        options = [f"--{option}" for option in self.options()]
        return self.filled(
            training,
            name=self.title(training),
            zone=shlex.quote(str(self.zone)),
            accelerator=shlex.quote(str(self.accelerator)),
            runtime=shlex.quote(str(self.runtime)),
            options=shlex.join(options),
            together=from_template("together.sh"),
            restarts=self.restarts(training, path),
        )
