r"""The paper's semi-supervised constituency parser (section 6.3).

    t2t-jax train --config configs/parsing_semi.py --data.corpus trees:DIR+SILVER \
        --workdir runs/parsing_semi
    t2t-jax evaluate --workdir runs/parsing_semi

Hardware, time: not in the paper. We did not train it.
Score: an F1 of 92.7 on section 23 (Table 4 of the paper).

DIR is the treebank of configs/parsing_wsj.py, which lists the settings that the paper states.
SILVER has a train.mrg with trees from other parsers. The paper uses about 17 million trees of the
high-confidence and BerkeleyParser corpora of Vinyals et al. (2015), which are not public.

The paper states a vocabulary of 32K tokens. Dropout (0.1, none on attention weights) and learning
rate (half of equation 3, 4,000 warmup steps) come from `transformer_parsing_big` in the
tensor2tensor of 2017; less dropout suffices for so much data.
"""

from t2t_jax.config import (
    Config,
    DataConfig,
    DecodingConfig,
    EncoderDecoderConfig,
    EvaluationConfig,
    ParallelConfig,
    TrainingConfig,
)


def get_config() -> Config:
    return Config(
        model=EncoderDecoderConfig(
            num_encoder_layers=4,
            num_decoder_layers=4,
            d_model=1024,
            dropout_rate=0.1,
            attention_dropout_rate=0.0,
        ),
        data=DataConfig(corpus="trees:wsj+silver", vocab_size=32_000, max_length=512),
        training=TrainingConfig(
            num_train_steps=100_000,
            warmup_steps=4000,
            learning_rate_factor=0.5,
        ),
        evaluation=EvaluationConfig(every_steps=5000),
        decoding=DecodingConfig(
            beam_size=21,
            length_penalty=0.3,
            max_extra_length=300,
            tokens_per_batch=2048,  # memory: a beam of 21 keeps 21 times as many
        ),
        parallel=ParallelConfig(tokens_per_device="auto"),
    )
