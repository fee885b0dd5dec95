"""The clouds whose preemption notices a training can ask for."""

from typing import Literal

Cloud = Literal["gce", "aws"]
"""The name of a cloud, as in `--preemption-notices`."""
