r"""A small constituency parser, for a treebank of a few thousand trees and two CPU cores.

    t2t-jax train --config configs/parsing_small.py --data.corpus trees:WSJ+GUM \
        --workdir runs/parsing_small
    t2t-jax evaluate --workdir runs/parsing_small --split dev
    t2t-jax translate --workdir runs/parsing_small < sentences

Hardware: 2 cores of an AMD EPYC (Zen 5) virtual machine, shared, 21 November 2026.
Time: about an hour.
Score: an F1 of 42.3 (EVALB, COLLINS.prm) on 273 sentences of the sample; see docs/parsing.md.

WSJ is a directory with train.mrg and dev.mrg, bracketed as in the Penn Treebank. The sample that
NLTK distributes (199 files, `nltk.download("treebank")`) has enough trees. GUM is optional, and has
another train.mrg: trees of the GUM corpus from a parser.

The model has a quarter of the width and half of the depth of configs/parsing_wsj.py, and no
dropout; it trains for twelve epochs. The beam size is 4 and outputs have at most 100 more symbols
than inputs. Decoding with the paper's 21 and 300 takes ten times as long.
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


def get_config() -> Config:
    return Config(
        model=EncoderDecoderConfig(
            d_model=256,
            num_heads=4,
            d_ff=1024,
            num_encoder_layers=2,
            num_decoder_layers=2,
            dropout_rate=0.0,
        ),
        data=DataConfig(
            corpus="trees:corpora/wsj_sample+corpora/gum",
            vocab_size=4000,
            max_length=256,
            batching="pack",
            source_tokens_per_step=1024,
            target_tokens_per_step=1024,
        ),
        training=TrainingConfig(num_train_steps=9000, warmup_steps=800),
        checkpoint=CheckpointConfig(every_steps=200, every_minutes=None),
        evaluation=EvaluationConfig(every_steps=1000, num_sentences=100),
        decoding=DecodingConfig(
            beam_size=4,
            length_penalty=0.3,
            max_extra_length=100,
            tokens_per_batch=16_384,
        ),
    )
