"""The paper's big model (Table 3, last row) for any corpus, with a 32k vocabulary.

    t2t-jax train --config configs/big.py --data.corpus text:DIR --workdir runs/big
    t2t-jax evaluate --workdir runs/big

Hardware: 8 NVIDIA P100 in the paper.
Time: 3.5 days in the paper (300,000 steps of 1.0 s).
Score: depends on your corpus; configs/ende_big.py and enfr_big.py have the paper's for WMT14.

The config differs from configs/base.py in the model size, dropout 0.3, the number of steps, an
average of 20 checkpoints, the steps between checkpoints (600, or 10 minutes in the paper) and the
steps between evaluations. This command checks, without the devices, whether the model fits into
their memory and how fast training can be:

    t2t-jax train --config configs/big.py --compile-only v5e:4x4
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
            d_model=1024,
            num_heads=16,
            d_ff=4096,
            dropout_rate=0.3,
        ),
        data=DataConfig(vocab_size=32_768),
        training=TrainingConfig(num_train_steps=300_000),
        checkpoint=CheckpointConfig(every_steps=600, keep=20, average=20),
        evaluation=EvaluationConfig(every_steps=5000),
        parallel=ParallelConfig(tokens_per_device="auto"),
    )
