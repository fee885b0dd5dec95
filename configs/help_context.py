"""The sentences before a sentence as its context, on LibreOffice's help, for two CPU cores.

    python benchmarks/help_corpus.py HELP corpora/help
    t2t-jax sweep --config configs/help_context.py --workdir runs/help_context --jobs 2 --seeds 2

Rows without context, with the paragraph before on the side of the source, and with it on both sides
(Tiedemann and Scherrer 2017).

The corpus is LibreOffice's help in English and German: 33,000 paragraphs of 2,500 pages, of which
every 20th is dev and another 20th is test. `benchmarks/help_corpus.py` says where it comes from.

With contexts a pair has about twice the subwords. So the rows with contexts make twice the steps of
the row without, each of as many positions: every row sees each pair about seven times. A quarter of
the paper's width and half of its layers, its dropout, norms before the sub-layers; 1,024 tokens a
step in packed rows, a vocabulary of 6,000, a warmup of 400 steps, and a rate that falls in the last
40% of 6,000 or 12,000 steps.
"""

from typing import Any

from t2t_jax import Config

CORPUS = "text:corpora/help"

BASE = Config().replace(
    {
        "model.d_model": 128,
        "model.num_heads": 4,
        "model.d_ff": 512,
        "model.num_encoder_layers": 3,
        "model.num_decoder_layers": 3,
        "model.norm_order": "pre",
        "model.max_positions": 256,
        "data.corpus": CORPUS,
        "data.vocab_size": 6000,
        "data.max_length": 128,
        "data.batching": "pack",
        "data.source_tokens_per_step": 1024,
        "data.target_tokens_per_step": 1024,
        "training.num_train_steps": 6000,
        "training.warmup_steps": 400,
        "training.schedule": "wsd",
        "training.decay_fraction": 0.4,
        "training.log_every_steps": 100,
        "checkpoint.every_steps": 1500,
        "checkpoint.every_minutes": None,
        "checkpoint.keep": 1,
        "checkpoint.keep_best": False,
        "checkpoint.average": 1,
        "evaluation.every_steps": 10_000,
        "evaluation.num_sentences": 100,
        "evaluation.num_samples": 1,
    }
)

_CONTEXT: dict[str, Any] = {"data.context_sentences": 1, "training.num_train_steps": 12_000}

VARIANTS = {
    "alone": BASE,
    "source": BASE.replace(_CONTEXT),
    "both": BASE.replace({**_CONTEXT, "data.context_sides": "both"}),
}
