"""The parts of a config that a config file, a program or a notebook registered."""

import os
from typing import TYPE_CHECKING

from t2t_jax.config.families import FAMILIES
from t2t_jax.config.registry import FILES, Registered, Registry
from t2t_jax.config.tables import NAMED

if TYPE_CHECKING:
    from t2t_jax.config.config import Config

_PARTS: dict[str, Registry] = {**NAMED, "model.architecture": FAMILIES}


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
    """Refuse to train a config, such as that of a stored run, with a name that is not registered.

    Raises:
      UnregisteredError: the process has not registered a part.
    """
    for path, registry in _PARTS.items():
        if (value := config.value(path)) is not None:
            registry.check(path, value)
