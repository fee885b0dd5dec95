"""The demo model of `t2t_jax.load("demo")`: software messages, English to German.

    t2t-jax train --config configs/demo.py --workdir runs/demo

The model is the quickstart's model with relative positions (Shaw et al. 2018, as in T5). It is
trained for 10,000 steps instead of 1,200, about 30 epochs of the 43,873 pairs of the bundled
corpus. The learning rate is constant after the warmup, and falls to 0 in the last 40% of the steps.
docs/results/multi30k_small.md measures the effect of each change on a corpus of this size.

Hardware: 2 cores of a virtual machine (AMD EPYC), shared with other programs. Time: 91 minutes.
Score: 42.20 sacreBLEU on the test set with the paper's beam search (29 November 2026; see
t2t_jax/demo/README.md). No test reproduces this score.
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
            num_encoder_layers=2,
            num_decoder_layers=2,
            position="relative_bias",
            compute_dtype="float32",  # in which its scores were measured
        ),
        data=DataConfig(
            vocab_size=4000,
            max_length=64,
            batching="pack",
            source_tokens_per_step=2048,
            target_tokens_per_step=2048,
        ),
        training=TrainingConfig(
            num_train_steps=10_000,
            warmup_steps=600,
            schedule="wsd(decay_fraction=0.4)",
            log_every_steps=100,
        ),
        checkpoint=CheckpointConfig(every_steps=500, every_minutes=None, keep=10),
        evaluation=EvaluationConfig(every_steps=1000),
    )
