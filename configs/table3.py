"""Every row of the paper's Table 3: variations on the base model, for WMT 2014 English-German.

    t2t-jax sweep --config configs/table3.py --workdir runs/table3
    t2t-jax train --config configs/table3.py:A-h16 --workdir runs/A-h16
    t2t-jax evaluate --workdir runs/A-h16 --split dev

Hardware: 8 NVIDIA P100 in the paper. It has not been trained here.
Time: 12 hours for the base model and 3.5 days for the big one in the paper, which does not say how
long the other rows took.
Score: the paper's figures for each row are in `PUBLISHED`: perplexity and BLEU on newstest2013, the
dev split, by beam search without checkpoint averaging (section 6.2).

On another corpus (`--data.corpus`, `--data.vocab-size`) the figures are not to be compared with the
paper's, but the order of the rows is.
"""

from t2t_jax.config import CheckpointConfig, Config, DataConfig, EvaluationConfig, ParallelConfig
from t2t_jax.paper import TABLE_3

BASE = Config(
    data=DataConfig(
        corpus="wmt14-en-de:corpora/wmt14-en-de",
        source_language="en",
        target_language="de",
        vocab_size=37_000,
    ),
    checkpoint=CheckpointConfig(average=1),
    evaluation=EvaluationConfig(every_steps=5000),
    parallel=ParallelConfig(tokens_per_device="auto"),
)

VARIANTS = {
    name: BASE.replace({**row.changes(), "training.num_train_steps": row.num_train_steps})
    for name, row in TABLE_3.items()
}
"""The rows of Table 3, by name; `--dry-run` lists the differences of each from the base."""

PUBLISHED = TABLE_3
"""The paper's figures for each variant."""
