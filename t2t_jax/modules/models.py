"""The network of a config, for training and for decoding; this module alone knows every kind."""

from collections.abc import Callable
from typing import TypeAlias, cast

from jax.sharding import Mesh

from t2t_jax.batch import BOS_ID, EOS_ID, PAD_ID
from t2t_jax.config import Config, ModelConfig
from t2t_jax.config.model import StartToken
from t2t_jax.kernels.choice import kernels_of
from t2t_jax.modules.decoding_model import DecodingModel, ScoringModel
from t2t_jax.modules.encoder_model import EncoderModel, EncoderScoring, ImageModel
from t2t_jax.modules.language_model import LanguageModel, LanguageModelDecoding
from t2t_jax.modules.network import Network
from t2t_jax.modules.token_network import TokenNetwork
from t2t_jax.modules.transformer import Transformer, TransformerDecoding

_START_IDS: dict[StartToken, int] = {"begin": BOS_ID, "end": EOS_ID, "padding": PAD_ID}
_Family: TypeAlias = tuple[type[TokenNetwork], Callable[..., ScoringModel]]
_FAMILIES: dict[str, _Family] = {
    "encoder_decoder": (Transformer, TransformerDecoding),
    "decoder_only": (LanguageModel, LanguageModelDecoding),
    "encoder_only": (EncoderModel, EncoderScoring),
}
_IMAGES: _Family = (ImageModel, EncoderScoring)


def start_id(model: ModelConfig) -> int:
    """Return the id that stands before the first token of a target.

    Args:
      model: sizes and options of the network.
    """
    return _START_IDS[model.start_token]


def family_of(model: ModelConfig) -> _Family:
    """Return the classes of a network: the module to train, and the model to score or decode with.

    Args:
      model: sizes and options of the network.
    """
    return _IMAGES if model.num_patches else _FAMILIES[model.architecture]


def make_model(config: Config, vocab_size: int, mesh: Mesh | None) -> Network:
    """Make the network of a run, for training.

    Args:
      config: the config of the run, `settled`. The network of a config that is not settled, and
        leaves the dtype open, computes in float32.
      vocab_size: entries of the vocabulary.
      mesh: the devices that the network runs on; None means any; see `kernels_of`.
    """
    kernels = kernels_of(mesh, config.model.dtype)
    start = start_id(config.model)
    network, _ = family_of(config.model)
    if config.parallel.backend == "pmap":  # each device has a program of its own
        mesh = None
    return network(config.model, vocab_size, start, config.parallel.remat, kernels, mesh)


def make_scoring_model(model: ModelConfig, vocab_size: int, mesh: Mesh | None) -> ScoringModel:
    """Make a network for scoring and, unless it is an encoder alone, for searching.

    Args:
      model: sizes and options of the network, `settled`, as for `make_model`.
      vocab_size: entries of the vocabulary.
      mesh: the devices that the network runs on; None means any; see `kernels_of`.
    """
    kernels = kernels_of(mesh, model.dtype)
    network, decoding = family_of(model)
    return decoding(network(model, vocab_size, start_id(model), kernels=kernels, mesh=mesh))


def make_decoding_model(model: ModelConfig, vocab_size: int, mesh: Mesh | None) -> DecodingModel:
    """Make a network for searching, no encoder alone; arguments as for `make_scoring_model`."""
    return cast(DecodingModel, make_scoring_model(model, vocab_size, mesh))
