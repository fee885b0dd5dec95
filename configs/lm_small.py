"""A small language model of the bundled English text, trained in minutes on two CPU cores.

    t2t-jax train --config configs/lm_small.py --workdir runs/lm_small
    t2t-jax evaluate --workdir runs/lm_small
    t2t-jax generate runs/lm_small --prompt "No devices"

Hardware: 2 cores of an AMD EPYC virtual machine (AVX2, no AVX-512), in float32, 24 November 2026.
Time: 11 minutes, beside other work.
Score: 1.455 bits per byte and a perplexity of 50.8 on the 1,000 lines of test.

A decoder alone with the layers of later language models: norms before the sub-layers and rotary
positions. Its documents are the lines of the bundled corpus, packed into rows.
"""

from t2t_jax import Config


def get_config() -> Config:
    return Config().replace(
        {
            "model.architecture": "decoder_only",
            "model.d_model": 192,
            "model.num_heads": 4,
            "model.d_ff": 768,
            "model.num_decoder_layers": 4,
            "model.norm_order": "pre",
            "model.position": "rotary",
            "data.task": "language_modelling",
            "data.vocab_size": 4000,
            "data.max_length": 64,
            "data.batching": "pack",
            "data.target_tokens_per_step": 2048,
            "training.num_train_steps": 1000,
            "training.warmup_steps": 200,
            "training.log_every_steps": 50,
            "checkpoint.every_steps": 250,
            "checkpoint.every_minutes": None,
            "checkpoint.average": 3,
            "evaluation.every_steps": 250,
        }
    )
