"""The later default of tensor2tensor for WMT 2014 English-German, with more stable training.

    t2t-jax train --config configs/ende_t2t.py --workdir runs/ende_t2t
    t2t-jax evaluate --workdir runs/ende_t2t

Hardware: 8 NVIDIA P100 for the paper's base model, which reached 27.3 BLEU on newstest2014.
Time: 12 hours for the paper's model. This config trains on 3.3 times as many tokens.
Score: unknown; the paper has no such model, and we did not train it.

The config differs from configs/ende_base.py as `transformer_base_v3` of tensor2tensor differs from
`transformer_base_v1`, the paper's model (tensor2tensor/models/transformer.py): pre-norm layers,
dropout also on attention weights and hidden activations, twice the learning rate and warmup, and
beta_2 0.997. Position encodings are tensor2tensor's sinusoids, whose frequencies differ from the
paper's formula. Vocabulary (`translate_ende_wmt32k`), tokens per step (4,096 on each of 8 GPUs) and
steps (the default of `t2t-trainer`) are also tensor2tensor's. Checkpoints, averaging and beam
search are the paper's.
"""

from t2t_jax.config import (
    CheckpointConfig,
    Config,
    DataConfig,
    EncoderDecoderConfig,
    EvaluationConfig,
    ParallelConfig,
    TrainingConfig,
)


def get_config() -> Config:
    return Config(
        model=EncoderDecoderConfig(
            norm_order="pre",
            position="sinusoidal_t2t",
            attention_dropout_rate=0.1,
            activation_dropout_rate=0.1,
        ),
        data=DataConfig(
            corpus="wmt14-en-de:corpora/wmt14-en-de",
            source_language="en",
            target_language="de",
            vocab_size=32_768,
            source_tokens_per_step=8 * 4096,
            target_tokens_per_step=8 * 4096,
        ),
        training=TrainingConfig(
            num_train_steps=250_000,
            warmup_steps=8000,
            learning_rate_factor=2.0,
            adam_beta2=0.997,
        ),
        checkpoint=CheckpointConfig(keep=5, average=5),
        evaluation=EvaluationConfig(every_steps=5000),
        parallel=ParallelConfig(tokens_per_device="auto"),
    )
