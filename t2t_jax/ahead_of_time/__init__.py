"""Whether a run fits its devices and how fast it can be at most, found without running it."""
