"""The package version, renamed names and removed features."""

from typing import NamedTuple

from t2t_jax.errors import UserError, warn

__version__ = "0.3.0.dev0"


class Renamed(NamedTuple):
    """The new name of a renamed field, command, flag or public object."""

    name: str
    """New name."""
    since: str
    """Version of the renaming, such as "0.3", which is also the last to accept the old name."""


RENAMED: dict[str, Renamed] = {
    "t2t-jax bleu": Renamed("t2t-jax evaluate", "0.3"),
    "t2t-jax parseval": Renamed("t2t-jax evaluate", "0.3"),
    "t2t-jax perplexity": Renamed("t2t-jax evaluate", "0.3"),
    "t2t-jax accuracy": Renamed("t2t-jax evaluate", "0.3"),
    "t2t-jax compare-trees": Renamed("t2t-jax compare", "0.3"),
    "--gold": Renamed("--references", "0.3"),
    "--predicted": Renamed("--hypotheses", "0.3"),
    "t2t-jax parse": Renamed("t2t-jax translate", "0.3"),
    "t2t-jax goodput": Renamed("t2t-jax report", "0.3"),
    "model.score_function": Renamed("model.attention_kind", "0.3"),
}
"""New names by old name: of a config field (`model.d_ff`), a command (`t2t-jax bleu`), another flag
(`--workdir`), or a public name (`t2t_jax.load`). Never delete a row of a field: loading older runs
needs it."""


class Removed(NamedTuple):
    """A config field that was deleted."""

    feature: str
    """Name of the deleted feature for the error, a plural noun."""
    unused: tuple[object, ...] | None = ()
    """Values of the field that do not use the feature; None means that no value uses it."""
    trains_only: bool = False
    """Whether only training reads the field: a run that used it can be loaded, but not resumed."""

    def is_used_by(self, value: object) -> bool:
        """Return whether a run with this value of the field used the deleted feature."""
        return self.unused is not None and value not in self.unused


REMOVED: dict[str, Removed] = {
    "checkpoint.local_dir": Removed("checkpoints on local disks of hosts", unused=None),
    "checkpoint.local_every_steps": Removed("checkpoints on local disks of hosts", unused=None),
    "data.bpe_dropout": Removed("segmentations by BPE-dropout", unused=(0.0,), trains_only=True),
    "data.context_sentences": Removed("document contexts", unused=(0,)),
    "data.context_sides": Removed("document contexts", unused=("source",)),
    "data.image_flip": Removed("flipped images", unused=(False,), trains_only=True),
    "data.image_resize": Removed("resized images", unused=(False,)),
    "data.image_shift": Removed("shifted images", unused=(0,), trains_only=True),
    "data.mixture_temperature": Removed(
        "temperatures of mixtures", unused=(None,), trains_only=True
    ),
    "data.whole_words": Removed("whole-word masks in masked language modelling", unused=(False,)),
    "model.output_transform": Removed("output transforms of BERT", unused=(False,)),
}
"""Deleted config fields by dotted path. Never delete a row: older runs have these fields."""


REMOVED_PARTS = {"adafactor": "its own Adafactor, as train takes any optimizer of Optax"}
"""Deleted features by the name of the part in a config."""


MOVED = {"training.decay_fraction": ("training.schedule", "wsd")}
"""Config fields that became parameters of a part: the field that names the part, and the part.
Never delete a row: older runs have these fields."""


REMOVED_COMMANDS = {
    "calibrate": "calibrated confidences",
    "preflight": "preflight jobs, whose checks t2t-jax train --dry-run makes",
}
"""Features of commands that a released version had, by command name."""


SAMPLERS = "samplers of values for --tune"
EARLY_PROMOTIONS = "early promotions (asha) by --halving"
REMOVED_FLAGS = {"--sampler": SAMPLERS, "--trials": SAMPLERS}
"""Features of flags that the git tag `before-cut` has, by flag."""


def removed_feature(name: str, feature: str) -> UserError:
    """Make the error for the use of a deleted feature.

    Args:
      name: the field, value, file or command that uses the feature.
      feature: the feature, a plural noun.
    """
    return UserError(
        f"{name}: version 0.3 removed {feature}; the git tag before-cut (commit 08046c0) has them"
    )


def current_name(name: str) -> str:
    """Convert an old name to the new one with a warning; return any other name unchanged.

    Raises:
      UserError: this version no longer accepts the old name.
    """
    if name not in RENAMED:
        return name
    new_name, since = RENAMED[name]
    # Only versions with the same first two numbers as `since` accept the old name.
    if __version__.split(".")[:2] != since.split(".")[:2]:
        raise UserError(f"{name} is called {new_name} since version {since}; use that name")
    warn(f"{name} is now called {new_name}, and later versions refuse the old name")
    return new_name


def current_flag(argument: str, *, warns: bool = True) -> str:
    """Replace an old flag in a command-line argument by its new name.

    Args:
      warns: whether to warn; False for a renamed command, which already warned.

    Raises:
      UserError: this version no longer accepts the old flag.
    """
    new_name = current_name if warns else read_name
    flag, equals, value = argument.partition("=")
    name = flag.replace("_", "-")
    if name in RENAMED:
        return f"{new_name(name)}{equals}{value}"
    field = name.removeprefix("--").replace("-", "_")  # a config field is also a flag
    if name.startswith("--") and field in RENAMED:
        return f"--{new_name(field).replace('_', '-')}{equals}{value}"
    return argument


def read_name(name: str) -> str:
    """Convert an old name in a saved file to the new one, without a warning."""
    return RENAMED[name].name if name in RENAMED else name
