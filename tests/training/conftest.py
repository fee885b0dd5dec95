"""A tiny run: config, model, mesh and a batch of two pairs in rows of different lengths."""

from typing import Any, NamedTuple
from unittest.mock import Mock

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from t2t_jax.batch import Batch, Sequence
from t2t_jax.config import Config
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.modules.models import make_model
from t2t_jax.modules.transformer import Transformer
from t2t_jax.parallel.mesh import batch_layout, make_mesh
from t2t_jax.workdir import StoredRun, read_config
from tests.tiny import tiny_sizes

VOCAB_SIZE = 13


class TinyRun(NamedTuple):
    """What a step needs."""

    config: Config
    model: Transformer
    mesh: Mesh

    def changed(self, **changes: Any) -> "TinyRun":
        """The same with some fields of the config changed; `__` stands for the dot."""
        dotted = {name.replace("__", "."): value for name, value in changes.items()}
        config = self.config.replace(dotted)
        return TinyRun(config, make_model(config, VOCAB_SIZE, None), self.mesh)

    def put(self, batch: Batch, tokens_per_device: int | None = None) -> Batch:
        """A global batch on the mesh, in passes of at most so many tokens."""
        (rows, source), (_, target) = batch.inputs.tokens.shape, batch.targets.tokens.shape
        return batch_layout(self.mesh, rows, max(source, target), tokens_per_device).put(batch)


def stored_run(workdir):
    """Read a run that has checkpoints and a config, but no vocabulary."""
    return StoredRun(workdir, read_config(workdir), Mock(spec=Vocabulary), {})


def like(tree):
    """Describe the arrays of a tree, as reading a checkpoint asks for them."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)


@pytest.fixture(scope="session")
def tiny():
    """A run of a model with one layer of each kind."""
    config = Config().replace(
        {**tiny_sizes(8, (1, 1)), "model.dropout_rate": 0.0, "training.warmup_steps": 10}
    )
    return TinyRun(config, make_model(config, VOCAB_SIZE, None), make_mesh(config.parallel))


@pytest.fixture(scope="session")
def batch():
    """Eight pairs of random tokens, of 3 to 6 tokens a side."""
    rng = np.random.default_rng(0)

    def side(length):
        lengths = rng.integers(3, length + 1, (8, 1))
        positions = np.broadcast_to(np.arange(length, dtype=np.int32), (8, length))
        real = positions < lengths
        tokens = rng.integers(4, VOCAB_SIZE, (8, length), dtype=np.int32)
        return Sequence(tokens * real, real.astype(np.int32), positions * real)

    return Batch(side(6), side(5))
