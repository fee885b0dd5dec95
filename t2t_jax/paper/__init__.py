"""Results and settings of the paper "Attention Is All You Need" (Vaswani et al. 2017) as data.

Sections, tables and equations refer to arXiv 1706.03762v5. The names of settings are attributes of
`Config`, such as `model.d_ff`.
"""

from typing import NamedTuple

UNPUBLISHED = "not published"
"""The value of a setting that the paper does not state for an experiment."""


class Table3Row(NamedTuple):
    """A row of Table 3: a model for WMT 2014 English-German, scored on newstest2013.

    The paper decodes these models by beam search, without checkpoint averaging (section 6.2).
    """

    num_layers: int
    """Number N of encoder layers, and of decoder layers."""
    d_model: int
    """Width of every layer's output."""
    d_ff: int
    """Inner width of the feed-forward network."""
    num_heads: int
    """Number h of attention heads."""
    d_k: int
    """Width of a head's queries and keys."""
    d_v: int
    """Width of a head's values."""
    dropout_rate: float
    """Rate P_drop of dropout."""
    label_smoothing: float
    """Probability mass epsilon_ls that label smoothing spreads over the vocabulary."""
    num_train_steps: int
    """Number of training steps."""
    dev_perplexity: float
    """Perplexity on newstest2013, per word-piece."""
    dev_bleu: float
    """BLEU on newstest2013."""
    parameters: int | None
    """Parameters in millions; None for rows A, D and E, for which the paper states none."""
    position: str = "sinusoidal"
    """Kind of position encoding. Row E uses "positional embedding instead of sinusoids"."""

    @property
    def settings(self) -> dict[str, object]:
        """Return the settings of this row of Table 3, keyed by attribute of `Config`."""
        return {
            **self._common(),
            "model.key_size": self.d_k,
            "model.value_size": self.d_v,
            "training.num_train_steps": self.num_train_steps,
        }

    def changes(self, *, narrower: int = 1, shallower: int = 1) -> dict[str, object]:
        """Return changes for `Config.replace` that give a model with this row's proportions.

        Args:
          narrower: divisor of all widths.
          shallower: divisor of the number of layers.

        Returns:
          Values by field, without the number of training steps; `model.d_k` and `model.d_v` are
          None if they equal d_model / h.
        """
        head_width = self.d_model // self.num_heads
        return {
            **self._common(narrower, shallower),
            "model.d_k": None if self.d_k == head_width else self.d_k // narrower,
            "model.d_v": None if self.d_v == head_width else self.d_v // narrower,
        }

    def _common(self, narrower: int = 1, shallower: int = 1) -> dict[str, object]:
        """Return the row's values by config field, widths and depths divided as in `changes`."""
        return {
            "model.num_encoder_layers": self.num_layers // shallower,
            "model.num_decoder_layers": self.num_layers // shallower,
            "model.d_model": self.d_model // narrower,
            "model.d_ff": self.d_ff // narrower,
            "model.num_heads": self.num_heads,
            "model.dropout_rate": self.dropout_rate,
            "model.position": self.position,
            "training.label_smoothing": self.label_smoothing,
        }


TABLE_3 = {
    "base": Table3Row(6, 512, 2048, 8, 64, 64, 0.1, 0.1, 100_000, 4.92, 25.8, 65),
    "A-h1": Table3Row(6, 512, 2048, 1, 512, 512, 0.1, 0.1, 100_000, 5.29, 24.9, None),
    "A-h4": Table3Row(6, 512, 2048, 4, 128, 128, 0.1, 0.1, 100_000, 5.00, 25.5, None),
    "A-h16": Table3Row(6, 512, 2048, 16, 32, 32, 0.1, 0.1, 100_000, 4.91, 25.8, None),
    "A-h32": Table3Row(6, 512, 2048, 32, 16, 16, 0.1, 0.1, 100_000, 5.01, 25.4, None),
    "B-dk16": Table3Row(6, 512, 2048, 8, 16, 64, 0.1, 0.1, 100_000, 5.16, 25.1, 58),
    "B-dk32": Table3Row(6, 512, 2048, 8, 32, 64, 0.1, 0.1, 100_000, 5.01, 25.4, 60),
    "C-N2": Table3Row(2, 512, 2048, 8, 64, 64, 0.1, 0.1, 100_000, 6.11, 23.7, 36),
    "C-N4": Table3Row(4, 512, 2048, 8, 64, 64, 0.1, 0.1, 100_000, 5.19, 25.3, 50),
    "C-N8": Table3Row(8, 512, 2048, 8, 64, 64, 0.1, 0.1, 100_000, 4.88, 25.5, 80),
    "C-d256": Table3Row(6, 256, 2048, 8, 32, 32, 0.1, 0.1, 100_000, 5.75, 24.5, 28),
    "C-d1024": Table3Row(6, 1024, 2048, 8, 128, 128, 0.1, 0.1, 100_000, 4.66, 26.0, 168),
    "C-ff1024": Table3Row(6, 512, 1024, 8, 64, 64, 0.1, 0.1, 100_000, 5.12, 25.4, 53),
    "C-ff4096": Table3Row(6, 512, 4096, 8, 64, 64, 0.1, 0.1, 100_000, 4.75, 26.2, 90),
    "D-drop0.0": Table3Row(6, 512, 2048, 8, 64, 64, 0.0, 0.1, 100_000, 5.77, 24.6, None),
    "D-drop0.2": Table3Row(6, 512, 2048, 8, 64, 64, 0.2, 0.1, 100_000, 4.95, 25.5, None),
    "D-ls0.0": Table3Row(6, 512, 2048, 8, 64, 64, 0.1, 0.0, 100_000, 4.67, 25.3, None),
    "D-ls0.2": Table3Row(6, 512, 2048, 8, 64, 64, 0.1, 0.2, 100_000, 5.47, 25.7, None),
    "E-learned": Table3Row(6, 512, 2048, 8, 64, 64, 0.1, 0.1, 100_000, 4.92, 25.7, None, "learned"),
    "big": Table3Row(6, 1024, 4096, 16, 64, 64, 0.3, 0.1, 300_000, 4.33, 26.4, 213),
}
"""Table 3: the base model, the variations A to E, and the big model."""


class Table2Row(NamedTuple):
    """A row of Table 2: BLEU on newstest2014, and the cost of training."""

    test_bleu_german: float
    """BLEU on newstest2014 of WMT 2014 English-German."""
    test_bleu_french: float
    """BLEU on newstest2014 of WMT 2014 English-French."""
    training_flops: float
    """Training FLOPs, as the paper estimates them; see `training_flops`."""


TABLE_2 = {
    "base": Table2Row(27.3, 38.1, 3.3e18),
    # Table 2 and the abstract say 41.8; section 6.1 still says 41.0, as in version 1.
    "big": Table2Row(28.4, 41.8, 2.3e19),
}
"""The Transformer's rows of Table 2."""

TEST_SETS = {"dev": "newstest2013", "test": "newstest2014"}
"""Translation sets: dev for tuning (Table 3), test for reported scores (Table 2)."""

PARSING_TEST_SETS = {"dev": "WSJ section 22", "test": "WSJ section 23"}
"""Parsing sets: dev for tuning (section 6.3), test for reported scores (Table 4)."""

TABLE_4 = {"WSJ only": 91.3, "semi-supervised": 92.7}
"""The Transformer's rows of Table 4: F1 on section 23 of the Wall Street Journal, in percent."""


class Training(NamedTuple):
    """Hardware and time of a training run of the paper (section 5.2)."""

    devices: int
    """Number of NVIDIA P100 GPUs in one machine."""
    seconds_per_step: float
    """Wall-clock time of a step."""
    seconds: float
    """Wall-clock time of the training run."""


TRAINING = {"base": Training(8, 0.4, 12 * 3600), "big": Training(8, 1.0, 3.5 * 24 * 3600)}
"""Training runs by model: 12 hours of 0.4 s steps, and 3.5 days of 1.0 s steps (section 5.2)."""

P100_FLOPS = 9.5e12
"""Sustained single-precision FLOP/s of a P100, by the paper (footnote 5)."""


def training_flops(device_seconds: float, flops_per_second: float) -> float:
    """Estimate the FLOPs of a training run as the paper does (section 6.1).

    The estimate is an upper bound: the FLOPs that the devices could compute in this time.
    `config.cost.model_flops_per_step` counts the FLOPs that the model needs.

    Args:
      device_seconds: training time, summed over all devices.
      flops_per_second: sustained FLOP/s of each device.
    """
    return device_seconds * flops_per_second


class Constant(NamedTuple):
    """A setting that the paper states."""

    name: str
    """Name of the setting in reports."""
    section: str
    """Section of the paper that states the setting."""
    values: dict[str, object]
    """Values for the base model on English-German, keyed by attribute of `Config`. One setting of
    the paper may be several attributes."""


CONSTANTS = (
    Constant(
        "data",
        "5.1",
        {"data.corpus": "wmt14-en-de", "data.source_language": "en", "data.target_language": "de"},
    ),
    Constant("vocabulary", "5.1", {"data.vocab_size": 37_000}),
    Constant("batches by length", "5.1", {"data.batching": "bucket"}),
    Constant("source tokens per step", "5.1", {"data.source_tokens_per_step": 25_000}),
    Constant("target tokens per step", "5.1", {"data.target_tokens_per_step": 25_000}),
    Constant("layers N", "3.1", {"model.num_encoder_layers": 6, "model.num_decoder_layers": 6}),
    Constant("layer norm placement", "3.1", {"model.norm_order": "post"}),
    Constant("normalization", "3.1", {"model.norm": "layer"}),
    Constant("d_model", "3.1", {"model.d_model": 512}),
    Constant("score function", "3.2.1", {"model.attention_kind": "scaled_dot_product"}),
    Constant("heads h", "3.2.2", {"model.num_heads": 8}),
    Constant("d_k", "3.2.2", {"model.key_size": 64}),
    Constant("d_v", "3.2.2", {"model.value_size": 64}),
    Constant("key-value heads, if not h", "3.2.2", {"model.num_kv_heads": None}),
    Constant(
        "heads of each attention, if not h",
        "3.2.2",
        {"model.encoder_heads": None, "model.decoder_heads": None, "model.cross_heads": None},
    ),
    Constant("biases in attention", "3.2.2", {"model.attention_bias": False}),
    Constant("norm on queries and keys", "3.2.2", {"model.query_key_norm": False}),
    Constant("attention window", "3.2.3", {"model.attention_window": None}),
    Constant("activation", "3.3", {"model.feed_forward": "relu"}),
    Constant("d_ff", "3.3", {"model.d_ff": 2048}),
    Constant("shared embeddings", "3.4", {"model.share_embeddings": True}),
    Constant("embeddings times sqrt(d_model)", "3.4", {"model.scale_embeddings": True}),
    Constant("norm on embeddings", "3.4", {"model.embedding_norm": False}),
    Constant("output bias", "3.4", {"model.output_bias": False}),
    Constant("positions", "3.5", {"model.position": "sinusoidal"}),
    Constant("run to start from", "5.2", {"training.init_from": None}),
    Constant("steps", "5.2", {"training.num_train_steps": 100_000}),
    Constant("optimizer", "5.3", {"training.optimizer": "adam"}),
    Constant("Adam's beta_1", "5.3", {"training.adam_beta1": 0.9}),
    Constant("Adam's beta_2", "5.3", {"training.adam_beta2": 0.98}),
    Constant("Adam's epsilon", "5.3", {"training.adam_epsilon": 1e-9}),
    Constant(
        "equation 3",
        "5.3",
        {"training.schedule": "inverse_sqrt", "training.peak_learning_rate": None},
    ),
    Constant("learning rate factor", "5.3", {"training.learning_rate_factor": 1.0}),
    Constant("warmup steps", "5.3", {"training.warmup_steps": 4000}),
    Constant("frozen parameters", "5.3", {"training.freeze": ()}),
    Constant("weight decay", "5.3", {"training.weight_decay": 0.0}),
    Constant("gradient clipping", "5.3", {"training.clip_gradient_norm": None}),
    Constant("P_drop", "5.4", {"model.dropout_rate": 0.1}),
    # Section 5.4 lists where dropout is applied; attention weights and the hidden activations of
    # the feed-forward networks are not in the list.
    Constant("dropout on attention", "5.4", {"model.attention_dropout_rate": 0.0}),
    Constant("dropout on activations", "5.4", {"model.activation_dropout_rate": 0.0}),
    Constant("label smoothing", "5.4", {"training.label_smoothing": 0.1}),
    # "Written at 10-minute intervals": of 12 hours for 100,000 steps, and of 3.5 days for 300,000.
    Constant("steps between averaged checkpoints", "6.1", {"checkpoint.every_steps": 1400}),
    Constant("checkpoints averaged", "6.1", {"checkpoint.average": 5}),
    Constant("moving average of parameters", "6.1", {"training.ema_decay": None}),
    Constant("beam size", "6.1", {"decoding.beam_size": 4}),
    Constant("length penalty alpha", "6.1", {"decoding.length_penalty": 0.6}),
    Constant("maximum extra output length", "6.1", {"decoding.max_extra_length": 50}),
)
"""All settings that the paper states for the base model."""

BASE_SETTINGS = {path: value for constant in CONSTANTS for path, value in constant.values.items()}
"""Settings of the base model on English-German, keyed by attribute of `Config`."""

_BIG = {
    path: value for path, value in TABLE_3["big"].settings.items() if value != BASE_SETTINGS[path]
} | {"checkpoint.every_steps": 600, "checkpoint.average": 20}
# No corpus of this package equals it: WMT publishes 41M pairs, and our subwords are byte pairs.
_FRENCH = {
    "data.corpus": "WMT 2014 fr-en, 36M pairs, word-pieces",
    "data.target_language": "fr",
    "data.vocab_size": 32_000,
}
# "A small number of experiments to select the dropout, both attention and residual, learning rates
# and beam size"; "all other parameters remained unchanged from the English-to-German base
# translation model" (section 6.3), which makes 8 heads of 128 and a d_ff of 2048.
_PARSING = {
    "data.corpus": "WSJ sections 2-21",
    "data.source_language": UNPUBLISHED,
    "data.target_language": UNPUBLISHED,
    "data.vocab_size": 16_000,
    "model.num_encoder_layers": 4,
    "model.num_decoder_layers": 4,
    "model.d_model": 1024,
    "model.key_size": 128,
    "model.value_size": 128,
    "training.learning_rate_factor": UNPUBLISHED,
    "training.warmup_steps": UNPUBLISHED,
    "model.dropout_rate": UNPUBLISHED,
    "model.attention_dropout_rate": UNPUBLISHED,
    "decoding.beam_size": 21,
    "decoding.length_penalty": 0.3,
    "decoding.max_extra_length": 300,
}

EXPERIMENTS: dict[str, dict[str, object]] = {
    "base, English-German": {},
    "big, English-German": _BIG,
    "base, English-French": _FRENCH,
    "big, English-French": _BIG | _FRENCH | {"model.dropout_rate": 0.1},
    "parsing, WSJ only": _PARSING,
    "parsing, semi-supervised": _PARSING
    | {"data.corpus": "WSJ sections 2-21, 17M trees by other parsers", "data.vocab_size": 32_000},
}
"""Changes to `CONSTANTS` in each experiment of the paper (Table 3, sections 6.1 and 6.3)."""

TABLE_3_CHANGES = {"checkpoint.average": 1, "checkpoint.every_steps": UNPUBLISHED}
"""Changes to `CONSTANTS` in all rows of Table 3: no checkpoint averaging (section 6.2)."""
