"""The config sections for data, checkpoints, evaluation, decoding and devices."""

import re
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from t2t_jax.config.checks import FITS, MAY_CHANGE, NOT_EXPORTED, POSITIVE, Section, require, within
from t2t_jax.config.corpus_name import check_corpus
from t2t_jax.config.tables import MeasureName, TaskName
from t2t_jax.config.tasks import TASKS, TaskFacts, task_name

Quantize: TypeAlias = Literal["none", "int8"]
"""Form of the matrices in decoding: "none" as trained, or 8-bit integers."""
Remat: TypeAlias = Literal["none", "dots", "layer"]
"""The values of a layer that the backward pass recomputes; see `ParallelConfig`."""
_WIDEST_BEAM = 1000
# Entries that the vocabulary reserves: special tokens, bytes, and the space marker below.
_RESERVED = re.compile(r"<pad>|</s>|<s>|<unk>|<0x[0-9A-F]{2}>")
_SPACE_MARKER = "\u2581"


@dataclass(frozen=True)
class DataConfig(Section):
    """The corpus, its vocabulary and its batches (section 5.1)."""

    # A resumed run may name its corpus differently, because a hash checks the content.
    corpus: str = field(default="bundled:", metadata=MAY_CHANGE | NOT_EXPORTED)
    """Corpus: `bundled:`, `text:DIR` (train.en train.de dev.* test.*, also .gz), `text:FILE.tsv` or
    `text:FILE.jsonl`, `NAME:DIR` (a public corpus such as wmt14-en-de, prepared by `t2t-jax data
    NAME DIR`), `tfds:NAME/CONFIG`, or `trees:DIR` (train.mrg dev.mrg: sentences to constituency
    trees; DIR+DIR trains on both).
    `text:A*3+text:B` mixes corpora: an epoch reads A three times and B once. `shards:PATTERN` reads
    many files, such as 'shards:s3://bucket/{split}-*.parquet' (docs/shards.md). `python:` is the
    argument `data` of `t2t_jax.train`."""
    source_language: str = field(default="en", metadata=NOT_EXPORTED)
    """Language to translate from; the file suffix or the TFDS feature name."""
    target_language: str = field(default="de", metadata=NOT_EXPORTED)
    """Language to translate into; the file suffix or the TFDS feature name."""
    task: TaskName = "auto"
    """Task that the model learns. "auto" selects translation, or parsing if the corpus has trees.
    "language_modelling" continues text in one language (train.txt, dev.txt), and
    "masked_language_modelling" fills in hidden words, as BERT does. "classification" labels the
    sentences of train.txt (labels: train.label), "tagging" labels words (train.tags or trees), and
    "image_classification" labels the images of npz:FILE or digits:."""
    documents: Literal["lines", "paragraphs"] = field(default="lines", metadata=NOT_EXPORTED)
    """Document boundaries in language modelling: each line is a document ("lines"), or blank lines
    separate documents ("paragraphs")."""
    text_rows: Literal["documents", "run_on"] = field(default="documents", metadata=NOT_EXPORTED)
    """Training sequences in language modelling: "documents" makes a sequence of each document and
    splits a document longer than max_length subwords; "run_on" cuts the joined documents into
    sequences of max_length subwords, across document boundaries."""
    masked_share: float = field(default=0.15, metadata=NOT_EXPORTED | within(0.01, 0.99))
    """Share of subwords that masked language modelling predicts: 80% of the predicted subwords are
    masked, 10% replaced by random subwords and 10% unchanged (Devlin et al. 2019, section 3.1)."""
    vocab_size: int = field(default=37_000, metadata=NOT_EXPORTED | FITS | within(8))
    """Size of the BPE vocabulary (including special tokens), which source and target share."""
    protected_tokens: tuple[str, ...] = field(default=(), metadata=NOT_EXPORTED)
    """Strings such as <2de> or __URL__ that are single vocabulary entries. The tokenizer never
    splits a protected token and never merges it with the text next to it."""
    max_length: int = field(default=256, metadata=NOT_EXPORTED | FITS | within(8))
    """Longest source or target in subwords, including the end-of-sentence token. Training skips
    longer pairs and reports their number."""
    batching: Literal["bucket", "pack"] = field(default="bucket", metadata=NOT_EXPORTED)
    """Batching method: "bucket" groups pairs of similar length (the paper); "pack" puts several
    pairs into one batch row."""
    source_tokens_per_step: int = field(default=25_000, metadata=NOT_EXPORTED | FITS)
    """Maximum source positions per step (over all devices, including padding)."""
    target_tokens_per_step: int = field(default=25_000, metadata=NOT_EXPORTED | FITS)
    """Maximum target positions per step (over all devices, including padding)."""
    fields: tuple[str, ...] = field(default=(), metadata=NOT_EXPORTED)
    """Names of the source and target fields in JSON lines, Parquet files or dicts from Python,
    such as translation.en translation.de, or the name of the one text field. The default is the two
    language codes, "text", or "text label"."""
    window: int = field(default=16, metadata=NOT_EXPORTED | within(1, 10_000))
    """Number of pieces (about 100,000 pairs each) that the shard reader shuffles together."""
    dev_lines: int = field(default=0, metadata=NOT_EXPORTED | within(0, 1_000_000))
    """Number of distinct training pairs to hold out as the dev split if the corpus has no dev
    split."""
    cache_dir: str = field(default="", metadata=MAY_CHANGE | NOT_EXPORTED)
    """Cache folder for tokenized corpora; empty means the user's cache folder. Several machines can
    share a cache folder in a bucket (s3://, gs://)."""
    prefetch: int = field(default=4, metadata=MAY_CHANGE | NOT_EXPORTED | within(1, 10_000))
    """Number of batches to prepare in advance."""

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        check_corpus(self.corpus, self.facts)
        padded_length = -(-self.max_length // 8) * 8
        for name in ("source_tokens_per_step", "target_tokens_per_step"):
            tokens = getattr(self, name)
            require(
                tokens >= padded_length,
                f"{name}={tokens} cannot hold one sentence of max_length={self.max_length}, padded "
                f"to a multiple of 8; raise {name} to {padded_length} or lower max_length",
            )
        require(
            self.source_language != self.target_language,
            f"source_language and target_language are both {self.source_language!r}",
        )
        self._check_protected_tokens()

    @property
    def facts(self) -> TaskFacts:
        """Return the properties of the task that `task` or the name of the corpus selects."""
        return TASKS[task_name(self.corpus, self.task)]

    def _check_protected_tokens(self) -> None:
        tokens = self.protected_tokens
        for token in tokens:
            name = f"data.protected_tokens={token!r}"
            require(token != "", f"{name} is empty; leave it out")
            require(
                not any(char.isspace() or char in (_SPACE_MARKER, "\0") for char in token),
                f"{name} has white space, a NUL character or the space marker {_SPACE_MARKER}, "
                "which the vocabulary does not preserve; remove them, as in <to-de>",
            )
            require(
                not _RESERVED.fullmatch(token),
                f"{name} is the name of a special entry of the vocabulary; choose another string",
            )
            require(tokens.count(token) == 1, f"{name} is given twice; give it once")


@dataclass(frozen=True)
class CheckpointConfig(Section):
    """When training writes checkpoints, and which checkpoints it keeps."""

    every_steps: int | None = field(default=1400, metadata=MAY_CHANGE | POSITIVE)
    """Steps between the checkpoints that are averaged. The last step always has a checkpoint. The
    paper writes a checkpoint every 10 minutes (section 6.1): every 1,400 steps of its base model
    and every 600 steps of its big model. None writes only the checkpoint of the last step."""
    every_minutes: float | None = field(default=10.0, metadata=MAY_CHANGE | POSITIVE)
    """Minutes after a checkpoint until a recovery checkpoint is written, so that a killed run loses
    at most this much time. The next checkpoint replaces a recovery checkpoint, which is never
    averaged. None writes no recovery checkpoints."""
    keep: int = field(default=5, metadata=MAY_CHANGE | within(1))
    """Number of newest checkpoints to keep for averaging, not counting a recovery checkpoint. If
    checkpoint.average is above 1, only the two newest checkpoints keep the optimizer state."""
    keep_every: int | None = field(default=None, metadata=MAY_CHANGE | POSITIVE)
    """Steps between the complete checkpoints that are kept permanently, in addition to the newest
    checkpoints; a multiple of `checkpoint.every_steps`. None keeps none permanently."""
    average: int = field(default=5, metadata=MAY_CHANGE | within(1))
    """Number of last checkpoints to average (section 6.1; base: 5, big: 20; Table 3: 1). Evaluation
    and translation use the average after training, unless `training.ema_decay` is set."""
    keep_best: bool = field(default=True, metadata=MAY_CHANGE)
    """Keep the checkpoint with the best dev score, too."""

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        require(
            self.average <= self.keep,
            f"checkpoint.average={self.average} is more than checkpoint.keep={self.keep}; "
            "raise checkpoint.keep or lower checkpoint.average",
        )
        require(
            self.keep_every is None
            or (self.every_steps is not None and self.keep_every % self.every_steps == 0),
            f"checkpoint.keep_every={self.keep_every} is not a multiple of "
            f"checkpoint.every_steps={self.every_steps}, so some steps have no checkpoint to keep; "
            "set a multiple",
        )


@dataclass(frozen=True)
class EvaluationConfig(Section):
    """The evaluation on the dev split during training."""

    every_steps: int = field(default=1000, metadata=MAY_CHANGE | within(1))
    """Steps between evaluations on the dev split."""
    num_sentences: int | None = field(default=None, metadata=MAY_CHANGE | POSITIVE)
    """Number of dev sentences to translate for BLEU, starting with the first; None means all. The
    loss always uses all dev sentences."""
    num_samples: int = field(default=3, metadata=MAY_CHANGE | within(0))
    """Number of translations to print at each evaluation."""
    beam_size: int = field(default=1, metadata=MAY_CHANGE | within(1, _WIDEST_BEAM))
    """Beam size of evaluations during training; 1 is greedy search, which is fast."""
    metric: MeasureName | None = field(default=None, metadata=MAY_CHANGE)
    """Translation metric for the best checkpoint, early stopping and an additional sweep column:
    the mean of the sentence BLEU or chrF scores, or of a registered measure. None uses corpus
    BLEU."""


@dataclass(frozen=True)
class DecodingConfig(Section):
    """The settings of decoding: beam search (section 6.1) or sampling."""

    beam_size: int = field(default=4, metadata=MAY_CHANGE | within(1, _WIDEST_BEAM))
    """Number of hypotheses in beam search; 1 is greedy search."""
    # Above 10, the penalty of a long output overflows float32.
    length_penalty: float = field(default=0.6, metadata=MAY_CHANGE | within(0, 10))
    """Exponent alpha of the length penalty: scores are log-probabilities divided by
    ((5 + length) / 6) ** alpha."""
    beam_rule: Literal["paper", "transformers"] = field(default="paper", metadata=MAY_CHANGE)
    """Ranking and stopping rule of beam search. "paper" follows Wu et al. 2016 and searches until
    no hypothesis can improve; at the length limit, unfinished hypotheses count only if no
    hypothesis is finished. "transformers" follows the Transformers library, for models imported
    from it: scores are log-probabilities divided by length ** alpha, and a hypothesis finishes only
    if its end-of-sentence token is among the beam_size best continuations. The search stops when
    beam_size hypotheses are finished and no unfinished hypothesis scores better at its current
    length; at the length limit, unfinished hypotheses compete with finished hypotheses."""
    max_extra_length: int = field(default=50, metadata=MAY_CHANGE | within(1, 100_000))
    """Maximum number of subwords by which an output may exceed the length of its source."""
    max_source_length: int = field(
        default=1024, metadata=MAY_CHANGE | NOT_EXPORTED | within(8, 100_000)
    )
    """Longest source to decode in one piece, in subwords including the end-of-sentence token."""
    long_lines: Literal["split", "refuse"] = field(
        default="split", metadata=MAY_CHANGE | NOT_EXPORTED
    )
    """Handling of lines longer than max_source_length or the learned position table: "split"
    decodes parts of the line, split between sentences if possible, and joins the outputs; "refuse"
    stops with an error that names the line number."""
    temperature: float = field(default=0.0, metadata=MAY_CHANGE | within(0))
    """Sampling temperature; 0 uses beam search instead of sampling."""
    top_k: int = field(default=0, metadata=MAY_CHANGE | within(0))
    """Number of most probable subwords to sample from; 0 means all."""
    top_p: float = field(default=1.0, metadata=MAY_CHANGE | within(0, 1))
    """Sample from the smallest set of subwords whose total probability reaches this value."""
    tokens_per_batch: int = field(
        default=8192, metadata=MAY_CHANGE | NOT_EXPORTED | within(1, 100_000_000)
    )
    """Maximum number of positions in a decoding batch, including padding: source positions or
    output positions, whichever are more. Each hypothesis of a beam caches keys and values for as
    many positions."""
    quantize: Quantize = field(default="none", metadata=MAY_CHANGE | NOT_EXPORTED)
    """Quantize matrices and the activations that they multiply to 8-bit integers ("int8"): faster
    on CPUs, and slightly less accurate."""
    min_length: int = field(default=0, metadata=MAY_CHANGE | within(0, 100_000))
    """Minimum number of subwords of an output, not counting the end-of-sentence token."""
    no_repeat_ngram_size: int = field(default=0, metadata=MAY_CHANGE | within(0, 100))
    """Length of the subword n-grams that an output must not repeat; 0 allows repetition."""
    forbidden: tuple[str, ...] = field(default=(), metadata=MAY_CHANGE)
    """Words and phrases that must not occur at the start of an output or after a space, in any
    segmentation into subwords."""
    forbidden_ids: tuple[int, ...] = field(default=(), metadata=MAY_CHANGE)
    """Ids of subwords that decoding must not generate."""

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        blank = any(not phrase.strip() for phrase in self.forbidden)
        require(not blank, "decoding.forbidden has a blank phrase; leave it out")
        require(self.top_p > 0, "top_p=0 leaves nothing to sample from")


@dataclass(frozen=True)
class MeshConfig(Section):
    """The axis sizes of the device mesh."""

    section = "parallel"  # the name that errors give to these fields, as flags do

    data: int = field(default=-1, metadata=MAY_CHANGE | FITS)
    """Number of data-parallel device groups, which hold the same parameters and compute different
    batch rows; -1 uses all available devices."""
    fsdp: int = field(default=1, metadata=MAY_CHANGE | FITS | within(1))
    """Number of devices that shard the parameters. The devices also shard the optimizer state and
    compute different batch rows."""
    tensor: int = field(default=1, metadata=MAY_CHANGE | FITS | within(1))
    """Number of tensor-parallel devices. The devices split the heads, d_ff and the vocabulary of
    the same batch rows."""

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        require(
            self.data == -1 or self.data >= 1,
            f"parallel.data={self.data} is not a number of devices; use -1 for all",
        )


@dataclass(frozen=True)
class ParallelConfig(MeshConfig):
    """The distribution of a training step over devices and passes.

    A resumed run may change these fields: they change no batch and no dropout mask, only the order
    of summation.
    """

    backend: Literal["jit", "pmap"] = field(default="jit", metadata=MAY_CHANGE)
    """Transformation that compiles the training step: `jax.jit` over the mesh, or `jax.pmap` for
    data parallelism in one process."""
    tokens_per_device: int | Literal["auto"] | None = field(
        default=None, metadata=MAY_CHANGE | FITS | POSITIVE
    )
    """Maximum number of source or target positions, whichever are more, per device and pass. A
    device splits a larger batch into several passes and accumulates their gradients; None means one
    pass. "auto" estimates the number that fits in the memory of a GPU or TPU, and is 4,096 on
    CPUs; a resumed run keeps its number."""
    remat: Remat = field(default="none", metadata=MAY_CHANGE)
    """Values of a layer that the backward pass recomputes instead of storing, which saves memory
    and takes more time: none; all except matmuls with parameters (dots); or all except the layer's
    input (layer)."""
    loss_chunks: Literal[1, 2, 4, 8] = field(default=1, metadata=MAY_CHANGE)
    """Number of chunks in which to compute logits and loss. More chunks need less memory for logits
    and their gradients; with 2 or more, the output projection takes a third more FLOPs."""
    rendezvous_minutes: float = field(default=30.0, metadata=MAY_CHANGE | POSITIVE)
    """Minutes that each process waits for the other processes when a run starts."""
    hang_minutes: float | None = field(default=10.0, metadata=MAY_CHANGE | POSITIVE)
    """Minutes without a finished step after which every process writes its Python stacks to the run
    directory and exits with code 75. Compilation, evaluations and checkpoints may take 12 times as
    long. None never stops a run, for debugging."""

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        require(
            self.backend == "jit" or self.fsdp == self.tensor == 1,
            f"parallel.backend='pmap' holds all parameters on every device, so parallel.fsdp="
            f"{self.fsdp} and parallel.tensor={self.tensor} must be 1; use backend='jit'",
        )

    @property
    def pass_tokens(self) -> int | None:
        """Return the most tokens per device and pass: `tokens_per_device`.

        None means one pass, also for an unresolved "auto".
        """
        return None if self.tokens_per_device == "auto" else self.tokens_per_device
