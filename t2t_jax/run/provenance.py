"""The software of a run: package versions, git commit and a hash of the code.

Jobs, checkpoints and results record this software, so that users do not compare runs of different
code as one experiment.
"""

import hashlib
import json
import platform
import re
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NotRequired, TypedDict

from t2t_jax.config import Config
from t2t_jax.config.corpus_name import added_schemes, components_of
from t2t_jax.config.definitions import definition, syntax
from t2t_jax.config.families import FAMILIES
from t2t_jax.config.registered import registered_parts
from t2t_jax.config.registry import Registered
from t2t_jax.errors import warn
from t2t_jax.parallel.jax_settings import result_settings
from t2t_jax.parallel.processes import is_main
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.system.records import Record, read_object, schema
from t2t_jax.training.checkpoint_files import steps_of_run
from t2t_jax.workdir import CHECKPOINTS, PROVENANCE

COMPUTING = ("jax", "jaxlib", "flax", "optax", "numpy")
"""The packages whose versions must be equal for all runs of one table. Records also list the GPU
and TPU plugins, which may change rounding but are not compared."""
_PACKAGES = (
    *("t2t-jax", *COMPUTING, "orbax-checkpoint"),
    *("libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin"),
)
_HASHED = (
    *("batch.py", "config", "data", "decoding", "functional", "kernels", "modules", "parallel"),
    *("run/evaluation.py", "run/preparing.py", "run/start.py", "run/trainer.py"),
    *("tasks", "training"),
)
"""The files and folders of this package that compute results."""
_PACKAGE = Path(__file__).parents[1]
_GIT_TIMEOUT = 10.0  # seconds; git may be slow on a shared filesystem

UNKNOWN = "unknown"
"""The hash of code that this process cannot read."""
UNRECORDED: Record = {"code": "unrecorded", "versions": {}}
"""The record for runs before version 0.3.0, which recorded no software."""
_UNRECORDED_RUN = UNRECORDED | {"first_step": 0}


class SoftwareRecord(TypedDict):
    """The fields of a record of the software that trained a run."""

    code: str
    versions: dict[str, str]
    files: NotRequired[dict[str, str]]
    settings: NotRequired[dict[str, str]]
    commit: NotRequired[str]
    dirty: NotRequired[bool]
    first_step: NotRequired[int]


_FILE = schema({"software": list[SoftwareRecord]})


def versions() -> dict[str, str]:
    """Return the versions of Python and of the computing packages; "none" if missing."""
    by_name = {"python": platform.python_version()}
    for package in _PACKAGES:
        by_name[package] = "none"
        with suppress(PackageNotFoundError):
            by_name[package] = version(package)
    return by_name


def provenance(config: Config) -> Record:
    """Return a record of the software that computes a run.

    Returns:
      code: a hash of the code that computes results.
      files: a hash of the syntax tree of each file or registered function, by name.
      versions: the versions of Python and packages.
      settings: settings of JAX that change results.
      commit: the git commit of the package, if known.
      dirty: whether the package differs from the commit, if known.
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
    """Return a provenance record without the long list of file hashes."""
    return {name: value for name, value in record.items() if name != "files"}


def changes(before: Record, now: Record, packages: Collection[str] | None = None) -> list[str]:
    """List the differences of two provenance records: files, versions and settings.

    Args:
      packages: the packages to compare; None compares all packages of both records.
    """
    # Files that only one record contains are ignored, because configs use different files.
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
    """Read the software records of a run, oldest first, each with its `first_step`."""
    path = workdir / PROVENANCE
    if not path.exists():
        return []
    record = read_object(path, _FILE, "remove it to record the software anew")
    return list(record["software"])


def training_software(workdir: Path) -> list[Record]:
    """Return the software records of a run; without them, for a run with steps, "unrecorded"."""
    software = read_provenance(workdir)
    return software or [_UNRECORDED_RUN] * bool(steps_of_run(workdir, CHECKPOINTS))


def record_provenance(workdir: Path, now: Record, first_step: int) -> None:
    """Record the software of a run that starts or resumes, and warn if it has changed.

    Process 0 writes the record, and removes records of steps that the run repeats.

    Args:
      now: the result of `provenance`.
      first_step: the number of finished steps.
    """
    stored = read_provenance(workdir)
    before = [record for record in stored if record["first_step"] < first_step]
    if first_step and not before:
        before = [_UNRECORDED_RUN]
    changed = changes(before[-1], now) if before else []
    if changed and is_main():
        warn(
            f"{workdir} was trained to step {first_step:,} by different software or "
            f"settings: {', '.join(changed)}. {PROVENANCE} there records both. To continue the "
            "same experiment, stop and restore the earlier software and settings"
        )
    software = before if before and not changed else [*before, now | {"first_step": first_step}]
    if is_main() and software != stored:
        write_whole(workdir / PROVENANCE, f"{json.dumps({'software': software})}\n".encode())


def _differing(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [name for name in sorted(before.keys() & now.keys()) if before[name] != now[name]]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


@cache
def _package_files() -> dict[str, str]:
    return _hashes(_PACKAGE, (_PACKAGE / name for name in _HASHED))


def _hashes(root: Path, paths: Iterable[Path]) -> dict[str, str]:
    files = [file for path in paths for file in ([path] if path.suffix else path.rglob("*.py"))]
    return {file.relative_to(root).as_posix(): _hash_of_file(file) for file in files}


def _hash_of_file(file: Path) -> str:
    content = file.read_bytes()
    with suppress(SyntaxError, ValueError):  # a template, or a compiled module
        return _hash(syntax(content.decode()))
    return hashlib.sha256(content).hexdigest()[:12]


def _files_of_config(config: Config) -> dict[str, str]:
    """Return the hashes of registered functions and plugins that a config names."""
    hashes = {part.title: hash_of_part(part) for part in registered_parts(config).values()}
    for module in _modules_of(config):
        package, *parts = module.split(".")
        if package != _PACKAGE.name:
            hashes |= _hashes_of_package(package)
        elif parts[0] not in _HASHED:
            hashes |= _hashes(_PACKAGE, [_PACKAGE.joinpath(*parts[:2])])
    return hashes


def _modules_of(config: Config) -> Iterator[str]:
    facts, family = config.data.facts, FAMILIES[config.model.architecture]
    paths = [facts.corpora, facts.task, *vars(family).values()]
    schemes = (part.name.partition(":")[0] for part in components_of(config.data.corpus))
    paths += (added_schemes()[scheme].pairs for scheme in schemes if scheme in added_schemes())
    yield from (path.partition(":")[0] for path in paths if path and isinstance(path, str))
    yield family.config.__module__


def _hashes_of_package(name: str) -> dict[str, str]:
    module_spec = None
    with suppress(ImportError, ValueError):  # __main__ raises ValueError
        module_spec = find_spec(name)
    if module_spec is None or module_spec.origin is None:
        return {name: UNKNOWN}
    origin = Path(module_spec.origin)
    folder = origin.parent if module_spec.submodule_search_locations else origin
    return _hashes(origin.parents[bool(module_spec.submodule_search_locations)], [folder])


def hash_of_part(registered: Registered) -> str:
    """Return a hash of the file that registered a name, or else of the definition."""
    if registered.source is None:
        return hash_of_definition(registered)
    with suppress(SyntaxError, ValueError, RecursionError):
        return _hash(syntax(registered.source.text))
    return UNKNOWN


def hash_of_definition(registered: Registered) -> str:
    """Return a hash of the function or class of a name; `UNKNOWN` if its source is lost."""
    with suppress(SyntaxError, ValueError, RecursionError):
        part = getattr(registered.part, "function", registered.part)  # an `Entry` has a function
        code = definition(part)
        if isinstance(code, tuple) and code[1:] == ([], None):  # as earlier versions hash it
            return _hash(code[0])
        if code is not part:  # not a builtin, or interactive code
            return _hash(re.sub(" at 0x[0-9a-f]+", "", repr(code)))
    return UNKNOWN


@cache
def _git() -> Record:
    """Return the commit of the package and its dirty flag; {} if unknown."""
    if (_PACKAGE.parent / ".git").exists():
        return _git_status()
    with suppress(PackageNotFoundError, ValueError, KeyError, TypeError):
        origin = Distribution.from_name("t2t-jax").read_text("direct_url.json")
        # Only `pip install git+URL` records a commit.
        return {"commit": json.loads(origin or "{}")["vcs_info"]["commit_id"], "dirty": False}
    return {}


def _git_status() -> Record:
    command = ["git", "--no-optional-locks", "status", "--porcelain=v2", "--branch", "--", "."]
    try:
        status = subprocess.check_output(
            command, cwd=_PACKAGE, stderr=subprocess.DEVNULL, errors="replace", timeout=_GIT_TIMEOUT
        )
    except (OSError, subprocess.SubprocessError):  # git is missing or refuses the directory
        return {}
    commit_match = re.search(r"^# branch\.oid ([0-9a-f]+)$", status, re.MULTILINE)
    is_dirty = re.search("^[^#]", status, re.MULTILINE) is not None
    return {"commit": commit_match[1], "dirty": is_dirty} if commit_match else {}
