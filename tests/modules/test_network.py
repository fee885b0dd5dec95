"""Training takes any network that has what `Network` names."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from t2t_jax.batch import Batch, one_a_row
from t2t_jax.config import Config, ModelConfig
from t2t_jax.functional.loss import label_smoothed_cross_entropy
from t2t_jax.modules.network import Network
from t2t_jax.parallel.mesh import make_mesh
from t2t_jax.training.state import create_state
from t2t_jax.training.step import compile_train_step


class Bigrams(nn.Module):
    """The logits of a token depend on the token before it alone."""

    config: ModelConfig
    vocab_size: int

    @nn.compact
    def __call__(self, batch, *, deterministic):
        table = self.param("table", nn.initializers.zeros, (self.vocab_size, self.vocab_size))
        return table[jnp.roll(batch.targets.tokens, 1, axis=1)]

    def example(self):
        sentence = one_a_row(jnp.ones((1, 8), jnp.int32))
        return Batch(sentence, sentence)

    def losses(self, batch, *, label_smoothing, num_chunks=1, deterministic=True, first_row=0):
        logits = self(batch, deterministic=deterministic)
        return label_smoothed_cross_entropy(logits, batch.targets.tokens, label_smoothing)


def test_a_network_of_another_family_is_trained():
    config = Config().replace({"training.warmup_steps": 1, "training.label_smoothing": 0.0})
    mesh = make_mesh(config.parallel, jax.devices()[:1])
    network = Bigrams(config.model, 9)
    assert isinstance(network, Network)
    state = create_state(config, network, mesh)
    step = compile_train_step(config, network, mesh)
    sentence = one_a_row(jnp.array([[5, 6, 7, 5, 6, 7, 1]]))
    losses = []
    for _ in range(20):
        side = jax.tree.map(lambda x: x[None], sentence)
        state, metrics = step(state, Batch(side, side))
        losses.append(float(metrics.losses.nll / metrics.losses.tokens))
    assert losses[0] == pytest.approx(float(jnp.log(9.0)), rel=1e-5)
    assert losses[-1] < losses[0] - 0.1
