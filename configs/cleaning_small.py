"""What noise does to a small model, what cleaning gives back, and whether windows cost anything.

    python benchmarks/cleaning.py corpora/l10n-en-de --pairs 200000 --out corpora/planted
    mkdir corpora/planted/shards
    for language in en de; do
        split --lines 10000 --numeric-suffixes --additional-suffix .$language \
            corpora/planted/clean/train.$language corpora/planted/shards/train-
        cp corpora/planted/clean/dev.$language corpora/planted/shards/dev-0.$language
        cp corpora/planted/clean/test.$language corpora/planted/shards/test-0.$language
    done
    t2t-jax sweep --config configs/cleaning_small.py --workdir runs/cleaning_small --jobs 2 \
        --seeds 2

The first row is of 200,000 pairs of software messages, sentences and manuals without those that the
benchmark replaces: 180,000. In the row `noisy`, these are there as noise of seven kinds, a tenth of
all pairs; in `cleaned`, `t2t-jax data clean` has dropped what its standard rules find of that. The
row `windows` has the text of the first one in 19 shards, of which a training mixes two at a time.
The corpus is that of configs/l10n_small.py, and not part of this repository.

Every row makes 6,000 steps of 1,024 source and 1,024 target tokens, about three passes, in about 20
minutes of one core, with a learning rate that falls to 0 in the last 40%. Half a million parameters
would be too few for the text and the paper's 65 million too many: `d_model` is 128, with 3 + 3
layers, norms before the sub-layers and rotary positions, as in configs/l10n_small.py.
"""

from t2t_jax import Config

FOLDER = "corpora/planted"

BASE = Config().replace(
    {
        "model.d_model": 128,
        "model.num_heads": 4,
        "model.d_ff": 512,
        "model.num_encoder_layers": 3,
        "model.num_decoder_layers": 3,
        "model.norm_order": "pre",
        "model.position": "rotary",
        "data.corpus": f"text:{FOLDER}/clean",
        "data.vocab_size": 8000,
        "data.max_length": 100,
        "data.batching": "pack",
        "data.source_tokens_per_step": 1024,
        "data.target_tokens_per_step": 1024,
        "training.num_train_steps": 6000,
        "training.warmup_steps": 500,
        "training.schedule": "wsd",
        "training.decay_fraction": 0.4,
        "training.log_every_steps": 100,
        "checkpoint.every_steps": 1500,
        "checkpoint.every_minutes": None,
        "checkpoint.keep": 1,
        "checkpoint.keep_best": False,
        "checkpoint.average": 1,
        "evaluation.every_steps": 1500,
        "evaluation.num_sentences": 500,
        "evaluation.num_samples": 1,
    }
)

VARIANTS = {
    "clean": BASE,
    "noisy": BASE.replace({"data.corpus": f"text:{FOLDER}/noisy"}),
    "cleaned": BASE.replace({"data.corpus": f"text:{FOLDER}/cleaned"}),
    "windows": BASE.replace(
        {"data.corpus": f"shards:{FOLDER}/shards/{{split}}-*.{{language}}", "data.window": 2}
    ),
}
