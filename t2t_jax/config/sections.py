"""The other sections of a config: data, checkpoints, evaluation, decoding and devices."""

import re
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from t2t_jax.config.checks import FITS, MAY_CHANGE, NOT_EXPORTED, POSITIVE, Section, require, within
from t2t_jax.config.tables import TaskName
from t2t_jax.config.tasks import TASKS, TaskFacts, task_name

Quantize: TypeAlias = Literal["none", "int8"]
"""The form in which decoding holds matrices: "none" as training has them, or 8-bit integers."""
Remat: TypeAlias = Literal["none", "dots", "layer"]
"""How much of a layer is computed again for its derivative; see `ParallelConfig`."""
_WIDEST_BEAM = 1000
# Pieces that a vocabulary has for itself: its special ids, the bytes, and the mark of a space.
_OWN_PIECE = re.compile(r"<pad>|</s>|<s>|<unk>|<0x[0-9A-F]{2}>")
_MARK_OF_A_SPACE = "\u2581"


@dataclass(frozen=True)
class DataConfig(Section):
    """The corpus, its vocabulary and the batches of its pairs (section 5.1)."""

    # A run may go on with another name of its corpus: a hash guards the content.
    corpus: str = field(default="bundled:", metadata=MAY_CHANGE | NOT_EXPORTED)
    """Corpus: `bundled:`, `text:DIR` (train.en train.de dev.* test.*, also .gz), `text:FILE.tsv` or
    `text:FILE.jsonl`, `NAME:DIR` (a public corpus such as wmt14-en-de, which `t2t-jax data NAME
    DIR` has made), `tfds:NAME/CONFIG`, or `trees:DIR` (train.mrg dev.mrg: sentences to constituency
    trees; DIR+DIR trains on both).
    `text:A*3+text:B` mixes corpora: an epoch reads A three times and B once. `shards:PATTERN` is
    many files, such as 'shards:s3://bucket/{split}-*.parquet' (docs/shards.md)."""
    source_language: str = field(default="en", metadata=NOT_EXPORTED)
    """Language to translate from; the file suffix or the TFDS feature name."""
    target_language: str = field(default="de", metadata=NOT_EXPORTED)
    """Language to translate into; the file suffix or the TFDS feature name."""
    task: TaskName = "auto"
    """Task that the model learns. "auto" is to translate, or to parse where the corpus has trees;
    "language_modelling" is to continue the text of one language, from train.txt and dev.txt, and
    "masked_language_modelling" to fill in its hidden words (BERT); "classification" is to label the
    sentences of train.txt as in train.label; "tagging" is to label words, as in train.tags or
    trees; and "image_classification" to label the images of npz:FILE or digits:."""
    documents: Literal["lines", "paragraphs"] = field(default="lines", metadata=NOT_EXPORTED)
    """In language modelling, the extent of a document: a line, or the lines up to a blank line."""
    text_rows: Literal["documents", "run_on"] = field(default="documents", metadata=NOT_EXPORTED)
    """In language modelling, the extent of a sequence: "documents", a document, in parts if it has
    more than max_length subwords; or "run_on", max_length subwords, across ends of documents."""
    masked_share: float = field(default=0.15, metadata=NOT_EXPORTED | within(0.01, 0.99))
    """In masked language modelling, the share of the subwords that are predicted: 80% of these are
    hidden, 10% replaced by others and 10% left as they are (Devlin et al. 2019, section 3.1)."""
    vocab_size: int = field(default=37_000, metadata=NOT_EXPORTED | FITS | within(8))
    """Entries of the BPE vocabulary (shared by source and target, special ids included)."""
    protected_tokens: tuple[str, ...] = field(default=(), metadata=NOT_EXPORTED)
    """Strings such as <2de> or __URL__, each of which is one entry of the vocabulary wherever it
    stands in a line: it is never split, and never joined with the text beside it."""
    max_length: int = field(default=256, metadata=NOT_EXPORTED | FITS | within(8))
    """Longest source or target in subwords, end of sentence included; longer pairs are left out
    of training and counted."""
    batching: Literal["bucket", "pack"] = field(default="bucket", metadata=NOT_EXPORTED)
    """How pairs form batches: of similar length (bucket, the paper), or several in a row (pack)."""
    source_tokens_per_step: int = field(default=25_000, metadata=NOT_EXPORTED | FITS)
    """Most source positions in one step (padding included, over all devices)."""
    target_tokens_per_step: int = field(default=25_000, metadata=NOT_EXPORTED | FITS)
    """Most target positions in one step (padding included, over all devices)."""
    mixture_temperature: float | None = field(default=None, metadata=NOT_EXPORTED | within(1, 1000))
    """Temperature T of a mixture: a corpus of n pairs has a share proportional to n^(1/T), times
    its weight. Without it, an epoch reads each corpus as often as its weight says."""
    fields: tuple[str, ...] = field(default=(), metadata=NOT_EXPORTED)
    """In JSON lines or Parquet, the names of the two fields with source and target, such as
    translation.en translation.de, or of the one with a text; without them, they are the languages,
    or text."""
    window: int = field(default=16, metadata=NOT_EXPORTED | within(1, 10_000))
    """In shards, the number of pieces, of some 100,000 pairs each, whose pairs are mixed."""
    dev_lines: int = field(default=0, metadata=NOT_EXPORTED | within(0, 1_000_000))
    """Number of distinct training pairs to hold out as the dev set, if the corpus has none."""
    cache_dir: str = field(default="", metadata=MAY_CHANGE | NOT_EXPORTED)
    """Folder of tokenised corpora; empty means the user's cache folder. Machines can share one in a
    bucket (s3://, gs://)."""
    prefetch: int = field(default=4, metadata=MAY_CHANGE | NOT_EXPORTED | within(1, 10_000))
    """Batches made ahead of the step that needs them."""

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
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
        """Return the facts of the task that the corpus is for."""
        return TASKS[task_name(self.corpus, self.task)]

    def _check_protected_tokens(self) -> None:
        tokens = self.protected_tokens
        for token in tokens:
            name = f"data.protected_tokens={token!r}"
            require(token != "", f"{name} is empty; leave it out")
            require(
                not any(char.isspace() or char in (_MARK_OF_A_SPACE, "\0") for char in token),
                f"{name} has white space (or {_MARK_OF_A_SPACE}, which stands for it, or a zero), "
                "which a vocabulary does not keep as it is; write it without, as in <to-de>",
            )
            require(
                not _OWN_PIECE.fullmatch(token),
                f"{name} is what the vocabulary calls an entry of its own; write it otherwise",
            )
            require(tokens.count(token) == 1, f"{name} is given twice; give it once")


@dataclass(frozen=True)
class CheckpointConfig(Section):
    """The times at which training writes checkpoints, and the checkpoints that it keeps."""

    every_steps: int | None = field(default=1400, metadata=MAY_CHANGE | POSITIVE)
    """Steps between the checkpoints that are averaged; the last step has one, too. The paper's are
    10 minutes apart (section 6.1), which were 1,400 steps of its base model and 600 of its big one.
    None is for a run without averages, whose last step alone has a checkpoint."""
    every_minutes: float | None = field(default=10.0, metadata=MAY_CHANGE | POSITIVE)
    """Minutes from a checkpoint to one for safety, which is never averaged and which the next one
    replaces: a run that is killed loses no more than this time. None makes no such checkpoints."""
    keep: int = field(default=5, metadata=MAY_CHANGE | within(1))
    """Newest checkpoints to keep, apart from one for safety; averages are made of these. If there
    are averages, only the two newest keep the optimizer state."""
    keep_every: int | None = field(default=None, metadata=MAY_CHANGE | POSITIVE)
    """Steps between the checkpoints that are kept for good, whole, in addition to the newest: a
    multiple of `checkpoint.every_steps`. None keeps none."""
    average: int = field(default=5, metadata=MAY_CHANGE | within(1))
    """Number of the last checkpoints to average (section 6.1; base: 5, big: 20; Table 3: 1), which
    makes the model that is scored and used once training is over, unless the run has a
    `training.ema_decay`."""
    keep_best: bool = field(default=True, metadata=MAY_CHANGE)
    """Also keep the checkpoint with the best dev score, apart from the newest."""

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
            "give a multiple",
        )


@dataclass(frozen=True)
class EvaluationConfig(Section):
    """The evaluation on the dev set during training."""

    every_steps: int = field(default=1000, metadata=MAY_CHANGE | within(1))
    """Steps between evaluations on dev."""
    num_sentences: int | None = field(default=None, metadata=MAY_CHANGE | POSITIVE)
    """Dev sentences translated for BLEU, from the first on; None means all. Loss uses all."""
    num_samples: int = field(default=3, metadata=MAY_CHANGE | within(0))
    """Translations printed at each evaluation."""
    beam_size: int = field(default=1, metadata=MAY_CHANGE | within(1, _WIDEST_BEAM))
    """Beam size during training; 1 is greedy search and fast."""
    metric: Literal["bleu", "chrf"] | None = field(default=None, metadata=MAY_CHANGE)
    """In translation, the metric that chooses the best checkpoint and says whether dev still gets
    better, and that a grid shows beside BLEU: the mean over sentences of their BLEU or chrF. None
    is BLEU of the corpus."""


@dataclass(frozen=True)
class DecodingConfig(Section):
    """The search for a translation (section 6.1)."""

    beam_size: int = field(default=4, metadata=MAY_CHANGE | within(1, _WIDEST_BEAM))
    """Hypotheses kept alive per sentence; 1 is greedy search."""
    # Beyond 10, float32 cannot hold the penalty of a long output.
    length_penalty: float = field(default=0.6, metadata=MAY_CHANGE | within(0, 10))
    """Exponent alpha of the length penalty: scores are log-probabilities divided by
    ((5 + length) / 6) ** alpha."""
    beam_rule: Literal["paper", "transformers"] = field(default="paper", metadata=MAY_CHANGE)
    """How a beam search ranks and ends: "paper" as Wu et al. 2016, until no hypothesis can become
    better. Or "transformers", as that library does, for models that come from there: scores are
    log-probabilities divided by length ** alpha, a hypothesis ends only if its end is among the
    beam_size best continuations, and the search is over when beam_size hypotheses have ended and no
    unfinished one is better at its present length. At the limit, unfinished hypotheses compete with
    those that ended; by the rule of the paper they only count if none has ended."""
    max_extra_length: int = field(default=50, metadata=MAY_CHANGE | within(1, 100_000))
    """Number of subwords by which an output may be longer than its source."""
    max_source_length: int = field(
        default=1024, metadata=MAY_CHANGE | NOT_EXPORTED | within(8, 100_000)
    )
    """Longest source, in subwords with the end of sentence, that is decoded as a whole."""
    long_lines: Literal["split", "refuse"] = field(
        default="split", metadata=MAY_CHANGE | NOT_EXPORTED
    )
    """Treatment of a line that is longer, or has no learned positions: "split" it, if possible at
    the ends of sentences, decode the parts and join their outputs; or "refuse" it by its number."""
    temperature: float = field(default=0.0, metadata=MAY_CHANGE | within(0))
    """0 searches for the best translation; above 0, sample from the model at this temperature."""
    top_k: int = field(default=0, metadata=MAY_CHANGE | within(0))
    """When sampling, draw from the k most probable subwords; 0 means all."""
    top_p: float = field(default=1.0, metadata=MAY_CHANGE | within(0, 1))
    """When sampling, draw from the smallest set of subwords that holds this probability."""
    tokens_per_batch: int = field(
        default=8192, metadata=MAY_CHANGE | NOT_EXPORTED | within(1, 100_000_000)
    )
    """Positions decoded together, padding included: those of the sources or those of the outputs,
    whichever are more. Each hypothesis of a beam keeps keys and values for as many."""
    quantize: Quantize = field(default="none", metadata=MAY_CHANGE | NOT_EXPORTED)
    """Round weights, and the activations that they multiply, to integers of 8 bits: faster on CPUs,
    and a little less exact."""
    min_length: int = field(default=0, metadata=MAY_CHANGE | within(0, 100_000))
    """Fewest subwords of an output before its end of sentence."""
    no_repeat_ngram_size: int = field(default=0, metadata=MAY_CHANGE | within(0, 100))
    """Length of the sequences of subwords that occur at most once in an output; 0 allows any."""
    forbidden: tuple[str, ...] = field(default=(), metadata=MAY_CHANGE)
    """Words and phrases that no output contains at its beginning or after a space, in whatever
    subwords they are spelt."""
    forbidden_ids: tuple[int, ...] = field(default=(), metadata=MAY_CHANGE)
    """Ids of subwords that are never chosen."""

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        blank = any(not phrase.strip() for phrase in self.forbidden)
        require(not blank, "decoding.forbidden has a blank phrase; leave it out")
        require(self.top_p > 0, "top_p=0 leaves nothing to sample from")


@dataclass(frozen=True)
class MeshConfig(Section):
    """The arrangement of devices as a mesh: the sizes of its axes."""

    section = "parallel"  # the name that errors give to these fields, as flags do

    data: int = field(default=-1, metadata=MAY_CHANGE | FITS)
    """Groups of devices that take different rows of a batch and hold the same parameters; -1 means
    as many as there are devices for."""
    fsdp: int = field(default=1, metadata=MAY_CHANGE | FITS | within(1))
    """Devices that share one copy of parameters (and optimiser state), and take different rows."""
    tensor: int = field(default=1, metadata=MAY_CHANGE | FITS | within(1))
    """Devices that share the work on the same rows: heads, d_ff and vocabulary are split."""

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        require(
            self.data == -1 or self.data >= 1,
            f"parallel.data={self.data} is not a number of devices; use -1 for all",
        )


@dataclass(frozen=True)
class ParallelConfig(MeshConfig):
    """The layout of the work of a step over devices, in space and in time.

    A run may go on with other values: they change no batch and no dropout mask, only the order in
    which numbers are added up.
    """

    backend: Literal["jit", "pmap"] = field(default="jit", metadata=MAY_CHANGE)
    """Compiler of the training step: `jax.jit` over the mesh, or `jax.pmap` for classic data
    parallelism in one process."""
    tokens_per_device: int | Literal["auto"] | None = field(
        default=None, metadata=MAY_CHANGE | FITS | POSITIVE
    )
    """Most positions, of source or target, whichever is longer, that a device computes at once: it
    takes a larger share of a batch in several passes, whose sums are added before the one division.
    None means one pass. "auto" is, for a new run, as many as fit the memory of a GPU or TPU by an
    estimate, and 4,096 on CPUs; a run that goes on keeps its number."""
    remat: Remat = field(default="none", metadata=MAY_CHANGE)
    """Values that a layer computes again for its derivative instead of keeping them: none, all but
    products with parameters (dots), or all but its input (layer). Less memory, more work."""
    loss_chunks: Literal[1, 2, 4, 8] = field(default=1, metadata=MAY_CHANGE)
    """Parts in which logits and loss are computed. More parts take less memory for logits and their
    gradient, and a third more work on the output projection than 1 part."""
    rendezvous_minutes: float = field(default=30.0, metadata=MAY_CHANGE | POSITIVE)
    """Minutes that a process waits for the others when a run of several processes starts."""
    hang_minutes: float | None = field(default=10.0, metadata=MAY_CHANGE | POSITIVE)
    """Minutes without the end of a step after which every process writes what it was doing to the
    run directory and ends with exit code 75; 12 times as many for compilation, an evaluation and a
    checkpoint. None waits for ever, as where somebody debugs."""

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
        """Return `tokens_per_device`, with None (one pass) for an "auto" that is not settled."""
        return None if self.tokens_per_device == "auto" else self.tokens_per_device
