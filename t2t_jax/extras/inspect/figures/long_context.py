"""Draw the cost of long sequences (section 4, Table 1), computed and measured."""

import math
import time
from collections.abc import Iterator, Sequence
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

_SECONDS = 0.3
"""Runs of a layer repeat until they take this long together."""
_MAX_BYTES = 4 << 30
"""A layer with more bytes of temporaries is compiled, but not run."""
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16_384)
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
    seconds, temp_bytes = np.array([*_measured(layer_config, lengths)]).T
    figure, (flops_axes, memory_axes, time_axes) = canvas(12, 4, 3)
    flops_axes.plot(x, linear_flops / 1e9, color=COLORS[0], label="projections, feed-forward: n d²")
    flops_axes.plot(x, square_flops / 1e9, color=COLORS[1], label="scores, weighted values: n² d")
    flops_axes.set(ylabel="GFLOPs", title="by formula")
    memory_axes.plot(x, attention_bytes / 2**20, color=COLORS[1], label="m maps: 4 m n² bytes")
    memory_axes.plot(x, temp_bytes / 2**20, "o-", color="black", label="temporaries of the layer")
    if temp_bytes[-1] < attention_bytes[-1]:
        linear_bytes = temp_bytes[-1] * x / x[-1]
        label = "linear in n: attention in blocks"
        memory_axes.plot(x, linear_bytes / 2**20, ":", color="gray", label=label)
    memory_axes.set(ylabel="MiB", title="temporary memory of one sequence")
    time_axes.plot(x, 1e3 * seconds, "o-", color="black", label="forward pass, best run")
    square_seconds = seconds[-1] * (x / x[-1]) ** 2
    time_axes.plot(x, 1e3 * square_seconds, ":", color="gray", label="quadratic in n")
    time_axes.set(ylabel="ms", title=f"time on {jax.devices()[0].device_kind}")
    for axes in (flops_axes, memory_axes, time_axes):
        axes.set(xlabel="tokens in the sequence, n", xscale="log", yscale="log")
        axes.set_xticks(x, [f"{n:,}" for n in x], rotation=45)
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


def _measured(config: Config, lengths: Sequence[int]) -> Iterator[tuple[float, float]]:
    """Yield the seconds and temporary bytes of a compiled layer by length, NaN if unknown."""
    model = make_model(config, vocab_size=32, mesh=None)
    variables = {"params": init_parameters(model, jax.random.key(0))}
    method = "encode" if len(config.model.stacks) == 2 else "decoded"
    for length in lengths:
        row = one_a_row(jnp.ones((1, length), jnp.int32))
        token, empty = (jax.tree.map(lambda x, n=n: x[:, :n], row) for n in (1, 0))
        batch = Batch(empty, row) if config.model.decodes else Batch(row, token)
        inputs: tuple[object, ...] = row if method == "encode" else batch
        compiled = jax.jit(partial(model.apply, method=method)).lower(variables, inputs).compile()
        memory = compiled.memory_analysis()
        temp_bytes = math.nan if memory is None else memory.temp_size_in_bytes
        run_seconds: list[float] = []
        while not temp_bytes > _MAX_BYTES and sum(run_seconds) < _SECONDS:
            start_time = time.perf_counter()
            jax.block_until_ready(compiled(variables, inputs))
            run_seconds.append(time.perf_counter() - start_time)
        yield min(run_seconds, default=math.nan), temp_bytes
