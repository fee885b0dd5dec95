"""All rows of the paper's Table 3: variations of the base model, for WMT 2014 English-German.

    t2t-jax sweep --config configs/table3.py --workdir runs/table3
    t2t-jax train --config configs/table3.py:A-h16 --workdir runs/A-h16
    t2t-jax evaluate --workdir runs/A-h16 --split dev

Hardware: 8 NVIDIA P100 in the paper. We did not train it.
Time: 12 hours for the base model and 3.5 days for the big model in the paper, which does not state
the time of the other rows.
Score: `PUBLISHED` has the paper's perplexity and BLEU of each row on newstest2013, the dev split,
with beam search and without checkpoint averaging (section 6.2).

On another corpus (`--data.corpus`, `--data.vocab-size`), compare only the ranking of the rows with
the paper, not the scores.
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
