"""Format durations."""


def duration(seconds: float) -> str:
    """Format a time with three digits, in the largest unit in which it is at least 2."""
    unit, unit_seconds = unit_of_time(seconds)
    return f"{seconds / unit_seconds:.3g} {unit}"


def unit_of_time(seconds: float) -> tuple[str, int]:
    """Return the largest unit in which a time is at least 2, and the seconds of that unit."""
    units = ("days", 86_400), ("h", 3600), ("min", 60)
    return next((unit for unit in units if seconds >= 2 * unit[1]), ("s", 1))
