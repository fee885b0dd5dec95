"""A model of a billion parameters, which the paper does not have: to train across many devices.

    t2t-jax train --config configs/billion.py --data.corpus text:DIR --workdir runs/billion
    t2t-jax evaluate --workdir runs/billion

Hardware: 4 TPU v5e or more, by the bounds in docs/scaling.md; it has not been trained.
Time: at least 129 ms a step of 4,096 + 4,096 positions a chip, by the same bounds.
Score: unknown.

It is the big model at twice its width and with 8 layers a stack. As is usual for this size, layer
norm comes before the sub-layers, activations are bfloat16, and a step has 131,072 tokens of source
and of target. A corpus for it has hundreds of millions of pairs.

Parameters, Adam's moments and gradients take 16 GB. Devices with less memory share them by
`--parallel.fsdp`; the memory of each can be found without the devices:

    t2t-jax train --config configs/billion.py --compile-only v5e:4x4 --parallel.fsdp 16
"""

from t2t_jax.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    EncoderDecoderConfig,
    EvaluationConfig,
    ParallelConfig,
    TrainingConfig,
)


def get_config() -> Config:
    return Config(
        model=EncoderDecoderConfig(
            d_model=2048,
            num_heads=16,
            d_ff=8192,
            num_encoder_layers=8,
            num_decoder_layers=8,
            norm_order="pre",
            compute_dtype="bfloat16",
        ),
        data=DataConfig(
            vocab_size=32_768,
            source_tokens_per_step=131_072,
            target_tokens_per_step=131_072,
        ),
        training=TrainingConfig(num_train_steps=300_000),
        checkpoint=CheckpointConfig(every_steps=5000, every_minutes=30.0),
        evaluation=EvaluationConfig(every_steps=5000),
        parallel=ParallelConfig(tokens_per_device="auto"),
    )
