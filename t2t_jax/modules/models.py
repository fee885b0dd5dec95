"""Build the network of a config, for training and for decoding."""

from typing import cast

import numpy as np
from jax.sharding import Mesh

from t2t_jax.batch import BOS_ID, EOS_ID, PAD_ID
from t2t_jax.config import Config, ModelConfig, families, sections
from t2t_jax.config.model import StartToken
from t2t_jax.errors import UserError, quote
from t2t_jax.kernels.choice import kernels_of
from t2t_jax.kernels.reference import REFERENCE, Kernels
from t2t_jax.modules.decoding_model import DecodingModel, ScoringModel
from t2t_jax.modules.network import Network
from t2t_jax.modules.transformer import TokenNetwork
from t2t_jax.plugins import load

_START_IDS: dict[StartToken, int] = {"begin": BOS_ID, "end": EOS_ID, "padding": PAD_ID}


def start_id(model: ModelConfig) -> int:
    """Return the id of the first decoder input token; the id of `<s>` without a decoder."""
    return _START_IDS[model.start_token if isinstance(model, families.WithDecoder) else "begin"]


def build(
    config: Config | ModelConfig, vocab_size: int, kernels: Kernels = REFERENCE
) -> TokenNetwork:
    """Build the network of a config as a Flax Linen module, for any devices.

    `init` returns plain parameters, and `apply` returns logits. Training uses `make_model`, which
    chooses fast kernels for the devices and has the same parameters.

    Args:
      config: the config of a run, or its `model`, such as an `EncoderDecoderConfig`.
      vocab_size: size of the target vocabulary.
      kernels: the functions that compute attention and matmuls. The default is plain JAX, which
        supports every JAX transform; `kernels_of(mesh, dtype)` returns fast kernels for a mesh.

    Raises:
      UserError: `config` has another type, or `vocab_size` is not a positive integer.
    """
    if not isinstance(config, Config | ModelConfig):
        raise UserError(
            f"config={quote(config)} is a {type(config).__name__}; give a t2t_jax.Config, or the "
            "config of a network such as t2t_jax.config.EncoderDecoderConfig(d_model=64)"
        )
    if not isinstance(vocab_size, int | np.integer) or vocab_size < 1:
        raise UserError(f"vocab_size={quote(vocab_size)} is not a positive whole number")
    model_config = config.model if isinstance(config, Config) else config
    remat = config.parallel.remat if isinstance(config, Config) else "none"
    return _network(model_config, int(vocab_size), kernels, None, remat)


def _network(
    model: ModelConfig, vocab_size: int, kernels: Kernels, mesh: Mesh | None, remat: sections.Remat
) -> TokenNetwork:
    network = load(families.FAMILIES[model.architecture].network)
    return network(model, vocab_size, start_id(model), remat=remat, kernels=kernels, mesh=mesh)


def make_model(config: Config, vocab_size: int, mesh: Mesh | None) -> Network:
    """Make the network of a run, for training.

    Args:
      config: the config of the run, `settled`. If the dtype is not settled, the network computes in
        float32.
      mesh: the devices that the network runs on; None means any; see `kernels_of`.
    """
    model, kernels = config.model, kernels_of(mesh, config.model.dtype)
    if config.parallel.backend == "pmap":  # each device runs a separate program
        mesh = None
    return _network(model, vocab_size, kernels, mesh, config.parallel.remat)


def make_scoring_model(model: ModelConfig, vocab_size: int, mesh: Mesh | None) -> ScoringModel:
    """Make a network for scoring and, unless it is encoder-only, for decoding.

    Args:
      model: sizes and options of the network, `settled`, as for `make_model`.
      mesh: see `make_model`.
    """
    network = _network(model, vocab_size, kernels_of(mesh, model.dtype), mesh, "none")
    return load(families.FAMILIES[model.architecture].scoring)(network)


def make_decoding_model(model: ModelConfig, vocab_size: int, mesh: Mesh | None) -> DecodingModel:
    """Make a network for decoding, not encoder-only; see `make_scoring_model`."""
    return cast(DecodingModel, make_scoring_model(model, vocab_size, mesh))
