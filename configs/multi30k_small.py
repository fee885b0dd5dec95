"""Improve a small model of Multi30k in several steps, on two CPU cores.

    t2t-jax sweep --config configs/multi30k_small.py --workdir runs/multi30k_small --jobs 2

The corpus is Multi30k (Elliott et al. 2016): 29,000 image captions in English and German, with the
validation set of 1,014 as dev. Its license keeps it out of this repository. Put `train.en train.de
dev.en dev.de` from https://github.com/multi30k/dataset (data/task1/raw: train and val) into
`corpora/multi30k`, or set CORPUS below to another corpus, as `text:DIR`.

The base has a quarter of the paper's width, half of its layers, and the paper's recipe: 8,000 steps
of 1,024 tokens in packed rows, with a vocabulary of 6,000. Each variant adds a change to the
previous variant: a learning rate that is constant and falls at the end, three times the steps, more
dropout, and relative positions (with the base's dropout). docs/results/multi30k_small.md has the
effect of each change. A variant takes 25 minutes, or an hour with three times the steps; two runs
train in parallel.
"""

from typing import Any

from t2t_jax.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    DecodingConfig,
    EncoderDecoderConfig,
    EvaluationConfig,
    TrainingConfig,
)

CORPUS = "text:corpora/multi30k"

BASE = Config(
    model=EncoderDecoderConfig(
        d_model=128,
        num_heads=4,
        d_ff=512,
        num_encoder_layers=3,
        num_decoder_layers=3,
    ),
    data=DataConfig(
        corpus=CORPUS,
        vocab_size=6000,
        max_length=64,
        batching="pack",
        source_tokens_per_step=1024,
        target_tokens_per_step=1152,
    ),
    training=TrainingConfig(num_train_steps=8000, warmup_steps=800, log_every_steps=100),
    checkpoint=CheckpointConfig(
        every_steps=1000,
        every_minutes=None,
        keep=1,
        keep_best=False,
        average=1,
    ),
    evaluation=EvaluationConfig(every_steps=100_000, num_sentences=100, num_samples=1),
    decoding=DecodingConfig(length_penalty=1.0),
)

_CHANGES: dict[str, dict[str, Any]] = {
    "schedule": {"training.schedule": "wsd(decay_fraction=0.4)"},
    "steps": {"training.num_train_steps": 24_000},
    "dropout": {"model.dropout_rate": 0.3},
    "positions": {"model.dropout_rate": 0.1, "model.position": "relative_bias"},
}

VARIANTS = {"base": BASE}
for _name, _change in _CHANGES.items():
    VARIANTS[_name] = [*VARIANTS.values()][-1].replace(_change)
