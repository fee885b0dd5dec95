"""t2t_jax and its peers, each with the same work; `peers.py` times them.

A contestant is a module with `train(work)` or `decode(work)`, or both. Each prepares a piece of
work, and returns a function that does it once. It runs in a process of its own, for the libraries'
threads would disturb each other in one.
"""
