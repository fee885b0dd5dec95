"""Compare encoder-decoder and decoder-only models on two CPU cores.

    t2t-jax sweep --config configs/architectures_small.py \
        --workdir runs/architectures_small --seeds 2

All variants read the same sentence pairs in the same order. configs/architectures.py describes the
variants, and has them at the size of the paper's base model.

The corpus is Multi30k (Elliott et al. 2016): 29,000 image captions in English and German, with the
validation set of 1,014 as dev. Its license keeps it out of this repository. Put `train.en train.de
dev.en dev.de` from https://github.com/multi30k/dataset (data/task1/raw: train and val) into
`corpora/multi30k`, or set CORPUS below to another corpus, as `text:DIR`.
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

BASE = Config(
    model=EncoderDecoderConfig(
        d_model=128,
        num_heads=4,
        d_ff=512,
        num_encoder_layers=2,
        num_decoder_layers=2,
        norm_order="pre",
        position="rotary",
        dropout_rate=0.0,
    ),
    data=DataConfig(
        corpus=CORPUS,
        vocab_size=4000,
        max_length=64,
        batching="bucket",
        source_tokens_per_step=1024,
        target_tokens_per_step=1024,
    ),
    training=TrainingConfig(num_train_steps=1200, warmup_steps=400, log_every_steps=100),
    checkpoint=CheckpointConfig(
        every_steps=400,
        every_minutes=None,
        keep=1,
        keep_best=False,
        average=1,
    ),
    evaluation=EvaluationConfig(every_steps=10_000, num_sentences=100, num_samples=1),
    decoding=DecodingConfig(length_penalty=1.0),
)

_DECODER = {"model.architecture": "decoder_only", "model.d_ff": 640}
_PREFIX = _DECODER | {"model.prefix_attention": True}
_AS_MANY_PARAMETERS = {"model.num_decoder_layers": 4}

VARIANTS = {
    "encoder-decoder": BASE,
    "decoder": BASE.replace(_DECODER | _AS_MANY_PARAMETERS),
    "decoder-prefix": BASE.replace(_PREFIX | _AS_MANY_PARAMETERS),
    "decoder-half": BASE.replace(_DECODER),
    "decoder-prefix-half": BASE.replace(_PREFIX),
    "deep-encoder": BASE.replace(
        {"model.num_encoder_layers": 3, "model.num_decoder_layers": 1, "model.d_ff": 576}
    ),
}
