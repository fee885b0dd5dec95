"""The best learning rate by width, in the standard parametrization and in muP, on two CPU cores.

    t2t-jax sweep --config configs/mup_small.py --workdir runs/mup_small --jobs 2
    python benchmarks/mup.py runs/mup_small docs/results

The second command writes the results page and its figure. Under muP (Yang et al. 2021), all widths
should have the same best learning rate.

Hardware: 2 cores of an AMD EPYC virtual machine (AVX-512, bfloat16), 26 November 2026.
Time: 69 minutes for the 56 runs, on a shared machine.
Result: under muP, the best rate is 0.004 for all widths. In the standard parametrization, the best
rate for width 512 is an eighth of that, with a worse result (docs/results/mup_small.md).

The corpus is Multi30k (Elliott et al. 2016): 29,000 image captions in English and German, with the
validation set of 1,014 as dev. Its license keeps it out of this repository. Put `train.en train.de
dev.en dev.de` from https://github.com/multi30k/dataset (data/task1/raw: train and val) into
`corpora/multi30k`, or set CORPUS below to another corpus, as `text:DIR`.

Heads have width 64, as in the paper; a network of width 64 has one head. The base width of muP is
64, where both parametrizations give bitwise identical results, so one run serves for both.
Differences from the paper: 2 layers per stack, 1,024 tokens per step in packed rows, a vocabulary
of 2,000, no dropout, and 600 steps, less than one epoch. The peak learning rate does not depend on
the width. After 100 warmup steps, the rate falls linearly to 0.
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

CORPUS = "text:corpora/multi30k"
BASE_WIDTH, WIDTHS = 64, (64, 128, 256, 512)
RATES = (0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032)

BASE = Config(
    model=EncoderDecoderConfig(
        base_width=BASE_WIDTH,
        num_encoder_layers=2,
        num_decoder_layers=2,
        dropout_rate=0.0,
    ),
    data=DataConfig(
        corpus=CORPUS,
        vocab_size=2000,
        max_length=64,
        batching="pack",
        source_tokens_per_step=1024,
        target_tokens_per_step=1024,
    ),
    training=TrainingConfig(
        num_train_steps=600,
        warmup_steps=100,
        schedule="linear",
        log_every_steps=100,
    ),
    checkpoint=CheckpointConfig(
        every_steps=600,
        every_minutes=None,
        keep=1,
        keep_best=False,
        average=1,
    ),
    evaluation=EvaluationConfig(every_steps=10_000, num_samples=1),
    decoding=DecodingConfig(beam_size=1),
)

VARIANTS = {
    f"{parametrisation}-{width}-{rate:g}": BASE.replace(
        {
            "model.parametrisation": parametrisation,
            "model.d_model": width,
            "model.num_heads": width // 64,
            "model.d_ff": 4 * width,
            "training.peak_learning_rate": rate,
        }
    )
    for width in WIDTHS
    for parametrisation in ("standard", "mup")
    if parametrisation == "standard" or width != BASE_WIDTH
    for rate in RATES
}
