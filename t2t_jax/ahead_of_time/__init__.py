"""The memory and the least time of a step, computed for some devices without running it."""
