"""The commands of `t2t-jax`, one file each, and their shared flags, streams and tables."""
