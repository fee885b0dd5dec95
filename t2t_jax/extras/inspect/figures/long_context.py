"""Draw the cost of long sequences (section 4, Table 1), computed and measured."""

import math
import time
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from t2t_jax.batch import Batch, one_a_row
from t2t_jax.config import Config
from t2t_jax.modules.models import make_model
from t2t_jax.modules.network import init_parameters
from t2t_jax.system.drawing import COLORS, canvas

_VOCAB_SIZE = 32
_REPEATS = 3
LENGTHS = (128, 256, 512, 1024)
"""The sequence lengths, in tokens."""


def long_context(config: Config, lengths: Sequence[int] = LENGTHS) -> Figure:
    """Plot FLOPs, memory and time of one layer against the sequence length in tokens.

    Args:
      config: a config with text inputs. Decoder-only models use a decoder layer, and all other
        models an encoder layer.
    """
    depths = (f"model.num_{name}_layers" for name in ("encoder", "decoder"))
    layer_config = config.replace({depth: 1 for depth in depths if config.value(depth)})
    max_length = layer_config.model.longest_sentence
    lengths = [n for n in lengths if n <= max_length] or [int(max_length)]
    x = np.array(lengths)
    square_flops, linear_flops = operations(layer_config, x)
    attention_bytes = 4 * layer_config.model.attention.num_maps * x**2
    seconds, temp_bytes = np.array([_measure(layer_config, n) for n in lengths]).T
    figure, (flops_axes, memory_axes, time_axes) = canvas(12, 3.5, 3)
    flops_axes.plot(x, linear_flops / 1e9, color=COLORS[0], label="projections, feed-forward: n d²")
    flops_axes.plot(x, square_flops / 1e9, color=COLORS[1], label="scores, weighted values: n² d")
    flops_axes.set(ylabel="GFLOPs", title="by formula")
    memory_axes.plot(x, attention_bytes / 2**20, color=COLORS[1], label="attention weights: 4 m n²")
    memory_axes.plot(x, temp_bytes / 2**20, "o", color="black", label="all temporaries, compiled")
    memory_axes.set(ylabel="MiB", title="memory of one sequence")
    time_axes.plot(x, 1e3 * seconds, "o-", color="black", label="best of 3")
    time_axes.set(ylabel="ms", title=f"measured on {jax.devices()[0].device_kind}")
    for axes in (flops_axes, memory_axes, time_axes):
        axes.set(xlabel="tokens in the sequence, n", xscale="log", yscale="log")
        axes.set_xticks(x, [str(n) for n in x])
        axes.set_xticks([], minor=True)
        axes.legend(fontsize=7)
    name = "encoder" if hasattr(config.model, "num_encoder_layers") else "decoder"
    figure.suptitle(f"One {name} layer, d_model = {layer_config.model.d_model} (section 4)")
    return figure


def operations(config: Config, n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute the FLOPs of the forward pass of one layer over n tokens.

    Returns:
      The FLOPs of matmuls within attention, which grow with n²; and the FLOPs of matmuls with
      parameters, which grow with n.
    """
    model = config.model
    num_weights = model.attention.memory_parameters + model.attention.query_parameters
    num_weights += model.feed_forward_weights
    return 2.0 * model.attention.multiply_adds_per_pair * n**2, 2.0 * num_weights * n


def _measure(config: Config, length: int) -> tuple[float, float]:
    """Measure the seconds and temporary bytes (or NaN) of a compiled layer over `length` tokens."""
    model = make_model(config, _VOCAB_SIZE, None)
    params = init_parameters(model, jax.random.key(0))
    row = one_a_row(jnp.full((1, length), _VOCAB_SIZE - 1, jnp.int32))
    if len(config.model.stacks) == 2:
        inputs: tuple[object, ...] = row
        method = partial(model.apply, method="encode")
    else:
        token, empty = (jax.tree.map(lambda x, n=n: x[:, :n], row) for n in (1, 0))
        inputs = Batch(empty, row) if config.model.decodes else Batch(row, token)
        method = partial(model.apply, method="decoded")
    compiled = jax.jit(method).lower({"params": params}, inputs).compile()
    memory = compiled.memory_analysis()
    run_seconds = []
    for _ in range(_REPEATS + 1):
        start_time = time.perf_counter()
        jax.block_until_ready(compiled({"params": params}, inputs))
        run_seconds.append(time.perf_counter() - start_time)
    # The first run is a warmup.
    return min(run_seconds[1:]), math.nan if memory is None else memory.temp_size_in_bytes
