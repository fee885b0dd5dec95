"""The parts of `accelerator.py`: each a module with `measure(tiny)`, run as a process of its own.

`measure` yields rows of figures, each a dict of which `table` names the table that it belongs to.
They are written down as they come, so that a part that is ended in the middle leaves what it had.
"""
