"""A translator trained on a million sentence pairs, in less than two hours on two CPU cores.

    t2t-jax train --config configs/l10n_small.py --workdir runs/l10n_small
    t2t-jax evaluate --workdir runs/l10n_small

Hardware: 2 cores of an AMD EPYC virtual machine (AVX2, no AVX-512), in float32, 23 November 2026.
Time: 105 minutes, on a shared machine.
Score: 22.48 sacreBLEU (nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0) on the 2,000
test sentences; docs/results/l10n_small.md has the curve, and newstest2012 and 2013.

The corpus is a million sentence pairs of published English-German translations, mainly of software
and its documentation; docs/results/l10n_small.md lists the sources. It is not part of this
repository. Put `train.en train.de dev.en dev.de test.en test.de` into `corpora/l10n-en-de`, or use
another corpus of that size.

Differences from the paper: half the width, half the layers, 8,000 subwords, pre-norm layers and
rotary positions (which trained faster in a pilot), no dropout (training is less than one epoch),
1,024 tokens per step in packed rows, 500 warmup steps, and an average of 10 checkpoints that are
250 steps apart.
"""

from t2t_jax.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    EncoderDecoderConfig,
    EvaluationConfig,
    TrainingConfig,
)


def get_config() -> Config:
    return Config(
        model=EncoderDecoderConfig(
            d_model=256,
            num_heads=4,
            d_ff=1024,
            num_encoder_layers=3,
            num_decoder_layers=3,
            norm_order="pre",
            position="rotary",
            dropout_rate=0.0,
        ),
        data=DataConfig(
            corpus="text:corpora/l10n-en-de",
            source_language="en",
            target_language="de",
            vocab_size=8000,
            max_length=100,
            batching="pack",
            source_tokens_per_step=1024,
            target_tokens_per_step=1024,
        ),
        training=TrainingConfig(num_train_steps=14_000, warmup_steps=500, log_every_steps=50),
        checkpoint=CheckpointConfig(
            every_steps=250,
            every_minutes=None,
            keep=20,
            average=10,
        ),
        evaluation=EvaluationConfig(every_steps=1000, num_sentences=500, num_samples=2),
    )
