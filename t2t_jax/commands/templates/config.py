"""A translator from @{source} to @{target}: what is trained, on which text, and for how long.

t2t-jax config config.py --diff      # what is not as in the paper's base model
t2t-jax train --config config.py runs/first --dry-run
"""

from t2t_jax import Config


def get_config() -> Config:
    """Return the config of a small Transformer, which a GPU trains in minutes."""
    return Config().replace(
        {
            # The text: train.@{source}, train.@{target}, dev.@{source} and so on, in corpus/.
            "data.corpus": "text:corpus",
            "data.source_language": "@{source}",
            "data.target_language": "@{target}",
            # Subwords: some 4,000 for 50,000 pairs, 8,000 for a million, 37,000 for ten million.
            "data.vocab_size": 8000,
            "data.max_length": 128,
            # A step: more tokens need more memory, and learn more smoothly.
            "data.batching": "pack",
            "data.source_tokens_per_step": 4096,
            "data.target_tokens_per_step": 4096,
            # The network: the paper's base model has 512, 8, 2048, 6 and 6.
            "model.d_model": 256,
            "model.num_heads": 4,
            "model.d_ff": 1024,
            "model.num_encoder_layers": 3,
            "model.num_decoder_layers": 3,
            "model.dropout_rate": 0.1,
            # The training: more steps for more text.
            "training.num_train_steps": 10_000,
            "training.warmup_steps": 1000,
            "checkpoint.every_steps": 250,
            "evaluation.every_steps": 1000,
            "evaluation.num_sentences": 500,
        }
    )
