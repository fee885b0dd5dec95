"""Where the time of a step goes, by parts of the model: the profiler's times of all operations."""

from collections.abc import Iterator
from typing import Any

import workload
from profiling import shares

from on_accelerator.sizes import config_of, training_shape


def measure(tiny: bool) -> Iterator[dict[str, Any]]:
    """The rows of this part."""
    for model in ("base",) if tiny else ("base", "big"):
        config = config_of(model, "bfloat16", tiny)
        (step,) = workload.training_steps(config, [training_shape(tiny)])
        step.take()
        for part, share in shares(step.program.as_text(), step.take).items():
            row = {"table": f"a step of the {model} model in bfloat16", "operations": part}
            yield row | {"share_of_the_time": share}
