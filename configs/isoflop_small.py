"""A grid for scaling laws: models of several sizes at each of four budgets, for two CPU cores.

    t2t-jax sweep --config configs/isoflop_small.py --workdir runs/isoflop_small --jobs 2
    t2t-jax fit runs/isoflop_small --flops 1e15 --figure isoflop_small.svg --output isoflop_small.md

Hardware: 2 cores of an AMD EPYC virtual machine (AVX-512, bfloat16), 26 November 2026.
Time: 81 minutes for the 32 cells, the first 40 of them beside other work.
Found: at equal operations, encoder-decoders are ahead at every budget, and the best sizes of both
families grow about as the root of the operations (docs/results/isoflop_small.md).

Encoder-decoders and decoders alone stand beside each other at equal budgets of floating point
operations, 4 sizes a budget. The steps of a cell are its budget over the operations of a step,
which `model_flops_per_step` counts for the tokens and lengths of the corpus below. A larger budget
has larger models. The models have 45 thousand to 360 thousand parameters, with a vocabulary of
2,000: far from those that scaling laws are wanted for. docs/scaling-laws.md says what follows.

The learning rate has its peak at 0.06 / sqrt(d_model), as equation 3 of the paper depends on the
width, after a tenth of the steps, and falls as a cosine to 0 at the end of the cell's own steps
(Hoffmann et al. 2022: with a schedule made for more steps, the short cells look too bad). The
factor was chosen by pilots at 2e12 operations: of an encoder-decoder of width 64, the perplexity
was 54.0 with 0.06 and 56.5 with 0.12; of width 128, 126 with 0.06 and 162 with 0.03.

The corpus is that of configs/l10n_small.py, a million pairs, which no cell reads as a whole: put
`train.en train.de dev.en dev.de` into `corpora/l10n-en-de`. Another corpus of that size does too;
budgets stay equal among its cells, if its sources are as long, in relation to its targets.
Translations are of no use to the laws, so they are greedy and short.
"""

from t2t_jax import Config
from t2t_jax.config.cost import model_flops_per_step

BUDGETS = {6e11: (16, 24, 32, 48), 1.2e12: (16, 24, 32, 48)}
BUDGETS |= {2.4e12: (24, 32, 48, 64), 4.8e12: (24, 32, 48, 64)}
"""The widths d_model for each budget of operations."""

_FAMILIES = {
    "encoder_decoder": {"model.num_encoder_layers": 2, "model.num_decoder_layers": 2},
    "decoder_only": {"model.num_decoder_layers": 4},
}
_TOKENS = 803.4, 909.1  # of sources and targets in a step, which has room for 1,024 of either
_LENGTHS = 29.0, 32.0  # of the sentence that a token is in, on average

BASE = Config().replace(
    {
        "model.norm_order": "pre",
        "model.position": "rotary",
        "model.dropout_rate": 0.0,
        "data.corpus": "text:corpora/l10n-en-de",
        "data.source_language": "en",
        "data.target_language": "de",
        "data.vocab_size": 2000,
        "data.max_length": 100,
        "data.batching": "pack",
        "data.source_tokens_per_step": 1024,
        "data.target_tokens_per_step": 1024,
        "training.schedule": "cosine",
        "training.label_smoothing": 0.0,
        "training.log_every_steps": 100,
        "checkpoint.every_steps": None,
        "checkpoint.every_minutes": 5.0,
        "checkpoint.keep": 1,
        "checkpoint.keep_best": False,
        "checkpoint.average": 1,
        "evaluation.every_steps": 100_000,
        "evaluation.num_sentences": 100,
        "evaluation.num_samples": 1,
        "decoding.beam_size": 1,
        "decoding.max_extra_length": 10,
    }
)


def _cell(family: str, d_model: int, budget: float) -> Config:
    sizes = {"model.d_model": d_model, "model.num_heads": d_model // 8, "model.d_ff": 4 * d_model}
    config = BASE.replace({"model.architecture": family, **_FAMILIES[family], **sizes})
    flops = model_flops_per_step(
        config.model,
        config.data.vocab_size,
        *_TOKENS,
        source_length=_LENGTHS[0],
        target_length=_LENGTHS[1],
    )
    steps = round(budget / flops)
    return config.replace(
        {
            "training.num_train_steps": steps,
            "training.warmup_steps": steps // 10,
            "training.peak_learning_rate": 0.06 * d_model**-0.5,
        }
    )


VARIANTS = {
    f"{family}-{d_model}-{budget:g}".replace("e+", "e"): _cell(family, d_model, budget)
    for budget, widths in BUDGETS.items()
    for d_model in widths
    for family in _FAMILIES
}
