"""A small language model, trained on the bundled English text in minutes on two CPU cores.

    t2t-jax train --config configs/lm_small.py --workdir runs/lm_small
    t2t-jax evaluate --workdir runs/lm_small
    t2t-jax generate runs/lm_small --prompt "No devices"

Hardware: 2 cores of an AMD EPYC virtual machine (AVX2, no AVX-512), in float32, 24 November 2026.
Time: 11 minutes, on a shared machine.
Score: 1.455 bits per byte and perplexity 50.8 on the 1,000 lines of test.

The model is a decoder-only network with pre-norm layers and rotary positions, as in later language
models. Each line of the bundled corpus is a document; documents are packed into batch rows.
"""

from t2t_jax.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    DecoderOnlyConfig,
    EvaluationConfig,
    TrainingConfig,
)


def get_config() -> Config:
    return Config(
        model=DecoderOnlyConfig(
            d_model=192,
            num_heads=4,
            d_ff=768,
            num_decoder_layers=4,
            norm_order="pre",
            position="rotary",
        ),
        data=DataConfig(
            task="language_modelling",
            vocab_size=4000,
            max_length=64,
            batching="pack",
            target_tokens_per_step=2048,
        ),
        training=TrainingConfig(num_train_steps=1000, warmup_steps=200, log_every_steps=50),
        checkpoint=CheckpointConfig(every_steps=250, every_minutes=None, average=3),
        evaluation=EvaluationConfig(every_steps=250),
    )
