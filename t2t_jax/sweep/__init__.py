"""Sweeps over a grid of configs: train, score and compare every variant and seed."""
