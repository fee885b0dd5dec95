"""The paper's pictures, computed by the functions that the model itself uses."""

from t2t_jax.errors import needs_extra

with needs_extra("plots", "a picture"):
    from t2t_jax.inspect.figures.write import figures, write_figures

__all__ = ["figures", "write_figures"]
