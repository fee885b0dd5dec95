"""Train a translator from @{source} to @{target}: the model, the data and the training.

t2t-jax config config.py --diff      # the differences from the paper's base model
t2t-jax train --config config.py runs/first --dry-run
"""

from t2t_jax.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    EncoderDecoderConfig,
    EvaluationConfig,
    TrainingConfig,
)


def get_config() -> Config:
    """Return the config of a small Transformer, for minutes of training on a GPU."""
    return Config(
        # The paper's base model has 512, 8, 2048, 6 and 6 for the first five fields.
        model=EncoderDecoderConfig(
            d_model=256,
            num_heads=4,
            d_ff=1024,
            num_encoder_layers=3,
            num_decoder_layers=3,
            dropout_rate=0.1,
        ),
        data=DataConfig(
            # The directory corpus/ has train.@{source}, train.@{target}, dev.@{source} and so on.
            corpus="text:corpus",
            source_language="@{source}",
            target_language="@{target}",
            # Use about 4,000 subwords for 50,000 pairs, 8,000 for 1 million, 37,000 for 10 million.
            vocab_size=8000,
            max_length=128,
            # More tokens per step need more memory, and make training more stable.
            batching="pack",
            source_tokens_per_step=4096,
            target_tokens_per_step=4096,
        ),
        # Use more steps for more text.
        training=TrainingConfig(num_train_steps=10_000, warmup_steps=1000),
        checkpoint=CheckpointConfig(every_steps=250),
        evaluation=EvaluationConfig(every_steps=1000, num_sentences=500),
    )
