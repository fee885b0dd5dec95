"""t2t_jax itself, in the precision of the argument, whatever the config says.

The precision bfloat16 is the value of `model.compute_dtype`; with int8, weights are quantized for
decoding, and all else is computed in float32.
"""

import sys
from collections.abc import Callable
from functools import partial

import flax.linen as nn
import workload

from systems.protocol import Decoding, Training, serve
from systems.weights import read_weights
from t2t_jax.config import Config
from t2t_jax.extras.interchange.portable import PortableModel
from t2t_jax.modules.models import make_model
from t2t_jax.modules.names import parameters_of
from t2t_jax.modules.network import declared_parameters
from t2t_jax.modules.parameters import Parameters


def _in_precision(config: Config) -> Config:
    precision = sys.argv[1]
    return config.replace(
        {
            "model.compute_dtype": "float32" if precision == "int8" else precision,
            "decoding.quantize": "int8" if precision == "int8" else "none",
        }
    )


def _parameters(model: PortableModel) -> Parameters:
    """Return the parameters in the form that training has."""
    network = make_model(model.config, len(model.vocabulary), None)
    return parameters_of(model.arrays, nn.unbox(declared_parameters(network)))


def train(work: Training) -> Callable[[], float]:
    """Prepare the training step of `t2t-jax train`."""
    take = workload.training(_in_precision(work.config), len(work.targets), len(work.targets[0]))
    return partial(take, work.steps)


def decode(work: Decoding) -> Callable[[], list[list[int]]]:
    """Prepare the search of `t2t-jax translate`."""
    search = workload.decoding(
        _in_precision(work.config),
        _parameters(read_weights(work.weights)),
        len(work.inputs),
        len(work.inputs[0]),
        work.target_length,
    )
    return lambda: search().tolist()


if __name__ == "__main__":
    serve(train=train, decode=decode)
