from t2t_jax import Config

import jax.numpy as jnp
import t2t_jax


def cosine(query, key, temperature):
    '''Cosines of queries [b, q, h, d_k] and keys [b, k, h, d_k], times a number of each head.'''
    query, key = (x / (1e-6 + jnp.linalg.norm(x, axis=-1, keepdims=True)) for x in (query, key))
    return temperature[:, None, None] * jnp.einsum("bqhd,bkhd->bhqk", query, key)


t2t_jax.register_score_function(
    "cosine", cosine, lambda d_k: {"temperature": t2t_jax.Parameter((), 10.0)}
)


def get_config():
    return Config().replace({'model.d_model': 64, 'model.num_heads': 4, 'model.d_ff': 128, 'model.num_encoder_layers': 2, 'model.num_decoder_layers': 2, 'model.compute_dtype': 'float32', 'data.vocab_size': 300, 'data.max_length': 64, 'data.batching': 'bucket', 'data.source_tokens_per_step': 1024, 'data.target_tokens_per_step': 1024, 'training.num_train_steps': 800, 'training.warmup_steps': 100, 'training.log_every_steps': 100, 'evaluation.every_steps': 400, 'evaluation.num_samples': 0, 'decoding.max_extra_length': 10, 'checkpoint.every_minutes': None, 'checkpoint.every_steps': 800, 'checkpoint.keep': 1, 'checkpoint.average': 1, 'checkpoint.keep_best': False, 'model.dropout_rate': 0.05, 'model.attention_dropout_rate': 0.05, 'model.num_kv_heads': 2, 'model.norm_epsilon': 1e-05, 'model.score_function': 'cosine', 'data.protected_tokens': ('Crazyhouse',), 'training.schedule': 'wsd', 'training.adam_beta2': 0.99, 'training.clip_gradient_norm': 1.0, 'training.weight_decay': 0.01, 'training.optimizer': 'adamw', 'training.ema_decay': 0.98, 'training.label_smoothing': 0.05, 'training.seed': 3, 'decoding.length_penalty': 1.0, 'decoding.no_repeat_ngram_size': 4, 'decoding.forbidden': ('Apfel',), 'parallel.remat': 'dots', 'parallel.tokens_per_device': 512, 'data.corpus': 'text:corpus', 'data.cache_dir': 'cache'})
