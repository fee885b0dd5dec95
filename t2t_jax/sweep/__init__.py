"""From a grid of configs to a table: every variant and seed is trained, scored and compared."""
