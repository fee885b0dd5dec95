"""What later work changed in the Transformer, one change a row, for WMT 2014 English-German.

    t2t-jax sweep --config configs/modern.py --dry-run
    t2t-jax sweep --config configs/modern.py --workdir runs/modern
    t2t-jax train --config configs/modern.py:rotary --workdir runs/rotary

Hardware: each row takes about what the paper's base model took, 12 hours on 8 NVIDIA P100. It has
not been trained here; `configs/modern_small.py` is the same grid for two CPU cores.
Score: 27.3 BLEU on newstest2014 for the paper's base model, the row `base`.

The last row, `modern`, has the changes that most later models made together: RMSNorm before each
sub-layer, SwiGLU, rotary positions and grouped heads of keys and values. Rows have as many
parameters as the base, as `t2t_jax.config.variants` says, but for learned positions and for
embeddings that are not shared.
"""

from t2t_jax.config import Config, DataConfig, EvaluationConfig, ParallelConfig
from t2t_jax.config.variants import variants

BASE = Config(
    data=DataConfig(
        corpus="wmt14-en-de:corpora/wmt14-en-de",
        source_language="en",
        target_language="de",
        vocab_size=37_000,
    ),
    evaluation=EvaluationConfig(every_steps=5000),
    parallel=ParallelConfig(tokens_per_device="auto"),
)

VARIANTS = variants(BASE, window=32)
