"""A deep encoder with a decoder of one layer, for WMT 2014 English-German: fast to translate with.

    t2t-jax train --config configs/ende_deep_encoder.py --workdir runs/ende_deep_encoder
    t2t-jax evaluate --workdir runs/ende_deep_encoder

Hardware: about that of configs/ende_base.py. It has not been trained here.
Time: a training step computes about as much as the base model's. A translation computes a token
after the other in the decoder alone, which has a sixth of the layers.
Score: none is known for this recipe. Kasai et al. 2021 ("Deep Encoder, Shallow Decoder", arXiv
2006.10369) train the same depths, 12 and 1, and most of their models on translations that a larger
model has made of the sources (docs/finetuning.md). Without these they lose some quality.

It differs from configs/ende_base.py in the number of layers alone: twelve in the encoder and one in
the decoder make 61 million parameters, where six and six make 63.
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
