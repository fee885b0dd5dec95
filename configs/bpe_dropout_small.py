"""BPE-dropout on a small corpus, for two CPU cores: without, with 0.05, and with the paper's 0.1.

    t2t-jax sweep --config configs/bpe_dropout_small.py --workdir runs/bpe_dropout_small --jobs 2 \
        --seeds 3

Provilkov et al. 2020 report gains of up to 2.3 BLEU over ordinary BPE, the larger ones on small
corpora. All rows make as many steps, each of at most as many positions; with dropout a sentence has
more subwords, so that a step has fewer pairs.

The corpus is Multi30k (Elliott et al. 2016), 29,000 image captions in English and German, and its
validation set of 1,014 as dev. Its licence keeps it out of this repository: put `train.en train.de
dev.en dev.de` from https://github.com/multi30k/dataset (data/task1/raw: train and val) into
`corpora/multi30k`. Any other corpus does too, as `text:DIR` in CORPUS below.

The base is that of configs/modern_small.py: an eighth of the paper's in width, with a third of its
layers and its dropout; 1,024 source tokens a step in packed rows, a vocabulary of 4,000, and 5,000
steps, of which the last 40% lower the learning rate. Targets have 1,152 positions a step, an eighth
more, as German has more subwords: so every row of the grid has 16 rows of text in a step.
"""

from t2t_jax import Config

CORPUS = "text:corpora/multi30k"

BASE = Config().replace(
    {
        "model.d_model": 64,
        "model.num_heads": 4,
        "model.d_ff": 256,
        "model.num_encoder_layers": 2,
        "model.num_decoder_layers": 2,
        "model.max_positions": 128,
        "data.corpus": CORPUS,
        "data.vocab_size": 4000,
        "data.max_length": 64,
        "data.batching": "pack",
        "data.source_tokens_per_step": 1024,
        "data.target_tokens_per_step": 1152,
        "training.num_train_steps": 5000,
        "training.warmup_steps": 400,
        "training.schedule": "wsd",
        "training.decay_fraction": 0.4,
        "training.log_every_steps": 100,
        "checkpoint.every_steps": 1250,
        "checkpoint.every_minutes": None,
        "checkpoint.keep": 1,
        "checkpoint.keep_best": False,
        "checkpoint.average": 1,
        "evaluation.every_steps": 10_000,
        "evaluation.num_sentences": 100,
        "evaluation.num_samples": 1,
        "decoding.length_penalty": 1.0,
    }
)

VARIANTS = {"base": BASE} | {
    f"dropout-{probability}": BASE.replace({"data.bpe_dropout": probability})
    for probability in (0.05, 0.1)
}
