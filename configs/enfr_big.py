"""The paper's big model for WMT 2014 English-French.

    t2t-jax train --config configs/enfr_big.py --workdir runs/enfr_big
    t2t-jax evaluate --workdir runs/enfr_big

Hardware: 8 NVIDIA P100 in the paper. We did not train it.
Time: 3.5 days in the paper (300,000 steps of 1.0 s).
Score: 41.8 BLEU on newstest2014, the test split, in Table 2 and the abstract of the paper; section
6.1 has 41.0.

The model size is the same as in configs/ende_big.py. The data is the same as in
configs/enfr_base.py, which lists the differences from the paper. Dropout is 0.1 instead of 0.3
(section 6.1).
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
            dropout_rate=0.1,
        ),
        data=DataConfig(
            corpus="wmt14-en-fr:corpora/wmt14-en-fr",
            source_language="en",
            target_language="fr",
            vocab_size=32_000,
        ),
        training=TrainingConfig(num_train_steps=300_000),
        checkpoint=CheckpointConfig(every_steps=600, keep=20, average=20),
        evaluation=EvaluationConfig(every_steps=5000),
        parallel=ParallelConfig(tokens_per_device="auto"),
    )
