"""ViT-B/16 (Dosovitskiy et al. 2021): 86,567,656 parameters for 1,000 classes at 224 by 224 pixels.

    t2t-jax train --config configs/vit_b16.py --data.corpus npz:images.npz --workdir runs/vit_b16

The sizes are those of the published model, which reads an image as 196 patches of 16 by 16 pixels.
The recipe is the one by which its appendix B.1 (table 3) trains on ImageNet alone: 300 epochs in
steps of 4,096 images, Adam with a weight decay of 0.3, a learning rate that rises to 3e-3 in 10,000
steps and falls as a cosine, dropout of 0.1, and gradients of norm 1 at most. Nothing was trained by
this config: it needs accelerators and images.
"""

from t2t_jax import Config


def get_config() -> Config:
    return Config().replace(
        {
            "model.architecture": "image_encoder",
            "model.patch_size": 16,
            "model.image_size": 224,
            "model.d_model": 768,
            "model.num_heads": 12,
            "model.d_ff": 3072,
            "model.feed_forward": "gelu",
            "model.num_encoder_layers": 12,
            "model.norm_order": "pre",
            "model.attention_bias": True,
            "model.position": "learned",
            "model.output_bias": True,
            "data.task": "image_classification",
            "data.corpus": "npz:images.npz",
            "data.image_flip": True,
            "data.vocab_size": 1000,
            "data.source_tokens_per_step": 4096 * 256,
            "data.target_tokens_per_step": 4096 * 256,
            "training.num_train_steps": 94_000,
            "training.warmup_steps": 10_000,
            "training.schedule": "cosine",
            "training.peak_learning_rate": 3e-3,
            "training.optimizer": "adamw",
            "training.weight_decay": 0.3,
            "training.adam_beta2": 0.999,
            "training.adam_epsilon": 1e-8,
            "training.clip_gradient_norm": 1.0,
            "training.label_smoothing": 0.0,
            "parallel.tokens_per_device": 32_768,
        }
    )
