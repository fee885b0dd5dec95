"""The best learning rate by width, in the standard parametrisation and in muP, for two CPU cores.

    t2t-jax sweep --config configs/mup_small.py --workdir runs/mup_small --jobs 2
    python benchmarks/mup.py runs/mup_small docs/results

The second line writes the page with its figure. Which widths learn best at which rate is the
question: under muP (Yang et al. 2021), it should be one rate for all of them.

Hardware: 2 cores of an AMD EPYC virtual machine (AVX-512, bfloat16), 26 November 2026.
Time: 69 minutes for the 56 cells, beside other work.
Found: under muP all widths learn best at 0.004; in the standard parametrisation, the width 512
learns best at an eighth of that, and less well (docs/results/mup_small.md).

The corpus is Multi30k (Elliott et al. 2016), 29,000 image captions in English and German, and its
validation set of 1,014 as dev. Its licence keeps it out of this repository: put `train.en train.de
dev.en dev.de` from https://github.com/multi30k/dataset (data/task1/raw: train and val) into
`corpora/multi30k`. Any other corpus does too, as `text:DIR` in CORPUS below.

A network of the width 64 has one head of 64, the width of the paper's heads, and wider ones have
more such heads. The base of muP is this width, where both parametrisations are the same to the bit:
its cells stand for both. Not the paper's: 2 layers a stack, 1,024 tokens a step packed into rows, a
vocabulary of 2,000, no dropout, and 600 steps, less than a pass over the corpus. The peak of the
rate does not depend on the width; it follows a warmup of 100 steps and falls to 0 linearly.
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
