"""Draw the figures of the paper with the functions that the model uses."""

from t2t_jax.errors import needs_extra

with needs_extra("plots", "a picture"):
    from t2t_jax.extras.inspect.figures.write import figures as figures
    from t2t_jax.extras.inspect.figures.write import write_figures as write_figures
