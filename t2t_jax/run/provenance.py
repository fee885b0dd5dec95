"""The software that computes a run: versions of packages, the git commit, and a hash of the code.

A run is a function of its code, config, data and seed. Jobs, checkpoints and results record the
code with the functions here, so that runs of different code are not taken for one experiment.
"""

import hashlib
import inspect
import json
import platform
import re
import subprocess
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NotRequired, TypedDict

from t2t_jax.config import Config
from t2t_jax.config.families import FAMILIES
from t2t_jax.config.registry import Entry, syntax
from t2t_jax.config.tables import named_entries
from t2t_jax.data.corpus_name import added_schemes, components_of
from t2t_jax.errors import warn
from t2t_jax.parallel.jax_settings import result_settings
from t2t_jax.parallel.processes import is_main
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.system.records import Record, read_object, schema
from t2t_jax.training.storage import steps_of_run
from t2t_jax.workdir import CHECKPOINTS, PROVENANCE

COMPUTING = ("jax", "jaxlib", "flax", "optax", "numpy")
"""The packages whose versions must be equal in one table. Plugins for GPUs and TPUs may change the
rounding; they are recorded, but not compared."""
_PACKAGES = (
    *("t2t-jax", *COMPUTING, "orbax-checkpoint"),
    *("libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin"),
)
_HASHED = (
    *("batch.py", "config", "data", "decoding", "functional", "kernels", "modules", "parallel"),
    *("run/evaluation.py", "run/preparing.py", "run/start.py", "run/trainer.py"),
    *("tasks", "training"),
)
"""The parts of this package that compute results."""
_PACKAGE = Path(__file__).parents[1]
_GIT_TIMEOUT = 10.0  # seconds, as git may be slow on a shared filesystem

UNRECORDED: Record = {"code": "unrecorded", "versions": {}}
"""The record for runs of versions before 0.3.0, which recorded no software."""
_UNRECORDED_RUN = UNRECORDED | {"first_step": 0}


class SoftwareRecord(TypedDict):
    """The fields of a provenance record."""

    code: str
    versions: dict[str, str]
    files: NotRequired[dict[str, str]]
    settings: NotRequired[dict[str, str]]
    commit: NotRequired[str]
    dirty: NotRequired[bool]
    first_step: NotRequired[int]


_FILE = schema({"software": list[SoftwareRecord]})


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that compute a run; "none" if missing."""
    numbers = {"python": platform.python_version()}
    for package in _PACKAGES:
        numbers[package] = "none"
        with suppress(PackageNotFoundError):
            numbers[package] = version(package)
    return numbers


def provenance(config: Config) -> Record:
    """Return a record of the software that computes a run with a config.

    Returns:
      code: a hash of the code that computes results.
      files: a hash of each file or registered function of that code, by name. The hash is of the
        syntax tree, without comments and docstrings.
      versions: the result of `versions`.
      settings: the result of `result_settings`.
      commit: the git commit of the package, if it is known.
      dirty: whether the package differs from that commit; only where there is a commit.
    """
    files = dict(sorted({**_package_files(), **_files_of_config(config)}.items()))
    return {
        "code": _hash(f"{files}"),
        "files": files,
        "versions": versions(),
        "settings": result_settings(),
        **_git(),
    }


def without_files(record: Record) -> Record:
    """Return a provenance record without the hashes of files, which are long."""
    return {name: value for name, value in record.items() if name != "files"}


def changes(before: Record, now: Record, packages: Collection[str] | None = None) -> list[str]:
    """Return what differs between two provenance records: files of code, versions, and settings.

    A file or a registered function that only one of them has does not count, as two configs may use
    different ones.

    Args:
      packages: the packages whose versions count; None is all that both records name.
    """
    differences = _differing(before.get("files", {}), now.get("files", {}))
    if UNRECORDED["code"] in (before["code"], now["code"]) and before["code"] != now["code"]:
        differences = ["code that was not recorded"]
    old, new = before["versions"], now["versions"]
    differences += [
        f"{name} {old[name]} -> {new[name]}"
        for name in _differing(old, new)
        if packages is None or name in packages
    ]
    if "settings" in before and "settings" in now:
        defaults = dict.fromkeys({**before["settings"], **now["settings"]}, "unset")
        old, new = defaults | before["settings"], defaults | now["settings"]
        differences += [f"{name} {old[name]} -> {new[name]}" for name in _differing(old, new)]
    return differences


def read_provenance(workdir: Path) -> list[Record]:
    """Return the software that trained a run, oldest first, each with its `first_step`."""
    path = workdir / PROVENANCE
    if not path.exists():
        return []
    record = read_object(path, _FILE, "remove it to record the software anew")
    return list(record["software"])


def training_software(workdir: Path) -> list[Record]:
    """Return `read_provenance`, or one `UNRECORDED` for a run with steps and no record."""
    software = read_provenance(workdir)
    return software or [_UNRECORDED_RUN] * bool(steps_of_run(workdir, CHECKPOINTS))


def record_provenance(workdir: Path, now: Record, first_step: int) -> None:
    """Record the software of a training that resumes at a step. Warn if it differs from before.

    Process 0 writes the record. Records of steps that the run repeats are removed.

    Args:
      now: the result of `provenance`.
      first_step: the number of steps that the run has taken.
    """
    stored = read_provenance(workdir)
    before = [one for one in stored if one["first_step"] < first_step]
    if first_step and not before:
        before = [_UNRECORDED_RUN]
    found = changes(before[-1], now) if before else []
    if found and is_main():
        warn(
            f"{workdir} was trained to step {first_step:,} by different software or "
            f"settings: {', '.join(found)}. {PROVENANCE} there records both. To continue the same "
            "experiment, stop and restore the earlier ones"
        )
    software = before if before and not found else [*before, now | {"first_step": first_step}]
    if is_main() and software != stored:
        write_whole(workdir / PROVENANCE, f"{json.dumps({'software': software})}\n".encode())


def _differing(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [name for name in sorted(before.keys() & now.keys()) if before[name] != now[name]]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@cache
def _package_files() -> dict[str, str]:
    """Return the hash of each file of this package that computes results, by its path in it."""
    return _hashes(_PACKAGE, (_PACKAGE / name for name in _HASHED))


def _hashes(root: Path, paths: Iterable[Path]) -> dict[str, str]:
    """Return the hashes of Python files and of those in folders, by their paths from a root."""
    files = [file for path in paths for file in ([path] if path.suffix else path.rglob("*.py"))]
    return {file.relative_to(root).as_posix(): _hash_of_file(file) for file in files}


def _hash_of_file(file: Path) -> str:
    content = file.read_bytes()
    try:
        return _hash(syntax(content.decode()))
    except (SyntaxError, ValueError):  # a template, or a compiled module
        return hashlib.sha256(content).hexdigest()[:12]


def _files_of_config(config: Config) -> dict[str, str]:
    """Return the hashes of registered functions, and of packages that the config names.

    Packages that every run uses are left out.
    """
    found = {entry.title: _hash_of_entry(entry) for entry in named_entries(config).values()}
    for module in _modules_of(config):
        first, *others = module.split(".")
        if first != _PACKAGE.name:
            found |= _hashes_of_package(first)
        elif others[0] not in _HASHED:
            found |= _hashes(_PACKAGE, [_PACKAGE.joinpath(*others[:2])])
    return found


def _modules_of(config: Config) -> Iterator[str]:
    """Return the modules of a config's task and family, and of its schemes of corpora."""
    facts, family = config.data.facts, FAMILIES[config.model.architecture]
    places = [facts.corpora, facts.task, *(x for x in vars(family).values() if isinstance(x, str))]
    schemes = (one.name.partition(":")[0] for one in components_of(config.data.corpus))
    places += (added_schemes()[one].pairs for one in schemes if one in added_schemes())
    yield from (place.partition(":")[0] for place in places if place)
    yield family.config.__module__


def _hashes_of_package(name: str) -> dict[str, str]:
    spec = None
    with suppress(ImportError, ValueError):  # the latter for __main__
        spec = find_spec(name)
    if spec is None or spec.origin is None:
        return {name: "unknown"}
    origin = Path(spec.origin)
    folder = origin.parent if spec.submodule_search_locations else origin
    return _hashes(origin.parents[bool(spec.submodule_search_locations)], [folder])


def _hash_of_entry(entry: Entry) -> str:
    """Return a hash of the file that registered a function, or of the function in a notebook."""
    try:
        text = entry.source.text if entry.source else inspect.getsource(entry.load())
        return _hash(syntax(textwrap.dedent(text)))
    except (OSError, TypeError, SyntaxError, ValueError):  # a builtin, or typed at a prompt
        return "unknown"


@cache
def _git() -> Record:
    """Return the commit of the package, and whether its files differ; {} without a commit."""
    if (_PACKAGE.parent / ".git").exists():
        return _git_status()
    with suppress(PackageNotFoundError, ValueError, KeyError, TypeError):
        origin = Distribution.from_name("t2t-jax").read_text("direct_url.json")
        # Only pip install git+URL has a commit there.
        return {"commit": json.loads(origin or "{}")["vcs_info"]["commit_id"], "dirty": False}
    return {}


def _git_status() -> Record:
    command = ["git", "--no-optional-locks", "status", "--porcelain=v2", "--branch", "--", "."]
    try:
        status = subprocess.check_output(
            command, cwd=_PACKAGE, stderr=subprocess.DEVNULL, errors="replace", timeout=_GIT_TIMEOUT
        )
    except (OSError, subprocess.SubprocessError):  # there is no git, or it refuses the directory
        return {}
    commit = re.search(r"^# branch\.oid ([0-9a-f]+)$", status, re.MULTILINE)
    is_dirty = re.search("^[^#]", status, re.MULTILINE) is not None
    return {"commit": commit[1], "dirty": is_dirty} if commit else {}
