"""A grid of configs to a table: every variant and seed trained, scored and compared."""
