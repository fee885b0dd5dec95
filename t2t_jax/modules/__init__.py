"""Flax Linen modules: parameters around the functions of `t2t_jax.functional`."""
