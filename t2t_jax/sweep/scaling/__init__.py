"""Scaling laws: what the losses of a grid over sizes and tokens say about larger trainings."""
