"""The commands of `eval.py`."""
