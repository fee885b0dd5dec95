"""Sweeps over a grid of configs: every variant and seed is trained, scored and compared."""
