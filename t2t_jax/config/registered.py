"""The parts of a config that a config file, a program or a notebook registered."""

import os
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any

from t2t_jax.config.families import FAMILIES
from t2t_jax.config.registry import FILES, Registered, Registry, snake_case
from t2t_jax.config.tables import NAMED

if TYPE_CHECKING:
    from t2t_jax.config.config import Config

_PARTS: dict[str, Registry[Any]] = {**NAMED, "model.architecture": FAMILIES}


def registered_parts(config: "Config") -> dict[str, Registered]:
    """Return the registered parts that a config uses, by the name of the field."""
    values = {path: config.value(path) for path in _PARTS}
    parts = {path: _PARTS[path].registered(value) for path, value in values.items() if value}
    return {path.partition(".")[2]: part for path, part in parts.items() if part}


def environment_of(config: "Config") -> dict[str, str]:
    """Return the environment variables that another process needs for the same config."""
    sources = (part.source for part in registered_parts(config).values())
    paths = dict.fromkeys(source.path for source in sources if source)
    files = filter(None, [os.environ.get(FILES), *paths])
    return {FILES: os.pathsep.join(files)} if paths else {}


def check_registered_parts(config: "Config") -> None:
    """Refuse a config, such as that of a stored run, with a name that is not registered."""
    for path, registry in _PARTS.items():
        if (value := config.value(path)) is not None:
            registry.check(path, value)


def with_parts(config: "Config", parts: Mapping[str, object]) -> "Config":
    """Return a config that names the given parts.

    An unregistered part is registered under its name in snake case, or else as `own_KIND`.

    Args:
      parts: by config field, a text, a part, or None, which keeps the value of the config.
    """
    changes: dict[str, object] = {}
    for path, part in parts.items():
        if part is None:
            continue
        registry = _PARTS[path]
        classes = [x.part for x in registry.registered_parts.values()]
        if not isinstance(part, str) and type(part) not in classes:
            is_entry = is_dataclass(part) and not isinstance(part, type)
            definition: Any = type(part) if is_entry else part
            name = snake_case(getattr(definition, "__name__", ""))
            is_name = name.isascii() and name.isidentifier() and name[0].isalpha()
            is_free = is_name and name not in registry.names
            name = name if is_free else f"own_{registry.kind}"
            registry.register(name, definition, replace=True)
            part = part if is_entry else name
        changes[path] = part
    return config.replace(changes)
