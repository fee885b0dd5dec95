"""Memory and minimum time of a step, computed for devices that may be absent."""

from t2t_jax.plugins import Plugin

PLUGIN = Plugin(flags={"train": "t2t_jax.extras.compile_only.flags:CompileFlags"})
