"""Which network a config asks for, and how it decodes: the one place that knows all of them."""

from jax.sharding import Mesh

from t2t_jax.batch import BOS_ID
from t2t_jax.config import Config, ModelConfig
from t2t_jax.kernels.attention import AttentionKernel, kernel_of
from t2t_jax.modules.decoding import TransformerDecoding
from t2t_jax.modules.decoding_model import DecodingModel
from t2t_jax.modules.network import Network
from t2t_jax.modules.transformer import Transformer


def make_model(config: Config, vocab_size: int, mesh: Mesh | None = None) -> Network:
    """The network of a run, as training has it.

    Args:
      config: the run's.
      vocab_size: entries of the vocabulary.
      mesh: the devices that it is for; None is any.
    """
    return Transformer(config.model, vocab_size, BOS_ID, config.parallel.remat, _kernel(mesh))


def make_decoding_model(
    model: ModelConfig, vocab_size: int, mesh: Mesh | None = None
) -> DecodingModel:
    """A network as searches and scoring have it.

    Args:
      model: its sizes and options.
      vocab_size: entries of the vocabulary.
      mesh: the devices that it is for; None is any.
    """
    return TransformerDecoding(Transformer(model, vocab_size, BOS_ID, kernel=_kernel(mesh)))


def _kernel(mesh: Mesh | None) -> AttentionKernel:
    return "xla" if mesh is None else kernel_of(mesh)
