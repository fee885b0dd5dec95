"""The paper's base model (Table 3, first row) for any corpus, with a 32k vocabulary.

    t2t-jax train --config configs/base.py --data.corpus text:DIR --workdir runs/base
    t2t-jax evaluate --workdir runs/base

Hardware: 8 NVIDIA P100 in the paper, each with about 3,100 target tokens per step.
Time: 12 hours in the paper (100,000 steps of 0.4 s).
Score: depends on your corpus; configs/ende_base.py and enfr_base.py have the paper's for WMT14.

All settings except the vocabulary are the paper's: 25,000 source and 25,000 target tokens per step,
Adam with 4,000 warmup steps, 100,000 steps, an average of 5 checkpoints that are 1,400 steps apart
(10 minutes in the paper), beam size 4 and length penalty 0.6. The paper's vocabulary for WMT14
English-German has about 37,000 entries. A GPU or TPU processes as many positions at once as fit
into its memory, and a CPU processes 4,096 (`parallel.tokens_per_device`).
"""

from t2t_jax.config import Config, DataConfig, ParallelConfig


def get_config() -> Config:
    return Config(
        data=DataConfig(vocab_size=32_768),
        parallel=ParallelConfig(tokens_per_device="auto"),
    )
