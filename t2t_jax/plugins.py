"""The table of plugins, which add commands, flags, corpora, tasks and more to the program.

Each extra of this package, `t2t_jax.extras.NAME`, is a plugin. So is whatever another package names
in its group of entry points `t2t_jax.plugins`::

    [project.entry-points."t2t_jax.plugins"]
    mine = "my_package:PLUGIN"

A plugin gives the places of what it provides, as MODULE:NAME, so that listing the plugins imports
little. A plugin that cannot be imported, or takes a name that is taken, is left out with a warning.
"""

import dataclasses
import json
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, ClassVar, NamedTuple

from t2t_jax.errors import UserError, in_one_line, warn

_EXTRAS = "t2t_jax.extras."
GROUP = "t2t_jax.plugins"
"""The group of entry points in which packages name their plugins."""


class CorpusRow(NamedTuple):
    """A scheme of corpora: the word before the colon of a name in `data.corpus`."""

    pairs: str
    """The place of the function that returns the splits of sentence pairs, as
    `TaskFacts.corpora`."""
    form: str = "DIR"
    """A word for what follows the colon."""
    documents: str = ""
    """The place of the same function for documents of one language, if there are any."""


@dataclass(frozen=True)
class Plugin:
    """What a plugin provides, by name."""

    commands: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """For each command, the group that lists it in `t2t-jax --help`, and a line about it. The
    command `a-b`, or `a b` in two words, is the class `ABCommand` of the module `a_b_command`
    beside the plugin, whose fields are the flags and whose `run` runs it. A function `a_b_command`
    of that module, if there is one, makes the command from the flags and the program's name."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """The places of subclasses of `TrainingFlags`, by the command: `train` or `sweep`."""
    corpora: Mapping[str, CorpusRow] = field(default_factory=dict)
    """Schemes of corpora. The function takes the whole name, such as `mine:DIR`, and the section
    `data` of the config."""
    tasks: Mapping[str, str] = field(default_factory=dict)
    """The places of `config.tasks.TaskFacts`, by the value of `data.task`, which a config has to
    give: `schemes` are not read. Their `task` has to name a `tasks.task.Task`."""
    families: Mapping[str, str] = field(default_factory=dict)
    """The places of `config.families.Family`, by the value of `model.architecture`. A family that
    learns translation has `tasks=("translation",)`."""
    formats: Mapping[str, str] = field(default_factory=dict)
    """The places of `extras.interchange.formats.Format`, by the name in `export` and `import`.
    Their `object` has to name the implementation."""
    trackers: Mapping[str, str] = field(default_factory=dict)
    """The places of functions that open a run at a tracker, from a project, the id of the run and
    its directory, and return an `extras.trackers.tracker.OpenRun`."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The places of names of `t2t_jax`, such as `explore`."""
    remarks: Mapping[str, str] = field(default_factory=dict)
    """The places of functions from a config and records of scores to lines for `evaluate`."""
    uses: tuple[str, ...] = ()
    """Other extras of this package whose modules the plugin imports."""
    package: str = ""
    """The name of the package that was installed, which `plugins` fills in."""
    home: str = ""
    """The package that has the modules of the commands, which `plugins` fills in."""


@dataclass(frozen=True)
class TrainingFlags:
    """Base class of flags that a plugin adds to `train` or `sweep`: a dataclass with a default for
    each field, which becomes a flag of the same name."""

    instead: ClassVar[tuple[str, ...]] = ()
    """Flags that ask for something else than a training, which then needs no run directory."""
    common: ClassVar[tuple[str, ...]] = ()
    """Flags that the short help lists."""
    examples: ClassVar[tuple[str, ...]] = ()
    """Command lines at the end of the help, without the command."""

    def check(self, workdir: Path) -> None:
        """Refuse values before a training, a dry run of one, or a grid begins in a directory."""

    def run(self, config: Any) -> int:
        """Do what a flag of `instead` asks for with a config, and return the exit code."""
        raise NotImplementedError

    def around(self, workdir: Path) -> AbstractContextManager[None]:
        """Return the context within which the run in a directory is trained."""
        return nullcontext()

    def as_text(self) -> str:
        """Return the flags as a text for another process; see `flags_from`."""
        return json.dumps([_place_of(type(self)), dataclasses.asdict(self)])


def _place_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__name__}"


def flags_from(texts: Sequence[str], command: str) -> list[TrainingFlags]:
    """Return all flags that plugins add to a command.

    Args:
      texts: flags as `TrainingFlags.as_text` returns them. Other flags have their defaults.
    """
    given: dict[str, dict[str, object]] = dict(map(json.loads, texts))
    return [kind(**given.get(_place_of(kind), {})) for kind in added_flags(command)]


@cache
def plugins() -> Sequence[Plugin]:
    """Return all plugins, those of this package first."""
    found: list[Plugin] = []
    for package, place in (*_extras(), *_entry_points()):
        try:
            plugin = load_named(place)
            if not isinstance(plugin, Plugin):
                raise TypeError(f"{place} is a {type(plugin).__name__}, not a Plugin")
            for name, row in plugin.commands.items():
                if not isinstance(row, tuple) or len(row) != 2:
                    raise TypeError(f"the command {name} needs a group and a line about it")
            for name, corpus in plugin.corpora.items():
                if not isinstance(corpus, CorpusRow):
                    raise TypeError(f"{name} in the corpora needs a CorpusRow")
            for kind in ("tasks", "families", "formats", "trackers"):
                for name, row in getattr(plugin, kind).items():
                    if not isinstance(row, str):
                        raise TypeError(f"{name} in the {kind} needs its place, MODULE:NAME")
            home = sys.modules[place.partition(":")[0]].__package__
            found.append(dataclasses.replace(plugin, package=package, home=home or ""))
        except (Exception, SystemExit) as error:  # of any kind, in the code of somebody else
            _leave_out("the plugin", package, error)
    return found


def _extras() -> Iterator[tuple[str, str]]:
    for module in iter_modules([str(Path(__file__).parent / "extras")]):
        name = f"{_EXTRAS}{module.name}"
        yield name, f"{name}:PLUGIN"


def has_extras() -> bool:
    """Return whether this installation has the extras."""
    return any(_extras())


def _entry_points() -> Iterator[tuple[str, str]]:
    from importlib.metadata import entry_points

    for entry in sorted(entry_points(group=GROUP)):
        yield entry.dist.name if entry.dist else entry.module, entry.value


def rows(kind: str, taken: Collection[str] = ()) -> dict[str, Any]:
    """Return what the plugins provide of a kind, a field of `Plugin`, by name.

    Args:
      taken: names of the core, which no plugin can take.
    """
    found: dict[str, object] = {}
    owners = dict.fromkeys(taken, "t2t-jax")
    for plugin in plugins():
        for name, row in getattr(plugin, kind).items():
            if name in owners:
                error = UserError(f"{owners[name]} has that name")
                _leave_out(f"{name} in the {kind}", plugin.package, error)
            else:
                found[name], owners[name] = row, plugin.package
    return found


@cache
def added_flags(command: str, taken: tuple[str, ...] = ()) -> Sequence[type[TrainingFlags]]:
    """Return the classes of the flags that plugins add to a command.

    Args:
      taken: names of the command's other flags, which no plugin can take.
    """
    found = dict.fromkeys(taken, "t2t-jax")
    kinds: list[type[TrainingFlags]] = []
    for plugin in plugins():
        if command not in plugin.flags:
            continue
        try:
            kind = load(plugin.flags[command])
            names = [one.name for one in dataclasses.fields(kind)]
            if twice := [f"{found[name]} has --{name}" for name in names if name in found]:
                raise UserError(", ".join(twice))
        except Exception as error:
            _leave_out(f"the flags of {command}", plugin.package, error)
        else:
            kinds.append(kind)
            found |= dict.fromkeys(names, plugin.package)
    return kinds


def _leave_out(what: str, package: str, error: BaseException) -> None:
    warn_once(
        f"left out: {what} of the package {package} ({_reason(error)}); update or uninstall it"
    )


@cache
def warn_once(message: str) -> None:
    """Print a warning, unless this process has printed it before."""
    warn(message)


def _reason(error: BaseException) -> str:
    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
    return f"{kind}{in_one_line(error)}"


def load(place: str) -> Any:
    """Return what a place of a plugin names, and import its module.

    Raises:
      UserError: it cannot be imported.
    """
    try:
        return load_named(place)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # of any kind: it may be the code of somebody else
        package = re.split("[.:]", place)[0]
        raise UserError(
            f"{place} of the package {package} cannot be imported ({_reason(error)}); update or "
            "uninstall it"
        ) from error


def load_named(place: str) -> Any:
    """Return what `MODULE:NAME` names; its module is imported on the first call.

    Raises:
      UserError: it is in an extra of this package that is not installed.
    """
    module, _, name = place.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if not module.startswith(f"{error.name}.") or not module.startswith(_EXTRAS):
            raise
        extra = module.removeprefix(_EXTRAS).partition(".")[0]
        raise UserError(
            f"{place} is in the extra {extra} of t2t-jax, which this installation lacks; install "
            "the whole package"
        ) from error
