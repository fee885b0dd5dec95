"""The WMT example of Flax (github.com/google/flax, examples/wmt), in float32.

The second argument is the folder of the example, which is measured with its own model, steps and
default config, and the sizes of our model. The example is pre-norm, drops attention weights and
hidden activations too, and searches greedily with a beam of one. In decoding its weights are its
own, as the architectures differ.
"""

import runpy
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import flax.linen as nn
import flax.training.checkpoints  # noqa: F401  (it looks for TensorFlow, and must find no stub)
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import jax_utils
from flax.training import common_utils

from systems.protocol import Decoding, Training, serve
from t2t_jax.config import Config

_NEVER = -1  # the id of an end of sentence that never occurs


@cache
def _example() -> tuple[Any, Any]:
    """Import the example's `train` and default config, without its code for data and logs."""
    folder = Path(sys.argv[2])
    for name in ("clu", "tensorflow", "input_pipeline"):
        sys.modules[name] = MagicMock()
    sys.modules["ml_collections"] = MagicMock(ConfigDict=SimpleNamespace)
    sys.path.insert(0, str(folder))
    import train  # the module of the example

    defaults = runpy.run_path(str(folder / "configs" / "default.py"))["get_config"]()
    return train, defaults


def _model_config(config: Config) -> Any:
    example, defaults = _example()
    model = config.model
    return example.models.TransformerConfig(
        vocab_size=config.data.vocab_size,
        output_vocab_size=config.data.vocab_size,
        share_embeddings=defaults.share_embeddings,
        logits_via_embedding=defaults.logits_via_embedding,
        dtype=jnp.float32,
        emb_dim=model.d_model,
        num_heads=model.num_heads,
        num_layers=model.num_encoder_layers,
        qkv_dim=model.d_model,
        mlp_dim=model.d_ff,
        max_len=max(defaults.max_target_length, defaults.max_eval_target_length),
        dropout_rate=defaults.dropout_rate,
        attention_dropout_rate=defaults.attention_dropout_rate,
        kernel_init=nn.initializers.xavier_uniform(),
        bias_init=nn.initializers.normal(stddev=1e-6),
    )


def _parameters(config: Any) -> Any:
    example, _ = _example()
    model = example.models.Transformer(config.replace(deterministic=True))
    ones = jnp.ones((1, 8), jnp.float32)
    return jax.jit(model.init)(jax.random.key(0), ones, ones)["params"]


def train(work: Training) -> Callable[[], float]:
    """Prepare the example's training step, compiled as its training loop compiles it."""
    example, defaults = _example()
    model = _model_config(work.config)
    schedule = example.create_learning_rate_schedule(defaults.learning_rate, defaults.warmup_steps)
    adam = optax.adamw(schedule, b1=0.9, b2=0.98, eps=1e-9, weight_decay=defaults.weight_decay)
    train_step = partial(
        example.train_step,
        config=model,
        learning_rate_fn=schedule,
        label_smoothing=defaults.label_smoothing,
    )
    state = jax_utils.replicate(
        example.TrainState.create(
            apply_fn=None, params=_parameters(model), tx=adam, dynamic_scale=None
        )
    )
    step = jax.pmap(train_step, axis_name="batch", donate_argnums=0)
    arrays = {"inputs": np.array(work.inputs), "targets": np.array(work.targets)}
    batch = common_utils.shard(arrays)
    keys = jax.random.split(jax.random.key(0), jax.local_device_count())

    def take() -> float:
        nonlocal state
        state, metrics = step(state, batch, dropout_rng=keys)
        return float(metrics["loss"][0] / metrics["denominator"][0])

    return take


def decode(work: Decoding) -> Callable[[], list[list[int]]]:
    """Prepare the example's prediction of one batch, which begins with an empty cache."""
    example, _ = _example()
    config = _model_config(work.config)
    params = jax_utils.replicate(_parameters(config))
    config = config.replace(deterministic=True, decode=True)
    length = work.target_length + 1  # with the begin of sentence
    new_cache = jax.pmap(
        partial(example.initialize_cache, max_decode_len=length, config=config), axis_name="batch"
    )
    predict = jax.pmap(
        partial(example.predict_step, config=config, beam_size=work.config.decoding.beam_size),
        axis_name="batch",
        static_broadcasted_argnums=(3, 4),
    )
    inputs = common_utils.shard(np.array(work.inputs))

    def translate() -> list[list[int]]:
        tokens = predict(inputs, params, new_cache(inputs), _NEVER, length)
        return example.tohost(tokens).tolist()

    return translate


if __name__ == "__main__":
    serve(train=train, decode=decode)
