"""Every row of the paper's Table 3: variations on the base model, for WMT 2014 English-German.

    python -m t2t_jax.sweep --config configs/table3.py --workdir runs/table3
    python train.py --config configs/table3.py:A-h16 --workdir runs/A-h16
    python eval.py bleu --workdir runs/A-h16 --split dev

Hardware: 8 NVIDIA P100 in the paper. It has not been trained here.
Time: 12 hours for the base model and 3.5 days for the big one in the paper, which does not say how
long the other rows took.
Score: the paper's figures for each row are in `PUBLISHED`: perplexity and BLEU on newstest2013, the
dev split, by beam search without checkpoint averaging (section 6.2).

On another corpus (`--data.corpus`, `--data.vocab-size`) the figures are not to be compared with the
paper's, but the order of the rows is.
"""

from typing import Any

from t2t_jax import Config
from t2t_jax.paper import TABLE_3

BASE = Config().replace(
    {
        "data.corpus": "tfds:wmt14_translate/de-en",
        "data.source_language": "en",
        "data.target_language": "de",
        "data.vocab_size": 37_000,
        "training.num_train_steps": 100_000,
        "checkpoint.average": 1,
        "evaluation.every_steps": 5000,
        "parallel.tokens_per_device": 4096,
    }
)

_ROWS: dict[str, dict[str, Any]] = {
    "base": {},
    "A-h1": {"model.num_heads": 1},
    "A-h4": {"model.num_heads": 4},
    "A-h16": {"model.num_heads": 16},
    "A-h32": {"model.num_heads": 32},
    "B-dk16": {"model.d_k": 16},
    "B-dk32": {"model.d_k": 32},
    "C-N2": {"model.num_encoder_layers": 2, "model.num_decoder_layers": 2},
    "C-N4": {"model.num_encoder_layers": 4, "model.num_decoder_layers": 4},
    "C-N8": {"model.num_encoder_layers": 8, "model.num_decoder_layers": 8},
    "C-d256": {"model.d_model": 256},
    "C-d1024": {"model.d_model": 1024},
    "C-ff1024": {"model.d_ff": 1024},
    "C-ff4096": {"model.d_ff": 4096},
    "D-drop0.0": {"model.dropout_rate": 0.0},
    "D-drop0.2": {"model.dropout_rate": 0.2},
    "D-ls0.0": {"training.label_smoothing": 0.0},
    "D-ls0.2": {"training.label_smoothing": 0.2},
    "E-learned": {"model.position": "learned"},
    "big": {
        "model.d_model": 1024,
        "model.num_heads": 16,
        "model.d_ff": 4096,
        "model.dropout_rate": 0.3,
        "training.num_train_steps": 300_000,
    },
}

VARIANTS = {row: BASE.replace(changes) for row, changes in _ROWS.items()}

PUBLISHED = TABLE_3
"""What the paper reports for each variant."""
