"""The memory and the least time of a step, computed for some devices without running it."""

from t2t_jax.plugins import Plugin

PLUGIN = Plugin(flags={"train": "t2t_jax.extras.compile_only.flags:CompileFlags"})
