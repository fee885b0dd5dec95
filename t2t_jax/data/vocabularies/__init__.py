"""The kinds of vocabularies with the interface of `t2t_jax.data.vocabulary`, one in each file."""
