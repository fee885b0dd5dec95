"""The paper's base model for WMT 2014 English-French.

    t2t-jax data wmt14-en-fr corpora/wmt14-en-fr
    t2t-jax train --config configs/enfr_base.py --workdir runs/enfr_base
    t2t-jax evaluate --workdir runs/enfr_base

Hardware: 8 NVIDIA P100 in the paper. We did not train it.
Time: 12 hours in the paper (100,000 steps of 0.4 s).
Score: 38.1 BLEU on newstest2014, the test split (Table 2 of the paper); newstest2013 is the dev
split.

Two settings differ from the paper. The paper has 32,000 word-pieces; this config has 32,000
byte-pair encodings. The paper trains on 36 million sentence pairs; this config trains on all 41
million pairs of WMT, without filtering.
"""

from t2t_jax.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    EvaluationConfig,
    ParallelConfig,
    TrainingConfig,
)


def get_config() -> Config:
    return Config(
        data=DataConfig(
            corpus="wmt14-en-fr:corpora/wmt14-en-fr",
            source_language="en",
            target_language="fr",
            vocab_size=32_000,
        ),
        training=TrainingConfig(num_train_steps=100_000),
        checkpoint=CheckpointConfig(keep=5, average=5),
        evaluation=EvaluationConfig(every_steps=5000),
        parallel=ParallelConfig(tokens_per_device="auto"),
    )
