"""Two kinds of attention of your own: gated and differential attention, against the paper's.

    python examples/own_attention.py --workdir runs/own_attention

A kind says what attention projects, how it scores pairs, and what it does with the weighted values.
Training, beam search, int8, meshes and the counts of parameters and FLOPs read it as a built-in
one. The default trains three models, for fifteen minutes on two cores.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import tyro

import t2t_jax
from t2t_jax.config.file import load_config
from t2t_jax.functional.normalization import rms_norm


@t2t_jax.register("attention")
@dataclass(frozen=True)
class GatedAttention(t2t_jax.AttentionKind):
    """Multiply the values of a head by sigmoid(x W_g) before W^O (Qiu et al. 2025)."""

    is_elementwise: bool = True
    """Whether each element has a gate; else a head has one."""

    def gates(self, config):
        """Return the width of W_g for a head."""
        return {"gate": config.d_v if self.is_elementwise else 1}

    def combine(self, heads, gates, params, layer):
        """Multiply the weighted values `[b, q, h, d_v]` by the gates."""
        return heads * jax.nn.sigmoid(gates["gate"])


@t2t_jax.register("attention")
@dataclass(frozen=True)
class DifferentialAttention(t2t_jax.AttentionKind):
    """Subtract two maps: (softmax(Q1 K1) - lambda softmax(Q2 K2)) V (Ye et al. 2024, section 2.1).

    As in the paper, a head has twice as wide values as queries: halve `model.num_heads`, and set
    `model.d_k` to d_model / num_heads / 2.
    """

    maps_per_head = 2
    last_lambda: float = 0.8
    """Initial lambda of deep layers; the first layer begins with 0.6 less."""
    epsilon: float = 1e-5

    def parameters(self, config):
        """Return the four vectors of lambda, and the scale of the norm of a head."""
        vector = t2t_jax.Parameter((config.d_k,), deviation=0.1)
        names = "query_1", "key_1", "query_2", "key_2"
        return dict.fromkeys(names, vector) | {"scale": t2t_jax.Parameter((config.d_v,), 1.0)}

    def combine(self, heads, gates, params, layer):
        """Subtract the second map of each head from the first, and normalize the head."""
        start = self.last_lambda - 0.6 * jnp.exp(-0.3 * jnp.asarray(layer, jnp.float32))
        first, second = (jnp.exp(params[f"query_{n}"] @ params[f"key_{n}"]) for n in (1, 2))
        factor = first - second + start
        difference = heads[:, :, 0::2] - factor * heads[:, :, 1::2]  # [b, q, h, d_v]
        return (1 - start) * rms_norm(difference, params["scale"], self.epsilon)


def variants(model):
    """Return the fields of the three models, which have about as many parameters."""
    halved = {"num_heads": model.num_heads // 2, "d_k": model.d_model // model.num_heads}
    return {
        "scaled_dot_product": {},
        "gated_attention": {"attention_kind": GatedAttention()},
        "differential_attention": {"attention_kind": DifferentialAttention(), **halved},
    }


def main(workdir: str = "runs/own_attention", num_train_steps: int = 600):
    """Train a model with each kind on the bundled corpus, and print the scores."""
    base = load_config("quickstart").replace({"training.num_train_steps": num_train_steps})
    for name, fields in variants(base.model).items():
        config = base.replace({f"model.{field}": value for field, value in fields.items()})
        translator = t2t_jax.train(config, f"{workdir}/{name}").load()
        size = sum(x.size for x in jax.tree.leaves(translator.params))
        scores = t2t_jax.evaluate(translator, split="dev", num_sentences=200).summary()
        print(f"{name}: {size:,} parameters, perplexity {scores['perplexity']:.2f}")


if __name__ == "__main__":
    tyro.cli(main)
