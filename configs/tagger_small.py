"""A small part-of-speech tagger, trained on the trees of a treebank in minutes on two CPU cores.

    t2t-jax train --config configs/tagger_small.py --data.corpus trees:WSJ --workdir runs/tagger
    t2t-jax evaluate --workdir runs/tagger --split dev
    echo "The dog barks ." | t2t-jax predict runs/tagger

Hardware: 2 cores of an AMD EPYC virtual machine (AVX2, no AVX-512), in float32, 24 November 2026.
Time: 2 min 48 s, beside other work.
Score: 93.84% of the 6,327 words of dev, of the sample of the Wall Street Journal that NLTK
distributes.

WSJ holds train.mrg and dev.mrg, bracketed as in the Penn Treebank; the tags of the words are all
that is read of the trees. For sentences with tags of another kind, give text:DIR with train.txt and
train.tags. With --training.init_from the encoder starts from one that has learned to fill in hidden
words; see docs/encoders.md for what that gains.
"""

from t2t_jax import Config


def get_config() -> Config:
    return Config().replace(
        {
            "model.architecture": "encoder_only",
            "model.d_model": 192,
            "model.num_heads": 4,
            "model.d_ff": 768,
            "model.num_encoder_layers": 4,
            "model.norm_order": "pre",
            "model.position": "rotary",
            "model.share_embeddings": False,
            "data.task": "tagging",
            "data.corpus": "trees:corpora/wsj_sample",
            "data.vocab_size": 4000,
            "data.max_length": 128,
            "data.batching": "pack",
            "data.source_tokens_per_step": 2048,
            "data.target_tokens_per_step": 2048,
            "training.num_train_steps": 600,
            "training.warmup_steps": 100,
            "training.label_smoothing": 0.0,
            "training.log_every_steps": 50,
            "checkpoint.every_steps": 200,
            "checkpoint.every_minutes": None,
            "checkpoint.average": 1,
            "evaluation.every_steps": 200,
        }
    )
