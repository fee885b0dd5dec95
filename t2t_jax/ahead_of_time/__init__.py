"""Does a run fit its devices, and how fast can it be at most? Told before it is queued."""
