"""t2t_jax: "Attention Is All You Need" as a complete system in JAX and Flax::

    import t2t_jax

    run = t2t_jax.train(config, "runs/mine")            # config: a t2t_jax.Config
    run.history.evaluations                             # the dev scores in the log
    translator = run.load(average=5)                    # or t2t_jax.load("runs/mine", average=5)
    translator.translate(["No devices found"])
    t2t_jax.score(translator, sources, targets)         # log-probabilities
    t2t_jax.attention_maps(translator, "No devices found")
    t2t_jax.explore(translator, "No devices found")     # a web page about the model
    t2t_jax.encoder_states(translator, sources)         # a vector for each subword
    t2t_jax.build(config, vocab_size)                   # the network as a Flax module
    translator.module                                   # the trained network, for your own loop
    translator.with_params(params).save("runs/tuned")   # or t2t_jax.save(config, ...)
    t2t_jax.evaluate(translator, split="test").summary()
    t2t_jax.run_grid(t2t_jax.product(config, {"model.num_heads": [1, 4]}), "runs/grid")

`t2t_jax.sweep` is a package, not a function; `run_grid` runs a grid.

Importing `t2t_jax` does not import JAX. The first use of a name that needs JAX imports it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from t2t_jax.batch import Batch as Batch
    from t2t_jax.config import AttentionConfig as AttentionConfig
    from t2t_jax.config import Config as Config
    from t2t_jax.config import MeshConfig as MeshConfig
    from t2t_jax.config.attention_kinds import AttentionKind as AttentionKind
    from t2t_jax.config.file import product as product
    from t2t_jax.config.registry import Parameter as Parameter
    from t2t_jax.config.registry import register as register
    from t2t_jax.config.schedules import Schedule as Schedule
    from t2t_jax.config.tables import register_activation as register_activation
    from t2t_jax.config.tables import register_normalization as register_normalization
    from t2t_jax.config.tables import register_score_function as register_score_function
    from t2t_jax.decoding.attention_maps import attention_maps as attention_maps
    from t2t_jax.decoding.own_model import beam_search as beam_search
    from t2t_jax.decoding.scoring import score as score
    from t2t_jax.decoding.translator import Translator as Translator
    from t2t_jax.errors import UserError as UserError
    from t2t_jax.modules.attention import Context as Context
    from t2t_jax.modules.attention import MultiHeadAttention as MultiHeadAttention
    from t2t_jax.modules.feed_forward import FeedForward as FeedForward
    from t2t_jax.modules.layers import Layer as Layer
    from t2t_jax.modules.models import build as build
    from t2t_jax.modules.names import named_arrays as named_arrays
    from t2t_jax.modules.names import parameter_table as parameter_table
    from t2t_jax.modules.names import parameters_of as parameters_of
    from t2t_jax.modules.stack import LayerStack as LayerStack
    from t2t_jax.run.encoder_states import encoder_states as encoder_states
    from t2t_jax.run.evaluation import evaluate as evaluate
    from t2t_jax.run.loading import TrainedRun as TrainedRun
    from t2t_jax.run.loading import load as load
    from t2t_jax.run.trainer import train as train
    from t2t_jax.saved_model import save as save
    from t2t_jax.sweep.grid import run_grid as run_grid
    from t2t_jax.version import __version__ as __version__

_NAMES = {
    "batch": ["Batch"],
    "config": ["AttentionConfig", "Config", "MeshConfig"],
    "config.attention_kinds": ["AttentionKind"],
    "config.file": ["product"],
    "config.registry": ["Parameter", "register"],
    "config.schedules": ["Schedule"],
    "config.tables": ["register_activation", "register_normalization", "register_score_function"],
    "decoding.attention_maps": ["attention_maps"],
    "decoding.own_model": ["beam_search"],
    "decoding.scoring": ["score"],
    "decoding.translator": ["Translator"],
    "errors": ["UserError"],
    "modules.attention": ["Context", "MultiHeadAttention"],
    "modules.feed_forward": ["FeedForward"],
    "modules.layers": ["Layer"],
    "modules.models": ["build"],
    "modules.names": ["named_arrays", "parameter_table", "parameters_of"],
    "modules.stack": ["LayerStack"],
    "run.encoder_states": ["encoder_states"],
    "run.evaluation": ["evaluate"],
    "run.loading": ["TrainedRun", "load"],
    "run.trainer": ["train"],
    "saved_model": ["save"],
    "sweep.grid": ["run_grid"],
    "version": ["__version__"],
}
"""Public names by module."""
_HOMES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}

__all__ = sorted(_HOMES.keys() - {"__version__"})


def __getattr__(name: str) -> Any:
    from t2t_jax.version import RENAMED, current_name

    if f"{__name__}.{name}" in RENAMED:
        name = current_name(f"{__name__}.{name}").removeprefix(f"{__name__}.")
    if name in _HOMES:  # import the module on first use
        return getattr(importlib.import_module(_HOMES[name]), name)
    if not name.startswith("_"):
        from t2t_jax.plugins import load, rows

        # Plugins can add public names.
        if reference := rows("names", __all__).get(name):
            return load(reference)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    from t2t_jax.plugins import rows

    return sorted([*globals(), *__all__, *rows("names", __all__)])
