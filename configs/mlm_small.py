"""A small masked language model, as BERT, trained on two CPU cores.

    t2t-jax train --config configs/mlm_small.py --workdir runs/mlm_small
    echo "The file <mask> not be opened." | t2t-jax predict runs/mlm_small

Hardware: 2 cores of an AMD EPYC virtual machine (AVX2, no AVX-512), in float32, 24 November 2026.
Time: 15 min 27 s, on a shared machine.
Score: an accuracy of 39.66% and a perplexity of 28.3 on the 1,581 masked subwords of test.

Each line of the bundled English text is a document; documents are packed into batch rows. A tagger
or a classifier can start from this model: see configs/tagger_small.py.
"""

from t2t_jax.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    EncoderOnlyConfig,
    EvaluationConfig,
    TrainingConfig,
)


def get_config() -> Config:
    return Config(
        model=EncoderOnlyConfig(
            d_model=192,
            num_heads=4,
            d_ff=768,
            num_encoder_layers=4,
            norm_order="pre",
            position="rotary",
        ),
        data=DataConfig(
            task="masked_language_modelling",
            vocab_size=4000,
            max_length=64,
            batching="pack",
            source_tokens_per_step=4096,
            target_tokens_per_step=4096,
        ),
        training=TrainingConfig(
            num_train_steps=1000,
            warmup_steps=200,
            label_smoothing=0.0,
            log_every_steps=50,
        ),
        checkpoint=CheckpointConfig(every_steps=250, every_minutes=None, average=3),
        evaluation=EvaluationConfig(every_steps=250),
    )
