"""Exercise: compute the encoder of a trained model with NumPy.

    python examples/exercises/numpy_encoder.py --workdir runs/tiny

Read the trained arrays with `t2t_jax.named_arrays`, and compute the output of the encoder for a
sentence (sections 3.1 to 3.5). Compare it with `t2t_jax.encoder_states`. The first run trains the
preset `tiny` for a minute.

Wrong answers: a difference of 1 or 2 means that a part is missing, such as the positions or the
embedding's factor sqrt(d_model). A difference of about 0.02 means bfloat16.
"""

import numpy as np
import tyro

import t2t_jax
from t2t_jax.config.file import load_config


def norm(x, scale, bias):
    """Normalize each vector (section 3.1)."""
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale + bias


def encode(arrays, tokens, num_layers, num_heads):
    """Return the encoder's output [tokens, d_model] for one sentence."""
    embedding = arrays["embedding"]
    width = embedding.shape[1]
    angles = np.arange(len(tokens))[:, None] / 10_000 ** (np.arange(0, width, 2) / width)
    positions = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(-1, width)
    x = embedding[tokens] * width**0.5 + positions
    for layer in range(num_layers):
        p = {name.partition(f"encoder.layers.{layer}.")[2]: array for name, array in arrays.items()}
        heads = []
        for columns in np.split(np.arange(width), num_heads):
            query, key, value = (
                x @ p[f"self_attention.{name}"][:, columns] for name in ("W_Q", "W_K", "W_V")
            )
            weights = np.exp(query @ key.T / len(columns) ** 0.5)
            heads.append(weights / weights.sum(-1, keepdims=True) @ value)
        attended = x + np.concatenate(heads, -1) @ p["self_attention.W_O"]
        x = norm(attended, p["self_attention.norm.scale"], p["self_attention.norm.bias"])
        hidden = np.maximum(x @ p["feed_forward.W_1"] + p["feed_forward.b_1"], 0)
        output = x + hidden @ p["feed_forward.W_2"] + p["feed_forward.b_2"]
        x = norm(output, p["feed_forward.norm.scale"], p["feed_forward.norm.bias"])
    return x


def main(workdir: str = "runs/tiny", num_train_steps: int = 900):
    """Train the preset `tiny` if necessary, and compare its encoder with NumPy."""
    steps = {"training.num_train_steps": num_train_steps}
    config = load_config("tiny").replace(steps)
    translator = t2t_jax.train(config, workdir).load()
    model = config.model
    states, _, tokens = t2t_jax.encoder_states(translator, ["No devices were found."])
    arrays = t2t_jax.named_arrays(translator.params)
    output = encode(arrays, tokens[0], model.num_encoder_layers, model.num_heads)
    print(f"largest difference {np.abs(output - states[0]).max():.1e}")


if __name__ == "__main__":
    tyro.cli(main)
