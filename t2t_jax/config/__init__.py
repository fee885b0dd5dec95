"""One configuration for training, evaluation and decoding.

A `Config` is a tree of frozen dataclasses. Its constructor checks all values, `replace` makes
changed copies, and JSON stores it without loss. The defaults are the paper's base model ("Attention
Is All You Need", Vaswani et al. 2017, Table 3 and section 5).
"""

from t2t_jax.config.attention import AttentionConfig as AttentionConfig
from t2t_jax.config.attention import NormConfig as NormConfig
from t2t_jax.config.config import Config as Config
from t2t_jax.config.config import differences as differences
from t2t_jax.config.config import format_differences as format_differences
from t2t_jax.config.config import from_dict as from_dict
from t2t_jax.config.config import from_stored as from_stored
from t2t_jax.config.config import to_dict as to_dict
from t2t_jax.config.config import walk as walk
from t2t_jax.config.families import DecoderOnlyConfig as DecoderOnlyConfig
from t2t_jax.config.families import EncoderDecoderConfig as EncoderDecoderConfig
from t2t_jax.config.families import EncoderOnlyConfig as EncoderOnlyConfig
from t2t_jax.config.families import ImageEncoderConfig as ImageEncoderConfig
from t2t_jax.config.families import network_config as network_config
from t2t_jax.config.model import ModelConfig as ModelConfig
from t2t_jax.config.sections import CheckpointConfig as CheckpointConfig
from t2t_jax.config.sections import DataConfig as DataConfig
from t2t_jax.config.sections import DecodingConfig as DecodingConfig
from t2t_jax.config.sections import EvaluationConfig as EvaluationConfig
from t2t_jax.config.sections import MeshConfig as MeshConfig
from t2t_jax.config.sections import ParallelConfig as ParallelConfig
from t2t_jax.config.training import TrainingConfig as TrainingConfig
