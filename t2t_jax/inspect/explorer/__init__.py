"""A page on which a model can be explored: its attention, its search and its input."""

from t2t_jax.inspect.explorer.page import Exploration, explore

__all__ = ["Exploration", "explore"]
