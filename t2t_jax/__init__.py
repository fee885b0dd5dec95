"""t2t_jax: "Attention Is All You Need" as a complete system in JAX and Flax.

    import t2t_jax

    translator = t2t_jax.load("runs/quickstart", average=5)
    translator.translate(["No devices found"])

Importing the package is cheap: JAX is imported when something that needs it is used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from t2t_jax.config import Config as Config
    from t2t_jax.config.file import product as product
    from t2t_jax.decoding.attention_maps import attention_maps as attention_maps
    from t2t_jax.decoding.translator import Translator as Translator
    from t2t_jax.errors import UserError as UserError
    from t2t_jax.run.loading import load as load
    from t2t_jax.run.trainer import train as train

__version__ = "0.1.1"
__all__ = ["Config", "Translator", "UserError", "attention_maps", "load", "product", "train"]

_HOMES = {
    "Config": "t2t_jax.config",
    "Translator": "t2t_jax.decoding.translator",
    "UserError": "t2t_jax.errors",
    "attention_maps": "t2t_jax.decoding.attention_maps",
    "load": "t2t_jax.run.loading",
    "product": "t2t_jax.config.file",
    "train": "t2t_jax.run.trainer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
