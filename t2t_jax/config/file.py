"""Load config files: Python files that define one config, or a grid of named configs.

def get_config() -> Config: ...      # one run
VARIANTS: dict[str, Config]          # a grid; FILE.py:NAME names one of its configs
PUBLISHED: dict[str, Table3Row]      # optional: results in the paper, by variant name

The package contains the files of the repository's `configs/`, so `configs/base.py` works in any
directory.
"""

import itertools
import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, get_type_hints

from t2t_jax.config.config import Config, differences, walk
from t2t_jax.config.families import FAMILIES
from t2t_jax.config.registered import environment_of, registered_parts
from t2t_jax.config.registry import FILES
from t2t_jax.config.running import guarded, run_file
from t2t_jax.config.tables import NAMED
from t2t_jax.errors import UserError, did_you_mean, quote
from t2t_jax.paper import Table3Row

Choices = Mapping[str, Sequence[Any]] | Mapping[str | tuple[str, ...], Sequence[Any]]
"""Values for `product` to combine, by field path. The key of fields that change together is a tuple
of paths, and each of their values is a tuple."""
_Variants: TypeAlias = Mapping[Any, object]

MOST_CELLS = 10_000
"""Maximum number of runs in a grid, to catch a mistyped number."""
_MOST_BYTES = 255
"""Maximum bytes of a directory name in UTF-8."""
_NAME = re.compile(r"[\w(=][\w.,=+()-]*")


class Grid(NamedTuple):
    """Named configs to train and compare."""

    variants: dict[str, Config]
    """Configs by variant name."""
    published: Mapping[str, Table3Row]
    """Results in the paper, by variant name."""
    source: str = ""
    """Text of a config file that defines the grid; "" for a grid made by a program."""
    compared_with: str = ""
    """Name of the baseline variant; "" selects `base`, or else the first variant."""

    @property
    def base(self) -> str:
        """Return the name of the baseline variant."""
        first = "base" if "base" in self.variants else next(iter(self.variants))
        return self.compared_with or first


def product(base: Config, choices: Choices) -> dict[str, Config]:
    """Make a config for each combination of values of config fields.

    Args:
      base: the config with the values of all other fields.
      choices: values by path, such as `{"model.num_heads": [1, 4], "model.d_ff": [1024, 2048]}`.
        Fields that change together have one key, as in
        `{("model.d_model", "model.num_heads"): [(128, 4), (256, 8)]}`.

    Returns:
      The config of each combination, by a name such as `num_heads=1,d_ff=1024`. Names include
      config sections only if two fields have the same name.

    Raises:
      UserError: a field does not exist, a value is invalid, there are too many combinations, or
        two combinations have the same name or the same config.
    """
    check_choices(choices)
    check_size({str(paths): len(rows) for paths, rows in choices.items()})
    variants: dict[str, Config] = {}
    labels: dict[Config, str] = {}
    for rows in itertools.product(*choices.values()):
        changes: dict[str, object] = {}
        # Fields that change together have a tuple of paths as key, and a tuple of values as row.
        for paths, row in zip(choices, rows, strict=True):
            changes |= {paths: row} if isinstance(paths, str) else zip(paths, row, strict=True)
        # A name is also a directory, which has no spaces.
        name = ",".join(_field_texts(changes)).replace(", ", ",")
        config = base.replace(changes)
        if name in variants:
            raise UserError(
                f"two combinations of a grid have the name {name}; remove one of them, or make a "
                "dict of configs with other names"
            )
        if config in labels:
            raise UserError(
                f"{labels[config]} and {name} of a grid are the same config; remove one of them"
            )
        variants[name], labels[config] = config, name
    return variants


def check_choices(choices: Choices) -> None:
    """Raise a `UserError` unless each path has a list of values, and each tuple of paths tuples."""
    for paths, rows in choices.items():
        if isinstance(rows, str) or not isinstance(rows, Collection) or len(rows) == 0:
            raise UserError(f"{paths} has the values {quote(rows)}; give a list of them")
        for row in rows if isinstance(paths, tuple) else ():
            if not isinstance(row, tuple | list) or len(row) != len(paths):
                raise UserError(f"{quote(row)} is not a value for each of {', '.join(paths)}")


def check_size(counts: Mapping[str, int]) -> None:
    """Raise a `UserError` if the product of the counts exceeds `MOST_CELLS`."""
    if (number := math.prod(counts.values())) > MOST_CELLS:
        factors = " x ".join(f"{count} {name}" for name, count in counts.items())
        raise UserError(f"{factors} are {number:,} cells, more than {MOST_CELLS:,}; give fewer")


def load_config(spec: str) -> Config:
    """Load a config from a Python file.

    Args:
      spec: a file such as `configs/base.py`, which defines `get_config() -> Config`, or
        `configs/grid.py:NAME` for a file that defines `VARIANTS: dict[str, Config]`.

    Raises:
      UserError: the file or the variant does not exist, or the file has an error.
    """
    path, variant = _split_spec(spec)
    file_globals = _run(path)
    variants = _variants(file_globals, path)
    names = ", ".join(map(str, variants)) or "no VARIANTS"
    if variant:
        if variant not in variants:
            hint = did_you_mean(variant, map(str, variants), f"it has: {names}")
            raise UserError(f"{path} has no variant {quote(variant)}; {hint}")
        config = variants[variant]
    elif "get_config" in file_globals:
        config = guarded(path, lambda: file_globals["get_config"]())
    else:
        raise UserError(f"{path} defines no get_config(); name a variant as {path}:NAME ({names})")
    return _check_config(config, spec)


def load_grid(path: str) -> Grid:
    """Load a grid from the `VARIANTS` of a Python file.

    Args:
      path: the path of the file; `configs/table3.py` also finds the file of the package.

    Raises:
      UserError: the file does not exist, or has an error, an invalid variant or no variants.
    """
    path = _find_file(path)
    file_globals = _run(path)
    variants = _variants(file_globals, path)
    if not variants:
        raise UserError(
            f"{path} defines no VARIANTS; a grid is a dict of names to configs, as in "
            "configs/table3.py; or use --vary to make a grid from one config"
        )
    grid = checked_grid(variants, file_globals.get("PUBLISHED", {}), path)
    try:
        return grid._replace(source=Path(path).read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:  # the file declares another encoding
        raise UserError(f"{path} is not UTF-8 ({error}); save it as UTF-8") from error


def checked_grid(variants: _Variants, published: object, label: str) -> Grid:
    """Make a grid; check its configs, variant names and published results.

    Args:
      label: the name of the grid in errors, such as its file.

    Raises:
      UserError: a variant is not a config, or its name cannot name a directory.
    """
    if not variants:
        raise UserError(f"{label} has no variants; give a dict of names to configs")
    configs: dict[str, Config] = {}
    for name, config in variants.items():
        configs[name] = _check_config(config, f"{label}:{name}")
        _check_files(configs[name], f"{label}:{name}")
        if not isinstance(name, str) or not can_name_directory(name):
            raise UserError(
                f"{label} has a variant {quote(name)}, which cannot name a directory; use letters, "
                f"digits and any of . , = + - ( ), at most {_MOST_BYTES} bytes"
            )
    if not isinstance(published, Mapping) or not all(
        isinstance(row, Table3Row) for row in published.values()
    ):
        raise UserError(
            f"PUBLISHED of {label} is not a dict of names to rows of TABLE_3 from t2t_jax.paper; "
            "use such rows, or leave it out"
        )
    return Grid(configs, published)


def can_name_directory(name: str) -> bool:
    """Return whether a variant name is valid, because it also names a directory."""
    return _NAME.fullmatch(name) is not None and len(name.encode()) <= _MOST_BYTES


def describe_difference(base: Config, config: Config) -> str:
    """Describe the fields of `config` that differ from `base`, as `d_k=16 d_v=16`."""
    changed, (before, after) = differences(base, config), values_by_path([base, config])
    new = {p: x for p, x in after.items() if p in changed or x != before.get(p, x)}
    return " ".join(_field_texts(new))


def values_by_path(configs: Iterable[Config]) -> list[dict[str, object]]:
    """Return the values of each config's fields, by path.

    If all configs have the same part with different parameters, its parameters replace the field,
    by paths such as `training.schedule.decay_fraction`.
    """
    rows = [{path: value for path, _, value in walk(config)} for config in configs]
    for path, registry in NAMED.items():
        texts = {str(row.get(path)) for row in rows}
        if len(texts) > len({text.partition("(")[0] for text in texts}) == 1:
            for row in rows:
                parameters = registry.parameters(row.pop(path))
                row |= {f"{path}.{name}": value for name, value in parameters.items()}
    return rows


def _field_texts(values: Mapping[str, object]) -> Iterator[str]:
    """Yield fields as `d_k=16`; include sections only if two fields have the same name."""
    short = [path.rpartition(".")[2] for path in values]
    labels = short if len(set(short)) == len(short) else values
    for label, value in zip(labels, values.values(), strict=True):
        yield f"{label}={value}"


def _split_spec(spec: str) -> tuple[str, str]:
    """Split `FILE.py:NAME` into the file, which may contain a colon, and the variant or ""."""
    path, _, variant = spec.rpartition(":")
    has_variant = path.endswith(".py") or Path(_find_file(path)).is_file()
    if has_variant and not Path(_find_file(spec)).is_file():
        return _find_file(path), variant
    return _find_file(spec), ""


def _find_file(path: str) -> str:
    """Return the path of a user's config file, or of a config file in the package.

    The package's configs/base.py can also be named `base`.
    """
    if path.isidentifier() and not Path(path).is_file():
        path = f"{_package_configs().name}/{path}.py"
    package_file = _package_configs().parent / path
    is_in_package = Path(path).parent == Path(_package_configs().name) and package_file.is_file()
    return str(package_file) if is_in_package and not os.path.lexists(path) else path


def _package_configs() -> Path:
    """Return the directory `configs`: inside an installed package, or else next to it."""
    package = Path(__file__).parents[1]
    inside = package / "configs"
    return inside if inside.is_dir() else package.with_name("configs")


def _run(path: str) -> dict[str, Any]:
    if not Path(path).is_file():
        names = ", ".join(sorted(f"configs/{p.name}" for p in _package_configs().glob("*.py")))
        raise UserError(f"no config file {path}; give your config file, or one of {names}")
    return run_file(path)


def _variants(module: Mapping[str, object], path: str) -> _Variants:
    variants = module.get("VARIANTS", {})
    if not isinstance(variants, Mapping):
        raise UserError(
            f"VARIANTS of {path} is a {type(variants).__name__}; make it a dict of names to configs"
        )
    # Convert members of a string enumeration to plain strings.
    return {str.__str__(n) if isinstance(n, str) else n: config for n, config in variants.items()}


def _check_config(config: object, spec: str) -> Config:
    if type(config) is not Config:
        raise UserError(
            f"{spec} gave a {'type' if issubclass(type(config), type) else type(config).__name__}, "
            "not a t2t_jax.Config; make one by Config(), as in configs/base.py"
        )
    for name, section in get_type_hints(Config).items():
        kind = type(getattr(config, name))
        families = [family.config for _, family in FAMILIES.each()]
        if kind not in (families if name == "model" else [section]):
            raise UserError(
                f"the section {name} of {spec} is a {kind.__name__}, not a {section.__name__}"
            )
    return config


def _check_files(config: Config, spec: str) -> None:
    """Raise a `UserError` if a process of the sweep cannot import a registered function.

    Errors begin with `spec`, as `grid.py:VARIANT`.
    """
    for part in registered_parts(config).values():
        if part.source is None or os.pathsep in part.source.path:
            raise UserError(
                f"{spec} has {part.title}, which only this process knows, but each run of a grid "
                f"is a separate process; register it in the config file of the grid, or in a file "
                f"that {FILES} names, at a path without {os.pathsep!r}"
            )


def product_file(base: Config, choices: Choices, title: str) -> str:
    """Return the text of a config file whose VARIANTS are `product(base, choices)`.

    Args:
      title: the first comment of the file, such as the command that wrote it.
    """
    lines = [*title.splitlines()]
    if env := environment_of(base):
        lines.append(f"It names functions that other files register: set {FILES}={env[FILES]}")
    head = "".join(f"# {line}\n" for line in lines)
    imports, base_text = {"t2t_jax": ["product"], "t2t_jax.config": ["Config"]}, ""
    for name, section in vars(base).items():
        if section != getattr(Config(), name):
            kind, pairs = type(section), ((f, getattr(section, f.name)) for f in fields(section))
            changed = "".join(f"        {f.name}={x!r},\n" for f, x in pairs if x != f.default)
            base_text = (base_text or "\n") + f"    {name}={kind.__name__}(\n{changed}    ),\n"
            # Import our sections from t2t_jax.config, and others from the module of their plugin.
            module = re.sub(r"^(t2t_jax\.config)\..*", r"\1", kind.__module__)
            imports.setdefault(module, []).append(kind.__name__)
    import_lines = (f"from {m} import {', '.join(sorted(names))}\n" for m, names in imports.items())
    choices_text = "".join(f"        {path!r}: {options!r},\n" for path, options in choices.items())
    return (
        f"{head}\n{''.join(import_lines)}\nBASE = Config({base_text})\n\n"
        f"VARIANTS = product(\n    BASE,\n    {{\n{choices_text}    }},\n)\n"
    )
