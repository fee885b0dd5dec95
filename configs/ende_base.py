"""The paper's base model for WMT 2014 English-German.

    t2t-jax data wmt14-en-de corpora/wmt14-en-de
    t2t-jax train --config configs/ende_base.py --workdir runs/ende_base
    t2t-jax evaluate --workdir runs/ende_base --split test newstest2014-filtered

Hardware: 8 NVIDIA P100 in the paper. We did not train it.
Time: 12 hours in the paper (100,000 steps of 0.4 s).
Score: 27.3 BLEU on newstest2014, the test split (Table 2 of the paper). On newstest2013, the dev
split, the paper has 25.8 BLEU and perplexity 4.92 before checkpoint averaging (Table 3).

The corpus has 4.5 million sentence pairs. All settings are the paper's. docs/reproduce.md describes
how to reproduce the scores, and the cost.
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
            corpus="wmt14-en-de:corpora/wmt14-en-de",
            source_language="en",
            target_language="de",
            vocab_size=37_000,
        ),
        training=TrainingConfig(num_train_steps=100_000),
        checkpoint=CheckpointConfig(keep=5, average=5),
        evaluation=EvaluationConfig(every_steps=5000),
        parallel=ParallelConfig(tokens_per_device="auto"),
    )
