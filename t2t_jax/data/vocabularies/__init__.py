"""The kinds of vocabularies behind the interface of `t2t_jax.data.vocabulary`, a file each."""
