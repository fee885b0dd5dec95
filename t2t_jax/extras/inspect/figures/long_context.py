"""The cost of longer rows (section 4, Table 1), by formula and as measured on this machine."""

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
"""The lengths of rows, in tokens."""


def long_context(config: Config, lengths: Sequence[int] = LENGTHS) -> Figure:
    """Draw the operations, memory and time of a layer, by the length of a row in tokens.

    The config is of a run that reads text. The layer is one of the encoder, or of the decoder of a
    decoder-only model.
    """
    depths = (f"model.num_{name}_layers" for name in ("encoder", "decoder"))
    layer = config.replace({depth: 1 for depth in depths if config.value(depth)})
    longest = layer.model.longest_sentence
    lengths = [n for n in lengths if n <= longest] or [int(longest)]
    x = np.array(lengths)
    quadratic, linear = operations(layer, x)
    weights = 4 * layer.model.num_heads * x**2
    seconds, temporaries = np.array([_measured(layer, n) for n in lengths]).T
    figure, (left, middle, right) = canvas(12, 3.5, 3)
    left.plot(x, linear / 1e9, color=COLORS[0], label="projections, feed-forward: n d²")
    left.plot(x, quadratic / 1e9, color=COLORS[1], label="queries by keys, weights by values: n² d")
    left.set(ylabel="operations, 10⁹", title="by formula")
    middle.plot(x, weights / 2**20, color=COLORS[1], label="attention weights: 4 h n²")
    middle.plot(x, temporaries / 2**20, "o", color="black", label="all temporaries, compiled")
    middle.set(ylabel="MiB", title="memory of one row")
    right.plot(x, 1e3 * seconds, "o-", color="black", label="best of 3")
    right.set(ylabel="ms", title=f"measured on {jax.devices()[0].device_kind}")
    for axes in (left, middle, right):
        axes.set(xlabel="tokens in a row, n", xscale="log", yscale="log")
        axes.set_xticks(x, [str(n) for n in x])
        axes.set_xticks([], minor=True)
        axes.legend(fontsize=7)
    name = "encoder" if hasattr(config.model, "num_encoder_layers") else "decoder"
    figure.suptitle(f"One {name} layer, d_model = {layer.model.d_model} (section 4)")
    return figure


def operations(config: Config, n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute the floating point operations of a layer's forward pass over one row of n tokens.

    Returns:
      The operations of attention's own products, which grow with n², and those of products with
      parameters, which grow with n: two for each weight and token.
    """
    model = config.model
    weights = model.attention.memory_parameters + model.attention.query_parameters
    weights += model.feed_forward_weights
    return 2.0 * model.attention.multiply_adds_per_pair * n**2, 2.0 * weights * n


def _measured(config: Config, length: int) -> tuple[float, float]:
    """Measure one layer, compiled for this machine: seconds and bytes of temporaries (or NaN)."""
    model = make_model(config, _VOCAB_SIZE, None)
    params = init_parameters(model, jax.random.key(0))
    row = one_a_row(jnp.full((1, length), _VOCAB_SIZE - 1, jnp.int32))
    if len(config.model.stacks) == 2:
        given: tuple[object, ...] = row
        method = partial(model.apply, method="encode")
    else:
        one, none = (jax.tree.map(lambda x, n=n: x[:, :n], row) for n in (1, 0))
        given = Batch(none, row) if config.model.decodes else Batch(row, one)
        method = partial(model.apply, method="decoded")
    compiled = jax.jit(method).lower({"params": params}, given).compile()
    memory = compiled.memory_analysis()
    times = []
    for _ in range(_REPEATS + 1):
        start = time.perf_counter()
        jax.block_until_ready(compiled({"params": params}, given))
        times.append(time.perf_counter() - start)
    return min(times[1:]), math.nan if memory is None else memory.temp_size_in_bytes
