"""The paper's big model for WMT 2014 English-German.

    t2t-jax train --config configs/ende_big.py --workdir runs/ende_big
    t2t-jax evaluate --workdir runs/ende_big

Hardware: 8 NVIDIA P100 in the paper. We did not train it.
Time: 3.5 days in the paper (300,000 steps of 1.0 s).
Score: 28.4 BLEU on newstest2014, the test split (Table 2 of the paper). On newstest2013, the dev
split, the paper has 26.4 BLEU and perplexity 4.33 before checkpoint averaging (Table 3).

The config differs from configs/ende_base.py in the model size, dropout 0.3, the number of steps and
an average of 20 checkpoints. 20 checkpoints with Adam's moments take about 50 GB of disk.
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
        data=DataConfig(
            corpus="wmt14-en-de:corpora/wmt14-en-de",
            source_language="en",
            target_language="de",
            vocab_size=37_000,
        ),
        training=TrainingConfig(num_train_steps=300_000),
        checkpoint=CheckpointConfig(every_steps=600, keep=20, average=20),
        evaluation=EvaluationConfig(every_steps=5000),
        parallel=ParallelConfig(tokens_per_device="auto"),
    )
