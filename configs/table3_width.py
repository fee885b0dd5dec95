r"""The rows of the paper's Table 3 on heads and width, at a larger size, on two CPU cores.

    t2t-jax sweep --config configs/table3_width.py --workdir runs/table3_width \
        --seeds 2 --jobs 2

Hardware: 2 cores of an AMD EPYC virtual machine (AVX2, no AVX-512), in float32, 23 November 2026.
Time: 52 minutes for the 18 runs, on a shared machine.
Score: 21.94 sacreBLEU and perplexity 17.12 for the base row; docs/results/table3_small.md has all
rows.

`configs/table3_small.py` could not determine the direction of the differences in rows (A) and in
the widths of rows (C). This grid repeats them with a quarter of the paper's width and a third of
its layers. Rows have the paper's labels and its ratios to the base model; the column "differs in"
has the values. The corpus is the same as in `configs/modern_small.py`. Dropout is off, because
training is too short to overfit.
"""

from t2t_jax.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    DecodingConfig,
    EvaluationConfig,
    TrainingConfig,
)
from t2t_jax.paper import TABLE_3

CORPUS = "text:corpora/multi30k"

BASE = Config(
    data=DataConfig(
        corpus=CORPUS,
        vocab_size=4000,
        max_length=64,
        batching="pack",
        source_tokens_per_step=1024,
        target_tokens_per_step=1024,
    ),
    training=TrainingConfig(num_train_steps=800, warmup_steps=400, log_every_steps=100),
    checkpoint=CheckpointConfig(
        every_steps=400,
        every_minutes=None,
        keep=1,
        keep_best=False,
        average=1,
    ),
    evaluation=EvaluationConfig(every_steps=10_000, num_sentences=100, num_samples=1),
    decoding=DecodingConfig(length_penalty=1.0),
)

ROWS = ("base", "A-h1", "A-h4", "A-h16", "A-h32", "C-d256", "C-d1024", "C-ff1024", "C-ff4096")

VARIANTS = {
    name: BASE.replace(
        {
            **TABLE_3[name].changes(narrower=4, shallower=3),
            "model.dropout_rate": 0.0,
        }
    )
    for name in ROWS
}

PUBLISHED = {name: TABLE_3[name] for name in ROWS}
"""The paper's figures for each variant, at the paper's size and on its corpus."""
