"""The systems that `peers.py` compares, t2t_jax and other toolkits, each with the same work.

A system is a module with `train(work)` or `decode(work)`, or both. Each prepares a piece of
work, and returns a function that does it once. It runs in a process of its own, because the
threads of several libraries in one process would disturb each other.
"""
