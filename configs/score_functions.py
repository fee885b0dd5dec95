"""Compare scaled, unscaled and additive attention scores at head widths from 16 to 512.

    t2t-jax sweep --config configs/score_functions.py --workdir runs/score_functions \
        --jobs 2
    python benchmarks/softmax_gradient.py

Section 3.2.1 of the paper: "While for small values of d_k the two mechanisms perform similarly,
additive attention outperforms dot product attention without scaling for larger values of d_k. We
suspect that for large values of d_k, the dot products grow large in magnitude, pushing the softmax
function into regions where it has extremely small gradients." The grid trains the three scores at
each width. The second command prints the gradients through the softmax at initialization.

Hardware: 2 cores of an AMD EPYC virtual machine (AVX2, no AVX-512), in float32, 23 November 2026.
Time: 56 minutes for 17 runs on a shared machine; additive scores with heads of 512 took half of it.
Score: 18.37 sacreBLEU and perplexity 22.74 for the base, dk64-scaled;
docs/results/score_functions.md has all variants.

The corpus is the same as in configs/modern_small.py. The model has a quarter of the paper's width,
two encoder layers, two decoder layers and one head. Values have width 128, so that only queries and
keys grow with d_k. Variants with the same d_k have the same parameters, except for the vectors of
additive scores. Batches have length buckets: the cost of additive scores grows with the square of
the length, and a packed row would be four times as long as a caption.
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
        num_heads=1,
        d_v=128,
        d_ff=512,
        num_encoder_layers=2,
        num_decoder_layers=2,
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
    training=TrainingConfig(num_train_steps=800, warmup_steps=400, log_every_steps=100),
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

_NAMES = {"scaled": "scaled_dot_product", "unscaled": "dot_product", "additive": "additive"}

VARIANTS = {
    f"dk{d_k}-{name}": BASE.replace({"model.d_k": d_k, "model.attention_kind": function})
    for d_k in (64, 16, 32, 128, 512)  # 64 is the paper's: the others are compared with it
    for name, function in _NAMES.items()
}
