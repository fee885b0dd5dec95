"""The figures of later papers on single changes to a Transformer that translates, as data.

Each difference is between two models of one paper: its base, and the same model with one change.
The difference belongs to that paper's own experiment, with its model, corpus, training and
definition of BLEU, and another experiment need not have the same result. Beside such a result, it
tells which sign and size others have found.
"""

from typing import NamedTuple


class PublishedIn(NamedTuple):
    """The place in a paper where a figure stands."""

    authors: str
    """The authors as they are cited, such as "Shaw et al."."""
    year: int
    """The year of the paper's publication."""
    title: str
    """The paper's title."""
    arxiv: str
    """The paper's number on arXiv."""
    table: str
    """The table that has the figure."""

    @property
    def citation(self) -> str:
        """Return authors and year: "Shaw et al. 2018"."""
        return f"{self.authors} {self.year}"

    @property
    def reference(self) -> str:
        """Return the citation, title, arXiv number and table, by which to find the figure."""
        return f'{self.citation}, "{self.title}", arXiv {self.arxiv}, {self.table}'


class PublishedDifference(NamedTuple):
    """The scores without and with one change to a model, in an experiment of a paper."""

    measure: str
    """The name of the measure, such as "BLEU"; its exact definition is part of `setting`."""
    base: float
    """The score of the paper's base model."""
    variant: float
    """The score of the same model with the change."""
    source: PublishedIn
    """The place in a paper where both scores are published."""
    setting: str
    """A description of the model, the corpus, the test set and the exact change."""

    @property
    def difference(self) -> float:
        """Return the variant's score minus that of the base, with the published decimals."""
        return round(self.variant - self.base, self._decimals)

    @property
    def scores(self) -> str:
        """Return both scores in the paper's precision: "BLEU 26.5 -> 26.8"."""
        digits = self._decimals
        return f"{self.measure} {self.base:.{digits}f} -> {self.variant:.{digits}f}"

    @property
    def _decimals(self) -> int:
        return max(len(str(score).partition(".")[2]) for score in (self.base, self.variant))


_SHAW = PublishedIn(
    "Shaw et al.",
    2018,
    "Self-Attention with Relative Position Representations",
    "1803.02155",
    "Table 1",
)
_SU = PublishedIn(
    "Su et al.",
    2021,
    "RoFormer: Enhanced Transformer with Rotary Position Embedding",
    "2104.09864",
    "Table 1",
)
_SHAZEER = PublishedIn(
    "Shazeer",
    2019,
    "Fast Transformer Decoding: One Write-Head is All You Need",
    "1911.02150",
    "Table 1",
)
_AINSLIE = PublishedIn(
    "Ainslie et al.",
    2023,
    "GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints",
    "2305.13245",
    "Table 1",
)
_NGUYEN = PublishedIn(
    "Nguyen and Salazar",
    2019,
    "Transformers without Tears: Improving the Normalization of Self-Attention",
    "1910.05895",
    "Table 6",
)
_ZHANG = PublishedIn(
    "Zhang and Sennrich",
    2019,
    "Root Mean Square Layer Normalization",
    "1910.07467",
    "Table 4",
)
_NARANG = PublishedIn(
    "Narang et al.",
    2021,
    "Do Transformer Modifications Transfer Across Implementations and Applications?",
    "2102.11972",
    "Table 1",
)

_SHAZEER_MODEL = (
    "6 layers, a d_model of 1024, 8 heads and learned positions, 211 million parameters, trained "
    "on WMT 2014 English-German and scored on newstest2013"
)
_SHAZEER_BLEU = "by greedy decoding and sacreBLEU with the tokenizer intl"
_MULTI_QUERY = (
    "multi-head attention against one head of keys and values in every attention, with d_ff "
    "widened from 4096 to 5440"
)
_UPTRAINED = (
    "T5.1.1 XXL, fine-tuned on WMT 2014 English-German and scored by BLEU on its dev set after "
    "greedy decoding; multi-head attention against {} in the decoder, made from the trained model "
    "by 5% more of pre-training"
)
_T5 = (
    "A T5 base model of 12 layers in encoder and decoder (pre-norm, LayerNorm, ReLU, biases of "
    "relative positions, one matrix of embeddings; a d_ff of 3072, 12 heads, 223 million "
    "parameters), trained from scratch on WMT 2014 English-German and scored by the best BLEU of "
    "its checkpoints on the validation set"
)


def _in_t5(bleu: float, change: str = "the same with the change of the row") -> PublishedDifference:
    """Make a row of Narang et al. 2021, where unshared models have about as many parameters."""
    return PublishedDifference("BLEU", 26.62, bleu, _NARANG, f"{_T5}; against {change}")


_POSITIONS = {
    "relative_positions": PublishedDifference(
        "BLEU",
        26.5,
        26.8,
        _SHAW,
        "The base model with a d_ff of 1024, trained on WMT 2014 English-German and scored on "
        "newstest2014 by beam search without checkpoint averaging; sinusoidal positions against "
        "learned relative ones, clipped at a distance of 16",
    ),
    "relative_positions_big": PublishedDifference(
        "BLEU",
        27.9,
        29.2,
        _SHAW,
        "The big model, trained on WMT 2014 English-German and scored on newstest2014 by beam "
        "search with the average of 20 checkpoints; sinusoidal positions against learned relative "
        "ones, clipped at a distance of 8",
    ),
    "rotary": PublishedDifference(
        "BLEU",
        27.3,
        27.5,
        _SU,
        "The base model, trained on WMT 2014 English-German and scored on its test set by beam "
        "search with the average of 5 checkpoints; sinusoidal positions, for which the table cites "
        "Vaswani et al. 2017, against rotary ones",
    ),
}
_ATTENTIONS = {
    "multi_query": PublishedDifference(
        "BLEU", 26.7, 26.5, _SHAZEER, f"{_SHAZEER_MODEL} {_SHAZEER_BLEU}; {_MULTI_QUERY}"
    ),
    "multi_query_log_perplexity": PublishedDifference(
        "log perplexity per subword", 1.424, 1.439, _SHAZEER, f"{_SHAZEER_MODEL}; {_MULTI_QUERY}"
    ),
    "multi_query_t5": PublishedDifference(
        "BLEU", 28.4, 28.5, _AINSLIE, _UPTRAINED.format("one head of keys and values")
    ),
    "grouped_query_t5": PublishedDifference(
        "BLEU", 28.4, 28.4, _AINSLIE, _UPTRAINED.format("8 heads of keys and values")
    ),
    "local_attention": PublishedDifference(
        "BLEU",
        26.7,
        26.6,
        _SHAZEER,
        f"{_SHAZEER_MODEL} {_SHAZEER_BLEU}; self-attention of the decoder to all positions so far "
        "against the last 32 of them",
    ),
}
_NORMS = {
    "pre_norm": PublishedDifference(
        "BLEU",
        27.58,
        26.83,
        _NGUYEN,
        "The base model, trained on WMT 2014 English-German and scored on newstest2014 by "
        "tokenized BLEU; layer norm after the residual sum against before the sub-layer",
    ),
    "rms_norm": PublishedDifference(
        "BLEU",
        26.6,
        26.8,
        _ZHANG,
        "The base model, trained on WMT 2014 English-German for 300,000 steps and scored on "
        "newstest2014 by sacreBLEU; LayerNorm against RMSNorm",
    ),
    "rms_norm_t5": _in_t5(27.14),
    "rezero_t5": _in_t5(26.37, "ReZero, trained with Adam in place of Adafactor"),
}
_ACTIVATIONS = {
    "gelu": _in_t5(26.47),
    "swish": _in_t5(26.75),
    "elu": _in_t5(26.08),
    "selu": _in_t5(25.99),
    "sigmoid": _in_t5(26.30),
    "softplus": _in_t5(26.89),
    "glu": _in_t5(27.12),
    "geglu": _in_t5(26.87),
    "reglu": _in_t5(27.02),
    "swiglu": _in_t5(27.02),
    "liglu": _in_t5(26.53),
}
_SHAPES = {
    "layers_24": _in_t5(26.89, "24 layers, a d_ff of 1536 and 6 heads"),
    "layers_18": _in_t5(27.10, "18 layers, a d_ff of 2048 and 8 heads"),
    "layers_8": _in_t5(26.85, "8 layers, a d_ff of 4608 and 18 heads"),
    "layers_6": _in_t5(26.66, "6 layers, a d_ff of 6144 and 24 heads"),
    "shared_layers": _in_t5(25.48, "one layer's parameters for all layers of a stack"),
    "shared_encoder_layers": _in_t5(26.23, "one layer's parameters for the whole encoder"),
    "shared_decoder_layers": _in_t5(26.08, "one layer's parameters for the whole decoder"),
    "tied_input_embeddings": _in_t5(26.49, "one matrix of embeddings for both inputs only"),
    "tied_decoder_embeddings": _in_t5(26.67, "one matrix for the decoder's input and output only"),
    "untied_embeddings": _in_t5(26.48, "three matrices of embeddings"),
}

DIFFERENCES: dict[str, PublishedDifference] = {
    **_POSITIONS,
    **_ATTENTIONS,
    **_NORMS,
    **_ACTIVATIONS,
    **_SHAPES,
}
"""Published differences by the change. Where a change is published for several models or measures,
the one nearest to the base model of "Attention Is All You Need" has the plain name."""
