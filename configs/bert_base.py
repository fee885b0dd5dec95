"""BERT's base model (Devlin et al. 2019): 109,512,762 parameters with a vocabulary of 30,522.

    t2t-jax train --config configs/bert_base.py --workdir runs/bert_base

The sizes are those of the published model, with learned positions, biases in all projections, norms
after the residual sums and of the embeddings, and a transform ahead of the output. It has 1,536
parameters less than `BertForMaskedLM` of transformers, which keeps two vectors for the first and
the second of two sentences: here a row is one text. The recipe is that of the paper's appendix A.2:
256 rows of 512 subwords a step, a million steps, Adam with a weight decay of 0.01, and a learning
rate that rises to 1e-4 in 10,000 steps and falls linearly. Nothing was trained by this config: it
needs accelerators and text, which goes into `corpora/text` as `train.txt` and `dev.txt` with blank
lines between documents.
"""

from t2t_jax import Config


def get_config() -> Config:
    return Config().replace(
        {
            "model.architecture": "encoder_only",
            "model.d_model": 768,
            "model.num_heads": 12,
            "model.d_ff": 3072,
            "model.feed_forward": "gelu",
            "model.num_encoder_layers": 12,
            "model.norm_epsilon": 1e-12,
            "model.attention_bias": True,
            "model.position": "learned",
            "model.max_positions": 512,
            "model.scale_embeddings": False,
            "model.embedding_norm": True,
            "model.output_bias": True,
            "model.output_transform": True,
            "model.attention_dropout_rate": 0.1,
            "data.task": "masked_language_modelling",
            "data.corpus": "text:corpora/text",
            "data.documents": "paragraphs",
            "data.text_rows": "run_on",
            "data.vocab_size": 30_522,
            "data.max_length": 512,
            "data.batching": "pack",
            "data.source_tokens_per_step": 256 * 512,
            "data.target_tokens_per_step": 256 * 512,
            "training.num_train_steps": 1_000_000,
            "training.warmup_steps": 10_000,
            "training.schedule": "linear",
            "training.peak_learning_rate": 1e-4,
            "training.optimizer": "adamw",
            "training.weight_decay": 0.01,
            "training.adam_beta2": 0.999,
            "training.adam_epsilon": 1e-6,
            "training.label_smoothing": 0.0,
            "parallel.tokens_per_device": 32_768,
        }
    )
