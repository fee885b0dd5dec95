"""Python files that describe runs: one config, or a grid of named ones.

def get_config() -> Config: ...      # one run
VARIANTS: dict[str, Config]          # a grid; FILE.py:NAME names one of its configs
PUBLISHED: dict[str, Table3Row]      # optional: figures of the paper for variants of that name

The files of the repository's `configs/` come with the package: `configs/base.py` names one of them
from any directory that has no such file of its own.
"""

import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, get_type_hints

from t2t_jax.config.config import Config, differences
from t2t_jax.config.families import FAMILIES
from t2t_jax.config.registry import FILES
from t2t_jax.config.running import guarded, run_file
from t2t_jax.config.tables import environment_of, named_entries
from t2t_jax.errors import UserError, did_you_mean, quote
from t2t_jax.paper import Table3Row

Choices = Mapping[str | tuple[str, ...], Sequence[Any]]
"""The values that `product` combines, by the path of their field; fields that change together have
a tuple of their paths, and a tuple of values for each row."""
_Variants: TypeAlias = Mapping[Any, object]

MOST_CELLS = 10_000
"""The most cells of a grid; a mistyped number would never end."""
_MOST_BYTES = 255
"""The longest name of a directory, in UTF-8."""
_NAME = re.compile(r"[\w(=][\w.,=+()-]*")


class Grid(NamedTuple):
    """Named configs that are trained and compared with each other."""

    variants: dict[str, Config]
    """The configs by name; each is compared with the one called `base`, or else with the first."""
    published: Mapping[str, Table3Row]
    """The figures of the paper, by the name of the variant."""
    source: str = ""
    """The text of a config file that describes the grid; empty for a grid that a program made."""
    compared_with: str = ""
    """The variant that the others are compared with; empty for `base`, or else the first."""

    @property
    def base(self) -> str:
        """Return the name of the variant that the others are compared with."""
        first = "base" if "base" in self.variants else next(iter(self.variants))
        return self.compared_with or first


def product(base: Config, choices: Choices) -> dict[str, Config]:
    """Make a grid of every combination of some values of some fields.

    Args:
      base: the config that gives all other fields.
      choices: values by path, such as `{"model.num_heads": [1, 4], "model.d_ff": [1024, 2048]}`.
        Fields that change together have one key, as in
        `{("model.d_model", "model.num_heads"): [(128, 4), (256, 8)]}`.

    Returns:
      For each combination its config, under a name such as `num_heads=1,d_ff=1024`. The names have
      the sections of the fields only where two fields would otherwise have the same name.

    Raises:
      UserError: a field does not exist, a value is refused, there are too many combinations, or
        two have the same name or give the same config.
    """
    check_size({str(paths): len(rows) for paths, rows in choices.items()})
    variants: dict[str, Config] = {}
    names: dict[Config, str] = {}
    for rows in itertools.product(*choices.values()):
        changes: dict[str, object] = {}
        for paths, row in zip(choices, rows, strict=True):
            changes |= {paths: row} if isinstance(paths, str) else zip(paths, row, strict=True)
        name, config = ",".join(_named(changes)), base.replace(changes)
        if name in variants:
            raise UserError(
                f"two combinations of a grid have the name {name}; leave one of them out, or make "
                "a dict of configs, whose names you choose"
            )
        if config in names:
            raise UserError(
                f"{names[config]} and {name} of a grid are the same config; leave one of them out"
            )
        variants[name], names[config] = config, name
    return variants


def check_size(counts: Mapping[str, int]) -> None:
    """Refuse a grid of too many cells."""
    if (number := math.prod(counts.values())) > MOST_CELLS:
        shown = " x ".join(f"{count} {name}" for name, count in counts.items())
        raise UserError(f"{shown} are {number:,} cells, more than {MOST_CELLS:,}; give fewer")


def load_config(spec: str) -> Config:
    """Load the config that a Python file describes.

    Args:
      spec: a file such as `configs/base.py`, which defines `get_config() -> Config`, or
        `configs/grid.py:NAME` for a file that defines `VARIANTS: dict[str, Config]`.

    Raises:
      UserError: the file or the variant does not exist, the file defines neither, or has a mistake.
    """
    path, variant = _place(spec)
    module = _run(path)
    variants = _variants(module, path)
    names = ", ".join(map(str, variants)) or "no VARIANTS"
    if variant:
        if variant not in variants:
            hint = did_you_mean(variant, map(str, variants), f"it has: {names}")
            raise UserError(f"{path} has no variant {quote(variant)}; {hint}")
        config = variants[variant]
    elif "get_config" in module:
        config = guarded(path, lambda: module["get_config"]())
    else:
        raise UserError(f"{path} defines no get_config(); name a variant as {path}:NAME ({names})")
    return _checked(config, spec)


def load_grid(path: str) -> Grid:
    """Load the grid that a Python file describes by its `VARIANTS`.

    Args:
      path: the path of the file; `configs/table3.py` is found wherever the package is installed.

    Raises:
      UserError: the file does not exist, has a mistake or no variants, or one of its variants is
        not a config or has a name that a directory cannot have.
    """
    path = _found(path)
    module = _run(path)
    variants = _variants(module, path)
    if not variants:
        raise UserError(
            f"{path} defines no VARIANTS; a grid is a dict of names to configs, as in "
            "configs/table3.py, or what --vary makes of one config"
        )
    grid = checked_grid(variants, module.get("PUBLISHED", {}), path)
    try:
        return grid._replace(source=Path(path).read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:  # it declares another encoding
        raise UserError(f"{path} is not UTF-8 ({error}); save it as UTF-8") from error


def checked_grid(variants: _Variants, published: object, shown: str) -> Grid:
    """Make a grid of variants, each of which is a config with a name that a directory can have.

    Args:
      shown: the name of the grid in errors, such as its file.
    """
    if not variants:
        raise UserError(f"{shown} has no variants; give a dict of names to configs")
    checked: dict[str, Config] = {}
    for name, config in variants.items():
        checked[name] = _checked(config, f"{shown}:{name}")
        _check_files(checked[name], f"{shown}:{name}")
        if not isinstance(name, str) or not can_name_directory(name):
            raise UserError(
                f"{shown} has a variant {quote(name)}, which cannot name a directory; use letters, "
                f"digits and any of . , = + - ( ), at most {_MOST_BYTES} bytes"
            )
    if not isinstance(published, Mapping) or not all(
        isinstance(row, Table3Row) for row in published.values()
    ):
        raise UserError(
            f"PUBLISHED of {shown} is not a dict of names to rows of TABLE_3 from t2t_jax.paper; "
            "use such rows, or leave it out"
        )
    return Grid(checked, published)


def can_name_directory(name: str) -> bool:
    """Return whether a variant may have a name, which is also that of its directory."""
    return _NAME.fullmatch(name) is not None and len(name.encode()) <= _MOST_BYTES


def describe_difference(base: Config, config: Config) -> str:
    """Describe the fields in which a config differs from another, as `d_k=16 d_v=16`."""
    changed = differences(base, config).items()
    return " ".join(_named({path: new for path, (_, new) in changed}))


def _named(values: Mapping[str, object]) -> Iterator[str]:
    """Yield fields as `d_k=16`, with their sections only where two names would else be equal."""
    short = [path.rpartition(".")[2] for path in values]
    labels = short if len(set(short)) == len(short) else values
    for label, value in zip(labels, values.values(), strict=True):
        yield f"{label}={value}"


def _place(spec: str) -> tuple[str, str]:
    """Return the file and the variant of `FILE.py:NAME`, where the file may contain a colon."""
    path, _, variant = spec.rpartition(":")
    has_variant = path.endswith(".py") or Path(_found(path)).is_file()
    if has_variant and not Path(_found(spec)).is_file():
        return _found(path), variant
    return _found(spec), ""


def _found(path: str) -> str:
    """Return the path of a config file: as given, or among the files that come with the package.

    The name of one of these is enough: base is configs/base.py.
    """
    if path.isidentifier() and not Path(path).is_file():
        path = f"{_shipped().name}/{path}.py"
    shipped = _shipped().parent / path
    is_shipped = Path(path).parent == Path(_shipped().name) and shipped.is_file()
    return str(shipped) if is_shipped and not os.path.lexists(path) else path


def _shipped() -> Path:
    """Return the folder of the package's own configs: in a wheel within it, else beside it."""
    package = Path(__file__).parents[1]
    inside = package / "configs"
    return inside if inside.is_dir() else package.with_name("configs")


def _run(path: str) -> dict[str, Any]:
    if not Path(path).is_file():
        known = ", ".join(f"configs/{each.name}" for each in sorted(_shipped().glob("*.py")))
        raise UserError(f"no config file {path}; give a file of your own, or one of {known}")
    return run_file(path)


def _variants(module: Mapping[str, object], path: str) -> _Variants:
    variants = module.get("VARIANTS", {})
    if not isinstance(variants, Mapping):
        raise UserError(
            f"VARIANTS of {path} is a {type(variants).__name__}; make it a dict of names to configs"
        )
    # Of a member of an enumeration that is a string, its value.
    return {str.__str__(n) if isinstance(n, str) else n: each for n, each in variants.items()}


def _checked(config: object, spec: str) -> Config:
    """Return what a file gave as a config, or refuse it if it or one of its sections is none."""
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
    """Refuse a name in a grid that the processes of its cells could not register again."""
    for entry in named_entries(config).values():
        if entry.source is None or os.pathsep in entry.source.path:
            raise UserError(
                f"{spec} has {entry.title}, which only this process knows, and each cell of a grid "
                f"is a process of its own; register it in the config file of the grid, or in a "
                f"file that {FILES} names, at a path without {os.pathsep!r}"
            )


def product_file(base: Config, choices: Choices, title: str) -> str:
    """Return the text of a config file whose VARIANTS are a product of values of some fields.

    Args:
      title: a line of text that says what made the file.
    """
    lines = [*title.splitlines()]
    if named := environment_of(base):
        lines.append(f"It names functions that other files register: set {FILES}={named[FILES]}")
    head = "".join(f"# {line}\n" for line in lines)
    homes, sections, default = {"t2t_jax": ["product"], "t2t_jax.config": ["Config"]}, "", Config()
    for name, section in vars(base).items():
        if section != getattr(default, name):
            kind, values = type(section), ((f, getattr(section, f.name)) for f in fields(section))
            changed = "".join(f"        {f.name}={x!r},\n" for f, x in values if x != f.default)
            sections = (sections or "\n") + f"    {name}={kind.__name__}(\n{changed}    ),\n"
            # The module of a plugin, or the one from which users import our sections.
            home = re.sub(r"^(t2t_jax\.config)\..*", r"\1", kind.__module__)
            homes.setdefault(home, []).append(kind.__name__)
    imports = (f"from {home} import {', '.join(sorted(homes[home]))}\n" for home in homes)
    rows = "".join(f"        {path!r}: {values!r},\n" for path, values in choices.items())
    return (
        f"{head}\n{''.join(imports)}\nBASE = Config({sections})\n\n"
        f"VARIANTS = product(\n    BASE,\n    {{\n{rows}    }},\n)\n"
    )
