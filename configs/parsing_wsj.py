r"""The paper's constituency parser, trained only on the Wall Street Journal (section 6.3).

    t2t-jax train --config configs/parsing_wsj.py --data.corpus trees:DIR \
        --workdir runs/parsing_wsj
    t2t-jax evaluate --workdir runs/parsing_wsj

Hardware, time: not in the paper. We did not train it.
Score: an F1 of 91.3 on section 23 (Table 4 of the paper).

DIR has the WSJ part of the Penn Treebank, which requires a license: sections 2 to 21 (about 40,000
trees) as train.mrg, section 22 as dev.mrg and section 23 as test.mrg.

The paper states 4 layers, d_model 1024, a vocabulary of 16K tokens, beam size 21, length penalty
0.3 and outputs up to 300 tokens longer than the input. The paper does not state dropout and
learning rate, which it chose on section 22. Other settings are the base model's: 8 heads, d_ff 2048
and 100,000 steps. Dropout, learning rate and maximum length in this config come from
`transformer_parsing_base` in tensor2tensor: dropout 0.2 on sub-layers and attention weights, half
of equation 3, 16,000 warmup steps, and length 512, which only the rarest trees exceed. A smaller
treebank may not have 16,000 subwords; `t2t-jax train` then reports their number.
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
            dropout_rate=0.2,
            attention_dropout_rate=0.2,
        ),
        data=DataConfig(corpus="trees:wsj", vocab_size=16_000, max_length=512),
        training=TrainingConfig(
            num_train_steps=100_000,
            warmup_steps=16_000,
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
