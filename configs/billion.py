"""A model with a billion parameters, for training on many devices; it is not in the paper.

    t2t-jax train --config configs/billion.py --data.corpus text:DIR --workdir runs/billion
    t2t-jax evaluate --workdir runs/billion

Hardware: at least 4 TPU v5e, by the bounds in docs/scaling.md; we did not train it.
Time: at least 129 ms per step of 4,096 + 4,096 positions per chip, by the same bounds.
Score: unknown.

The model is twice as wide as the big model, and has 8 layers per stack. As usual for this size, it
is pre-norm, activations are bfloat16, and a step has 131,072 source tokens and 131,072 target
tokens. A suitable corpus has hundreds of millions of sentence pairs.

Parameters, Adam's moments and gradients take 16 GB. With less memory per device, shard them with
`--parallel.fsdp`. This command reports the memory per device, without the devices:

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
