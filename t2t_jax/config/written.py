"""Config files that a program writes, as Python that a reader understands and edits."""

import json
from typing import Any

from t2t_jax.config.config import Config, differences
from t2t_jax.config.file import Choices
from t2t_jax.config.registry import FILES
from t2t_jax.config.tables import environment_of


def product_file(base: Config, choices: Choices, title: str) -> str:
    """Return the text of a config file whose VARIANTS are a product of values of some fields.

    Args:
      choices: the values, as `config.file.product` takes them.
      title: a line of text that says what made the file.
    """
    rows = "".join(f"        {_literal(key)}: {_literal(choices[key])},\n" for key in choices)
    return (
        f"{_head(base, title)}\nfrom t2t_jax import Config, product\n\n"
        f"BASE = {_replaced(base)}\n\nVARIANTS = product(\n    BASE,\n    {{\n{rows}    }},\n)\n"
    )


def _head(config: Config, title: str) -> str:
    """Return the lines of comment at the top of a file."""
    lines = [*title.splitlines()]
    if named := environment_of(config):
        lines.append(f"It names functions that other files register: set {FILES}={named[FILES]}")
    return "".join(f"# {line}\n" for line in lines)


def _replaced(config: Config) -> str:
    """Return a config as an expression: the fields in which it differs from the paper's model."""
    changed = {path: new for path, (_, new) in differences(Config(), config).items()}
    lines = "".join(
        f"        {_literal(path)}: {_literal(new)},\n" for path, new in changed.items()
    )
    return f"Config().replace(\n    {{\n{lines}    }}\n)" if changed else "Config()"


def _literal(value: Any) -> str:
    """Return a value of a field, or a list or tuple of values, as Python writes it."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False) if value.isprintable() else repr(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_literal, value))}{',' * (len(value) == 1)})"
    return f"[{', '.join(map(_literal, value))}]" if isinstance(value, list) else repr(value)
