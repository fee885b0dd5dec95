"""Put a student's functions into trained models, and check them."""

from t2t_jax.plugins import Plugin

PLUGIN = Plugin(names={"teaching": "t2t_jax.extras.teaching.teaching"})
