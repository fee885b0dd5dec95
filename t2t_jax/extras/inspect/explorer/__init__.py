"""A page on which a model can be explored: its attention, its search and its input."""
