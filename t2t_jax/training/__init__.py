"""The optimiser, the training step and its checkpoints."""
