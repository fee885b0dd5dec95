"""The version of the package, with the names it has renamed and the features it has removed."""

from typing import NamedTuple

from t2t_jax.errors import UserError, warn

__version__ = "0.3.0.dev0"


class Renamed(NamedTuple):
    """A name that replaces another one."""

    name: str
    """The name that is to be used now."""
    since: str
    """The version that renamed it, as "0.3". This one takes the old name too, no later one does."""


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
}
"""What replaces an old name: a field of the config (`model.d_ff`), a command (`t2t-jax bleu`), a
flag that is no field (`--workdir`), or a name of the package (`t2t_jax.load`). The row of a field
stays for good, as older runs are read by it."""


class Removed(NamedTuple):
    """A config field that was deleted."""

    feature: str
    """The deleted feature, a plural noun, as the error names it."""
    unused: tuple[object, ...] | None = ()
    """Values of a deleted field that mean the feature is not used; None means that all do."""
    trains_only: bool = False
    """Whether only training reads the field: a run that used it opens, but does not train on."""

    def is_used_by(self, value: object) -> bool:
        """Return whether a value of the field asks for the deleted feature."""
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
    "data.whole_words": Removed("whole-word masks in masked language modelling", unused=(False,)),
    "model.output_transform": Removed("output transforms of BERT", unused=(False,)),
}
"""Deleted config fields by dotted path. Rows stay for good, as older runs have them."""


REMOVED_COMMANDS = {
    "calibrate": "calibrated confidences",
    "preflight": "preflight jobs, whose checks t2t-jax train --dry-run makes",
}
"""The feature of each deleted command of a released version."""


def removed_feature(name: str, feature: str) -> UserError:
    """Return the error for a use of a deleted feature.

    Args:
      name: the field, value, file or command that uses it.
      feature: the feature, a plural noun.
    """
    return UserError(
        f"{name}: version 0.3 removed {feature}; the git tag before-cut (commit 08046c0) has them"
    )


def current_name(name: str) -> str:
    """Return the name that replaces an old one, with a warning; any other name as it is.

    Raises:
      UserError: the version that takes the old name has gone by.
    """
    if name not in RENAMED:
        return name
    new, since = RENAMED[name]
    if __version__.split(".")[:2] != since.split(".")[:2]:
        raise UserError(f"{name} is called {new} since version {since}; use that name")
    warn(f"{name} is now called {new}, and later versions refuse the old name")
    return new


def current_flag(argument: str, *, warns: bool = True) -> str:
    """Return an argument of a command line with the name that replaces that of an old flag.

    Args:
      warns: False for the flags of an old command, whose own warning is enough.

    Raises:
      UserError: the version that takes the old name has gone by.
    """
    current = current_name if warns else read_name
    flag, equals, value = argument.partition("=")
    name = flag.replace("_", "-")
    if name in RENAMED:
        return f"{current(name)}{equals}{value}"
    field = name.removeprefix("--").replace("-", "_")
    if name.startswith("--") and field in RENAMED:
        return f"--{current(field).replace('_', '-')}{equals}{value}"
    return argument


def read_name(name: str) -> str:
    """Return the name that replaces an old one in what a program wrote, without a warning."""
    return RENAMED[name].name if name in RENAMED else name
