"""A tiny English-German translator, trained on the bundled corpus in a minute, for exercises.

    t2t-jax train --config configs/tiny.py --workdir runs/tiny

The model is a Transformer with the paper's parts and 0.36 million parameters.
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
    return Config(
        model=EncoderDecoderConfig(
            d_model=64,
            num_heads=4,
            d_ff=256,
            num_encoder_layers=2,
            num_decoder_layers=2,
            dropout_rate=0.0,
            compute_dtype="float32",  # so that exercises can compare numbers
        ),
        data=DataConfig(
            vocab_size=2000,
            max_length=64,
            batching="pack",
            source_tokens_per_step=1024,
            target_tokens_per_step=1024,
        ),
        training=TrainingConfig(num_train_steps=900, warmup_steps=300, log_every_steps=100),
        checkpoint=CheckpointConfig(every_steps=300, every_minutes=None),
        evaluation=EvaluationConfig(every_steps=900, num_sentences=100),
    )
