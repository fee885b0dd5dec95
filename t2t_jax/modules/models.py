"""The network of a config, for training and for decoding: the one place that knows every kind."""

from jax.sharding import Mesh

from t2t_jax.batch import BOS_ID
from t2t_jax.config import Config, ModelConfig
from t2t_jax.kernels.attention import AttentionKernel, kernel_of
from t2t_jax.modules.decoding import TransformerDecoding
from t2t_jax.modules.decoding_model import DecodingModel
from t2t_jax.modules.network import Network
from t2t_jax.modules.transformer import Transformer


def make_model(config: Config, vocab_size: int, mesh: Mesh | None) -> Network:
    """The network of a run, for training.

    Args:
      config: the config of the run.
      vocab_size: entries of the vocabulary.
      mesh: the devices it runs on; None means any, where XLA computes attention.
    """
    return Transformer(config.model, vocab_size, BOS_ID, config.parallel.remat, _kernel(mesh))


def make_decoding_model(model: ModelConfig, vocab_size: int, mesh: Mesh | None) -> DecodingModel:
    """A network for searching and scoring.

    Args:
      model: sizes and options of the network.
      vocab_size: entries of the vocabulary.
      mesh: the devices it runs on; None means any, where XLA computes attention.
    """
    return TransformerDecoding(
        Transformer(model, vocab_size, BOS_ID, attention_kernel=_kernel(mesh))
    )


def _kernel(mesh: Mesh | None) -> AttentionKernel:
    return "xla" if mesh is None else kernel_of(mesh)
