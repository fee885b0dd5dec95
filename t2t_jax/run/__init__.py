"""A run: training, log, evaluation, loading and time use."""
