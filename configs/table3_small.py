r"""The rows of the paper's Table 3 at an eighth of the width and half the depth, on two CPU cores.

    t2t-jax sweep --config configs/table3_small.py --workdir runs/table3_small \
        --seeds 2 --jobs 2

Hardware: 2 cores of an AMD EPYC (Zen 5) virtual machine, shared, 21 November 2026.
Time: 108 minutes for the 40 runs.
Score: 12.63 sacreBLEU and perplexity 20.63 for the base row; docs/results/table3_small.md has all
rows.

The corpus is Multi30k (Elliott et al. 2016): 29,000 image captions in English and German, with the
validation set of 1,014 as dev. Its license keeps it out of this repository. Put `train.en train.de
dev.en dev.de` from https://github.com/multi30k/dataset (data/task1/raw: train and val) into
`corpora/multi30k`, or set CORPUS below to another corpus, as `text:DIR`.

Rows have the paper's labels and its ratios to the base model: C-d256, half of the base model's
d_model, is 32 here. The column "differs in" has the values. Differences from the paper: 512 tokens
per step, pairs of up to 64 subwords in packed rows, 800 warmup steps, a vocabulary of 2,000, and
2,400 steps for all but the big model. Training is less than two epochs, too short to overfit.
"""

from t2t_jax.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    EncoderDecoderConfig,
    EvaluationConfig,
    TrainingConfig,
)
from t2t_jax.paper import TABLE_3

CORPUS = "text:corpora/multi30k"

BASE = Config(
    model=EncoderDecoderConfig(max_positions=128),
    data=DataConfig(
        corpus=CORPUS,
        vocab_size=2000,
        max_length=64,
        batching="pack",
        source_tokens_per_step=512,
        target_tokens_per_step=512,
    ),
    training=TrainingConfig(warmup_steps=800, log_every_steps=100),
    checkpoint=CheckpointConfig(
        every_steps=500,
        every_minutes=None,
        keep=1,
        keep_best=False,
        average=1,
    ),
    evaluation=EvaluationConfig(every_steps=10_000, num_sentences=100, num_samples=1),
)

VARIANTS = {
    name: BASE.replace(
        {
            **row.changes(narrower=8, shallower=2),
            "training.num_train_steps": row.num_train_steps * 24 // 1000,
        }
    )
    for name, row in TABLE_3.items()
}

PUBLISHED = TABLE_3
"""The paper's figures for each variant, at the paper's size and on its corpus."""
