"""The optimizer, the training step and its checkpoints."""
