"""A tiny grid of learning rates and of changes to the model, for `benchmarks/halving.py`."""

from t2t_jax import Config

BASE = Config().replace(
    {
        "model.d_model": 32,
        "model.num_heads": 2,
        "model.d_ff": 64,
        "model.num_encoder_layers": 1,
        "model.num_decoder_layers": 1,
        "model.compute_dtype": "float32",
        "data.vocab_size": 500,
        "data.max_length": 64,
        "data.batching": "pack",
        "data.source_tokens_per_step": 512,
        "data.target_tokens_per_step": 512,
        "training.num_train_steps": 240,
        "training.log_every_steps": 24,
        "training.warmup_steps": 60,
        "evaluation.every_steps": 12,
        "evaluation.num_sentences": 2,
        "evaluation.num_samples": 0,
        "decoding.max_extra_length": 4,
        "decoding.beam_size": 1,
        "checkpoint.every_minutes": None,
        "checkpoint.every_steps": 12,
        "checkpoint.keep_best": False,
        "checkpoint.keep": 2,
        "checkpoint.average": 1,
    }
)
VARIANTS = {"base": BASE} | {
    f"factor={x}": BASE.replace({"training.learning_rate_factor": x})
    for x in (0.1, 0.25, 0.5, 2.0, 4.0)
}
VARIANTS |= {
    "pre": BASE.replace({"model.norm_order": "pre"}),
    "wide": BASE.replace({"model.d_ff": 256}),
    "no_dropout": BASE.replace({"model.dropout_rate": 0.0}),
    "smooth0": BASE.replace({"training.label_smoothing": 0.0}),
    "beta2": BASE.replace({"training.adam_beta2": 0.999}),
}
