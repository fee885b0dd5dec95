"""What later work changed in the Transformer, one change a row, for two CPU cores.

    t2t-jax sweep --config configs/modern_small.py --workdir runs/modern_small \
        --seeds 2 --jobs 2

Hardware: 2 cores of an Intel Xeon virtual machine (AVX-512, no AMX), in float32, 23 November 2026.
Time: 130 minutes for the 64 runs, beside other work.
Score: 21.41 sacreBLEU and a perplexity of 16.99 for the base row; all rows are in
docs/results/modern_small.md.

The corpus is Multi30k (Elliott et al. 2016), 29,000 image captions in English and German, and its
validation set of 1,014 as dev. Its licence keeps it out of this repository: put `train.en train.de
dev.en dev.de` from https://github.com/multi30k/dataset (data/task1/raw: train and val) into
`corpora/multi30k`. Any other corpus does too, as `text:DIR` in CORPUS below.

The rows are those of configs/modern.py. The base is a fourth of the paper's in width and has a
third of its layers: 1.4 million parameters. Not the paper's: 1,024 tokens a step, pairs of up to 64
subwords packed into rows, a vocabulary of 4,000, a warmup of 400 steps and 800 steps, not two
passes over the corpus. Models learn for too short a time to overfit, and so there is no dropout: a
row says what a change does to how fast a small model learns, and not to how good a large one
becomes. Translations of models that have learned so little are too short, and the length penalty
of 1.0 makes them longer than the paper's 0.6. The window is of 4 places, as captions have 17
subwords.
"""

from t2t_jax import Config
from t2t_jax.config.variants import PUBLISHED_DIFFERENCES, variants

CORPUS = "text:corpora/multi30k"

BASE = Config().replace(
    {
        "model.d_model": 128,
        "model.num_heads": 4,
        "model.d_ff": 512,
        "model.num_encoder_layers": 2,
        "model.num_decoder_layers": 2,
        "model.max_positions": 128,
        "model.dropout_rate": 0.0,
        "data.corpus": CORPUS,
        "data.vocab_size": 4000,
        "data.max_length": 64,
        "data.batching": "pack",
        "data.source_tokens_per_step": 1024,
        "data.target_tokens_per_step": 1024,
        "training.num_train_steps": 800,
        "training.warmup_steps": 400,
        "training.log_every_steps": 100,
        "checkpoint.every_steps": 400,
        "checkpoint.every_minutes": None,
        "checkpoint.keep": 1,
        "checkpoint.keep_best": False,
        "checkpoint.average": 1,
        "evaluation.every_steps": 10_000,
        "evaluation.num_sentences": 100,
        "evaluation.num_samples": 1,
        "decoding.length_penalty": 1.0,
    }
)

VARIANTS = variants(BASE, window=4)

PUBLISHED = PUBLISHED_DIFFERENCES
