"""A deep encoder and a decoder of one layer, for fast translation on WMT 2014 English-German.

    t2t-jax train --config configs/ende_deep_encoder.py --workdir runs/ende_deep_encoder
    t2t-jax evaluate --workdir runs/ende_deep_encoder

Hardware: about the same as for configs/ende_base.py. We did not train it.
Time: a training step needs about as many FLOPs as the base model's. Translation is faster, because
only the decoder generates tokens one by one, and it has a sixth of the layers.
Score: unknown for this recipe. Kasai et al. 2021 ("Deep Encoder, Shallow Decoder", arXiv
2006.10369) train models with 12 encoder layers and 1 decoder layer, most of them on targets that a
larger model generated (docs/finetuning.md). Without such targets, their models are somewhat worse.

The config differs from configs/ende_base.py only in the number of layers. The model has 61 million
parameters, the base model 63 million.
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
        model=EncoderDecoderConfig(num_encoder_layers=12, num_decoder_layers=1),
        data=DataConfig(
            corpus="wmt14-en-de:corpora/wmt14-en-de",
            source_language="en",
            target_language="de",
            vocab_size=37_000,
        ),
        training=TrainingConfig(num_train_steps=100_000),
        checkpoint=CheckpointConfig(keep=5, average=5),
        evaluation=EvaluationConfig(every_steps=5000),
        parallel=ParallelConfig(tokens_per_device="auto"),
    )
