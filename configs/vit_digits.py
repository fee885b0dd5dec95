"""A small vision transformer that reads handwritten digits, trained in minutes on two CPU cores.

    pip install -e '.[train,digits]'
    t2t-jax train --config configs/vit_digits.py --workdir runs/vit_digits
    t2t-jax evaluate --workdir runs/vit_digits

Hardware: 2 cores of an AMD EPYC virtual machine (AVX2, no AVX-512), in float32, 28 November 2026.
Time: 175 to 474 seconds, beside other work.
Score: an accuracy of 97.22% on the 360 images of test, with each of the seeds 0, 1 and 2.

The images are those that scikit-learn ships: 1,797 digits of 8 by 8 grey pixels. 360 of
them are held out for test and 180 for dev. The encoder reads an image as 16 patches of 2 by 2
pixels.
"""

from t2t_jax import Config


def get_config() -> Config:
    return Config().replace(
        {
            "model.architecture": "image_encoder",
            "model.patch_size": 2,
            "model.image_size": 8,
            "model.image_channels": 1,
            "model.d_model": 64,
            "model.num_heads": 4,
            "model.d_ff": 128,
            "model.num_encoder_layers": 4,
            "model.dropout_rate": 0.0,
            "model.norm_order": "pre",
            "model.position": "learned",
            "model.feed_forward": "gelu",
            "model.output_bias": True,
            "data.task": "image_classification",
            "data.corpus": "digits:",
            "data.vocab_size": 10,
            "data.max_length": 24,
            "data.source_tokens_per_step": 128 * 24,
            "data.target_tokens_per_step": 128 * 24,
            "training.num_train_steps": 2000,
            "training.warmup_steps": 100,
            "training.optimizer": "adamw",
            "training.weight_decay": 0.3,
            "training.schedule": "cosine",
            "training.schedule_steps": 2000,
            "training.peak_learning_rate": 4e-3,
            "training.ema_decay": 0.99,
            "training.log_every_steps": 50,
            "checkpoint.every_steps": 500,
            "checkpoint.every_minutes": None,
            "checkpoint.average": 1,
            "evaluation.every_steps": 500,
        }
    )
