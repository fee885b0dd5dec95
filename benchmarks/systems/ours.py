"""t2t_jax itself. With the argument int8, weights are quantized for decoding."""

import sys
from collections.abc import Callable

import workload

from systems.protocol import Decoding, Training, serve
from systems.weights import read_weights


def train(work: Training) -> Callable[[], float]:
    """Prepare the training step of `train.py`."""
    return workload.training(work.config, len(work.targets), len(work.targets[0]))


def decode(work: Decoding) -> Callable[[], list[list[int]]]:
    """Prepare the search of `eval.py`."""
    [quantize] = sys.argv[1:] or ["none"]
    search = workload.decoding(
        work.config.replace({"decoding.quantize": quantize}),
        read_weights(work.weights).tree(),
        len(work.inputs),
        len(work.inputs[0]),
        work.target_length,
    )
    return lambda: search().tolist()


if __name__ == "__main__":
    serve(train=train, decode=decode)
