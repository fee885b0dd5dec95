"""Later changes to the Transformer, one per variant, each with a tuned learning rate.

    t2t-jax sweep --config configs/modern_small.py --workdir runs/modern_small --jobs 2 --seeds 3 \
        --tune training.learning_rate_factor=0.25:2:log4 --halving rungs=3,keep=0.5

Hardware: 2 cores of an AMD EPYC virtual machine (AVX-512), in float32, 26 and 27 November 2026.
Time: 13 core hours, on a shared machine.
Score: 32.16 sacreBLEU and perplexity 8.21 for the base, 33.53 and 6.99 for `modern`;
docs/results/modern_small.md has all variants.

The corpus is Multi30k (Elliott et al. 2016): 29,000 image captions in English and German, with the
validation set of 1,014 as dev. Its license keeps it out of this repository. Put `train.en train.de
dev.en dev.de` from https://github.com/multi30k/dataset (data/task1/raw: train and val) into
`corpora/multi30k`, or set CORPUS below to another corpus, as `text:DIR`.

The variants are those of configs/modern.py for which a paper reports a difference in BLEU, and
`modern`, which combines common changes. The base has an eighth of the paper's width and a third of
its layers: 0.5 million parameters. Dropout is the paper's. Differences from the paper: 1,024 tokens
per step, pairs of up to 64 subwords in packed rows, a vocabulary of 4,000, and 400 warmup steps.
The learning rate is constant after the warmup, and falls to 0 in the last 40% of 5,000 steps (ten
epochs). With twice the steps, the base has 35.57 sacreBLEU and perplexity 6.74. The attention
window is 4 positions, because captions have 17 subwords.
"""

from t2t_jax.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    DecodingConfig,
    EncoderDecoderConfig,
    EvaluationConfig,
    TrainingConfig,
)
from t2t_jax.config.variants import variants

CORPUS = "text:corpora/multi30k"

BASE = Config(
    model=EncoderDecoderConfig(
        d_model=64,
        num_heads=4,
        d_ff=256,
        num_encoder_layers=2,
        num_decoder_layers=2,
        max_positions=128,
    ),
    data=DataConfig(
        corpus=CORPUS,
        vocab_size=4000,
        max_length=64,
        batching="pack",
        source_tokens_per_step=1024,
        target_tokens_per_step=1024,
    ),
    training=TrainingConfig(
        num_train_steps=5000,
        warmup_steps=400,
        schedule="wsd(decay_fraction=0.4)",
        log_every_steps=100,
    ),
    checkpoint=CheckpointConfig(
        every_steps=1250,
        every_minutes=None,
        keep=1,
        keep_best=False,
        average=1,
    ),
    evaluation=EvaluationConfig(every_steps=10_000, num_sentences=100, num_samples=1),
    decoding=DecodingConfig(length_penalty=1.0),
)

ROWS = {
    *("base", "rms-norm", "pre-norm", "gelu", "silu", "glu", "reglu", "geglu", "swiglu"),
    *("rotary", "relative-bias", "multi-query", "grouped-query", "window", "untied"),
    *("tied-target", "deep-narrow", "shallow-wide", "modern"),
}

VARIANTS = {name: config for name, config in variants(BASE, window=4).items() if name in ROWS}
