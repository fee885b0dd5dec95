"""Later changes to the Transformer, one per variant, for WMT 2014 English-German.

    t2t-jax sweep --config configs/modern.py --dry-run
    t2t-jax sweep --config configs/modern.py --workdir runs/modern
    t2t-jax train --config configs/modern.py:rotary --workdir runs/rotary

Hardware: each variant takes about as long as the paper's base model, 12 hours on 8 NVIDIA P100. We
did not train this grid; `configs/modern_small.py` is a grid of these changes for two CPU cores.
Score: 27.3 BLEU on newstest2014 for the paper's base model, the variant `base`.

The last variant, `modern`, combines the most common changes: pre-norm layers with RMSNorm, SwiGLU,
rotary positions and grouped-query attention. Variants have as many parameters as the base (see
`t2t_jax.config.variants`), except for learned positions and embeddings that are not shared.
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
