"""The commands of `t2t-jax`, one file each, and what they share: flags, streams and tables."""
