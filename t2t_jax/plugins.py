"""Load plugins, which add commands, flags, corpora, tasks and more to the program.

Each extra of this package, `t2t_jax.extras.NAME`, is a plugin. Other packages register plugins in
the entry point group `t2t_jax.plugins`::

    [project.entry-points."t2t_jax.plugins"]
    mine = "my_package:PLUGIN"

A plugin names its objects by reference, as MODULE:NAME, so listing the plugins imports few modules.
The program skips, with a warning, a plugin that fails to import or uses a reserved name.
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

from t2t_jax.errors import UserError, reason_of, warn

_EXTRAS = "t2t_jax.extras."
GROUP = "t2t_jax.plugins"
"""Entry point group of plugins."""
_REFERENCES = (
    *("activations", "normalizations", "attentions", "positions", "schedules", "optimizers"),
    *("losses", "measures", "tasks", "families", "formats", "trackers"),
)


class CorpusRow(NamedTuple):
    """A corpus scheme: the word before the colon in `data.corpus`."""

    pairs: str
    """Reference to a function that returns splits of sentence pairs, like `TaskFacts.corpora`."""
    form: str = "DIR"
    """Placeholder for the text after the colon."""
    documents: str = ""
    """Reference to the same function for documents of one language, or ""."""


@dataclass(frozen=True)
class Plugin:
    """The objects that a plugin provides, by name."""

    commands: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """For each command, its group in `t2t-jax --help` and its one-line description. The class
    `ABCommand` of the module `a_b_command` in the plugin's package implements the command `a-b` or
    `a b`: its fields are the flags, and its `run` runs the command. An optional function
    `a_b_command` of the module creates the command from the flags and the program name."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """References to subclasses of `TrainingFlags`, by command: `train` or `sweep`."""
    corpora: Mapping[str, CorpusRow] = field(default_factory=dict)
    """Corpus schemes. The functions take a corpus name such as `mine:DIR`, and a `DataConfig`."""
    tasks: Mapping[str, str] = field(default_factory=dict)
    """References to `config.tasks.TaskFacts`, by the value of `data.task`, which the config must
    set, because `schemes` are ignored. Their `task` must refer to a `tasks.task.Task`."""
    families: Mapping[str, str] = field(default_factory=dict)
    """References to `config.families.Family`, by the value of `model.architecture`. A family for
    translation has `tasks=("translation",)`."""
    activations: Mapping[str, str] = field(default_factory=dict)
    """References to parts by name, as `t2t_jax.register` takes them; so are the next seven."""
    normalizations: Mapping[str, str] = field(default_factory=dict)
    attentions: Mapping[str, str] = field(default_factory=dict)
    positions: Mapping[str, str] = field(default_factory=dict)
    schedules: Mapping[str, str] = field(default_factory=dict)
    optimizers: Mapping[str, str] = field(default_factory=dict)
    losses: Mapping[str, str] = field(default_factory=dict)
    measures: Mapping[str, str] = field(default_factory=dict)
    formats: Mapping[str, str] = field(default_factory=dict)
    """References to `extras.interchange.formats.Format`, by the name in `export` and `import`.
    Their `object` must refer to the implementation."""
    trackers: Mapping[str, str] = field(default_factory=dict)
    """References to functions that open a run in a tracker. Their arguments are the project, run id
    and run directory; they return an `extras.trackers.tracker.OpenRun`."""
    names: Mapping[str, str] = field(default_factory=dict)
    """References to public names to add to `t2t_jax`, such as `explore`."""
    remarks: Mapping[str, str] = field(default_factory=dict)
    """References to functions that map a config and score records to lines of `evaluate`."""
    uses: tuple[str, ...] = ()
    """Other extras of this package that the plugin imports."""
    package: str = ""
    """Name of the installed package; `plugins` sets it."""
    home: str = ""
    """Package with the modules of the commands; `plugins` sets it."""


@dataclass(frozen=True)
class TrainingFlags:
    """Base class of flags that a plugin adds to `train` or `sweep`.

    A subclass is a dataclass. Each field becomes a flag of the same name, and needs a default.
    """

    instead: ClassVar[tuple[str, ...]] = ()
    """Flags with which the command does other work than training, without a run directory."""
    common: ClassVar[tuple[str, ...]] = ()
    """Flags to list in the short help."""
    examples: ClassVar[tuple[str, ...]] = ()
    """Example command lines for the help, without the command."""

    def check(self, workdir: Path) -> None:
        """Check the flags before training, a dry run or a sweep starts; raise a `UserError`."""

    def run(self, config: Any) -> int:
        """Do the work of a flag in `instead`, without training, and return the exit code."""
        raise NotImplementedError

    def around(self, workdir: Path) -> AbstractContextManager[None]:
        """Return a context manager that stays open during training."""
        return nullcontext()

    def as_text(self) -> str:
        """Serialize the flags as text that `flags_from` reads in another process."""
        return json.dumps([_reference_to(type(self)), dataclasses.asdict(self)])


def _reference_to(kind: type) -> str:
    return f"{kind.__module__}:{kind.__name__}"


def flags_from(texts: Sequence[str], command: str) -> list[TrainingFlags]:
    """Create the flag objects that plugins add to a command, from `TrainingFlags.as_text`."""
    fields: dict[str, dict[str, object]] = dict(map(json.loads, texts))
    return [kind(**fields.get(_reference_to(kind), {})) for kind in added_flags(command)]


@cache
def plugins() -> Sequence[Plugin]:
    """Load all plugins, first the extras of this package."""
    all_plugins: list[Plugin] = []
    for package, reference in (*_extras(), *_entry_points()):
        try:
            plugin = load_named(reference)
            if not isinstance(plugin, Plugin):
                raise TypeError(f"{reference} is a {type(plugin).__name__}, not a Plugin")
            # Check the fields now, so that an error names the package of the plugin.
            for name, entry in plugin.commands.items():
                if not isinstance(entry, tuple) or len(entry) != 2:
                    raise TypeError(f"the command {name} needs a group and a line about it")
            for name, corpus in plugin.corpora.items():
                if not isinstance(corpus, CorpusRow):
                    raise TypeError(f"{name} in the corpora needs a CorpusRow")
            for kind in _REFERENCES:
                for name, entry in getattr(plugin, kind).items():
                    if not isinstance(entry, str) or ":" not in entry:
                        raise TypeError(f"{name} in the {kind} needs a reference, MODULE:NAME")
            home = sys.modules[reference.partition(":")[0]].__package__
            all_plugins.append(dataclasses.replace(plugin, package=package, home=home or ""))
        except (Exception, SystemExit) as error:  # code of other packages may raise any error
            _leave_out("the plugin", package, error)
    return all_plugins


def _extras() -> Iterator[tuple[str, str]]:
    for module in iter_modules([str(Path(__file__).parent / "extras")]):
        name = f"{_EXTRAS}{module.name}"
        yield name, f"{name}:PLUGIN"


def has_extras() -> bool:
    """Return whether this installation includes `t2t_jax.extras`."""
    return any(_extras())


def _entry_points() -> Iterator[tuple[str, str]]:
    from importlib.metadata import entry_points

    for entry in sorted(entry_points(group=GROUP)):
        yield entry.dist.name if entry.dist else entry.module, entry.value


def rows(kind: str, reserved: Collection[str] = ()) -> dict[str, Any]:
    """Merge a field of all plugins, such as `commands`, into one dict by name.

    Args:
      kind: the name of the field of `Plugin`.
      reserved: names of the core, which a plugin cannot use.
    """
    entries: dict[str, object] = {}
    owners = dict.fromkeys(reserved, "t2t-jax")
    for plugin in plugins():
        for name, entry in getattr(plugin, kind).items():
            if name in owners:  # the first plugin with a name keeps it
                error = UserError(f"{owners[name]} has that name")
                _leave_out(f"{name} in the {kind}", plugin.package, error)
            else:
                entries[name], owners[name] = entry, plugin.package
    return entries


@cache
def added_flags(command: str, reserved: tuple[str, ...] = ()) -> Sequence[type[TrainingFlags]]:
    """Return the `TrainingFlags` classes that plugins add to a command.

    Leave out, with a warning, classes that use `reserved` names.
    """
    owners = dict.fromkeys(reserved, "t2t-jax")
    flag_classes: list[type[TrainingFlags]] = []
    for plugin in plugins():
        if command not in plugin.flags:
            continue
        try:
            flag_class = load(plugin.flags[command])
            names = [field.name for field in dataclasses.fields(flag_class)]
            if clashes := [f"{owners[name]} has --{name}" for name in names if name in owners]:
                raise UserError(", ".join(clashes))
        except Exception as error:
            _leave_out(f"the flags of {command}", plugin.package, error)
        else:
            flag_classes.append(flag_class)
            owners |= dict.fromkeys(names, plugin.package)
    return flag_classes


def _leave_out(subject: str, package: str, error: BaseException) -> None:
    warn_once(
        f"left out: {subject} of the package {package} ({reason_of(error)}); update or uninstall it"
    )


@cache
def warn_once(message: str) -> None:
    """Print a warning at most once per process."""
    warn(message)


def load(reference: Any) -> Any:
    """Import the object of a plugin from its reference MODULE:NAME; return an object unchanged.

    Raises:
      UserError: the import fails.
    """
    try:
        return load_named(reference)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # code of other packages may raise any error
        package = re.split("[.:]", reference)[0]
        raise UserError(
            f"{reference} of the package {package} cannot be imported ({reason_of(error)}); update "
            "or uninstall it"
        ) from error


def load_named(reference: Any) -> Any:
    """Import the object that `MODULE:NAME` or `MODULE` refers to; return an object unchanged.

    Raises:
      UserError: the module is in an extra of this package that is not installed.
    """
    if not isinstance(reference, str):
        return reference
    module, _, name = reference.partition(":")
    try:
        imported = import_module(module)
        return getattr(imported, name) if name else imported
    except ModuleNotFoundError as error:
        if not module.startswith(f"{error.name}.") or not module.startswith(_EXTRAS):
            raise
        extra = module.removeprefix(_EXTRAS).partition(".")[0]
        raise UserError(
            f"{reference} is in the extra {extra} of t2t-jax, which this installation lacks; "
            "install the whole package"
        ) from error
