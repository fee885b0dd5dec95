"""A rehearsal of a run on all of its processes, which trains nothing and writes nothing to keep."""
