"""One configuration for training, evaluation and decoding.

A `Config` is a tree of frozen dataclasses. It is checked when it is made, changed only through
`replace`, written to JSON and read back without loss. The defaults are the paper's base model
("Attention Is All You Need", Vaswani et al. 2017, Table 3 and section 5).

Whether a model is training or decoding is an argument of the call, never a field in here.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_type_hints

from t2t_jax.checks import INFINITY, check_fields, check_fits, check_positive, check_range, require
from t2t_jax.errors import UserError, did_you_mean
from t2t_jax.records import Schema, parse_object

_WIDEST_BEAM = 1000

# A run may be continued with another value: it changes when and where, never the recipe.
_MAY_CHANGE = {"may_change": True}


@dataclass(frozen=True)
class ModelConfig:
    """The network: section 3 of the paper, with the options of its ablations."""

    d_model: int = 512
    """Width of every layer's output (section 3.1)."""
    num_heads: int = 8
    """Attention heads h (section 3.2.2)."""
    d_k: int | None = None
    """Width of a head's queries and keys; None means d_model / num_heads, as in the paper."""
    d_v: int | None = None
    """Width of a head's values; None means d_model / num_heads, as in the paper."""
    d_ff: int = 2048
    """Inner width of the position-wise feed-forward network (section 3.3)."""
    num_encoder_layers: int = 6
    """Encoder layers N."""
    num_decoder_layers: int = 6
    """Decoder layers N."""
    norm_order: Literal["post", "pre"] = "post"
    """Layer norm after the residual sum (the paper, section 3.1) or before the sub-layer."""
    position: Literal["sinusoidal", "learned"] = "sinusoidal"
    """Fixed sinusoids (section 3.5) or a learned table (Table 3, row E)."""
    max_positions: int = 1024
    """Rows of the learned position table; sinusoids have no limit and do not read it."""
    share_embeddings: bool = True
    """One matrix for source embedding, target embedding and output projection (section 3.4)."""
    dropout_rate: float = 0.1
    """P_drop: on every sub-layer's output and on the sum of embedding and position (5.4)."""
    attention_dropout_rate: float = 0.0
    """Dropout on the attention weights; the paper has none."""
    activation_dropout_rate: float = 0.0
    """Dropout on the feed-forward network's hidden activations; the paper has none."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of activations and matrix products; parameters, softmax and loss stay float32."""

    def __post_init__(self) -> None:
        """Check every field."""
        check_fields(self)
        sizes = ("d_model", "num_heads", "d_ff", "max_positions")
        check_range(self, 1, INFINITY, *sizes, "num_encoder_layers", "num_decoder_layers")
        check_fits(self, *sizes, "num_encoder_layers", "num_decoder_layers", "d_k", "d_v")
        check_range(
            self, 0, 0.99, "dropout_rate", "attention_dropout_rate", "activation_dropout_rate"
        )
        for name in ("d_k", "d_v"):
            size = getattr(self, name)
            require(size is None or size >= 1, f"{name}={size} is not positive")
            require(
                size is not None or self.d_model % self.num_heads == 0,
                f"d_model={self.d_model} is not divisible by num_heads={self.num_heads}; "
                "set d_k and d_v",
            )
        require(
            self.position != "sinusoidal" or self.d_model % 2 == 0,
            f"d_model={self.d_model} is odd, but sinusoidal positions come in pairs of sine and "
            "cosine; use an even d_model or position='learned'",
        )

    @property
    def key_size(self) -> int:
        """d_k, resolved."""
        return self.d_k or self.d_model // self.num_heads

    @property
    def value_size(self) -> int:
        """d_v, resolved."""
        return self.d_v or self.d_model // self.num_heads

    @property
    def longest_sentence(self) -> float:
        """Most tokens of a sentence that the model has positions for."""
        return self.max_positions if self.position == "learned" else INFINITY


@dataclass(frozen=True)
class DataConfig:
    """The corpus, its vocabulary and how its pairs become batches: section 5.1."""

    corpus: str = field(default="bundled:", metadata=_MAY_CHANGE)  # a hash guards its content
    """`bundled:`, `text:DIR` (train.en train.de dev.* test.*, also .gz), `tfds:NAME/CONFIG`, or
    `trees:DIR` (train.mrg dev.mrg: sentences to constituency trees; DIR+DIR to train on both)."""
    source_language: str = "en"
    """Language translated from; the file suffix or the TFDS feature name."""
    target_language: str = "de"
    """Language translated to; the file suffix or the TFDS feature name."""
    vocab_size: int = 37_000
    """Entries of the shared source-target BPE vocabulary, special ids included."""
    max_length: int = 256
    """Longest source or target in subwords, end of sentence included; longer pairs are left out
    of training and counted."""
    batching: Literal["bucket", "pack"] = "bucket"
    """Pairs of similar length together (the paper), or several pairs a row (less padding)."""
    source_tokens_per_step: int = 25_000
    """Upper bound on source positions in one step, padding included, over all devices."""
    target_tokens_per_step: int = 25_000
    """Upper bound on target positions in one step, padding included, over all devices."""
    cache_dir: str = field(default="", metadata=_MAY_CHANGE)
    """Where tokenised corpora are kept; empty means the user's cache folder."""
    prefetch: int = field(default=4, metadata=_MAY_CHANGE)
    """Batches made ahead of the step that needs them."""

    def __post_init__(self) -> None:
        """Check every field."""
        check_fields(self)
        check_range(self, 8, INFINITY, "vocab_size", "max_length")
        check_range(self, 1, 10_000, "prefetch")  # each takes memory
        tokens_per_step = "source_tokens_per_step", "target_tokens_per_step"
        check_fits(self, "vocab_size", "max_length", *tokens_per_step)
        padded_length = -(-self.max_length // 8) * 8
        for name in tokens_per_step:
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


@dataclass(frozen=True)
class TrainingConfig:
    """Optimiser, schedule and regularisation: sections 5.3 and 5.4."""

    num_train_steps: int = field(default=100_000, metadata=_MAY_CHANGE)
    """Steps to train (base: 100,000; big: 300,000)."""
    warmup_steps: int = 4000
    """Steps of linear warmup before the inverse square root decay (equation 3)."""
    learning_rate_factor: float = 1.0
    """Factor on equation 3; the paper has 1."""
    adam_beta1: float = 0.9
    """Adam's beta_1."""
    adam_beta2: float = 0.98
    """Adam's beta_2."""
    adam_epsilon: float = 1e-9
    """Adam's epsilon."""
    label_smoothing: float = 0.1
    """epsilon_ls: probability mass spread evenly over the vocabulary."""
    seed: int = 0
    """Seed of initialisation, dropout and the order of the data."""
    max_nonfinite_steps: int = field(default=5, metadata=_MAY_CHANGE)
    """Steps in a row with a non-finite loss or gradient (each is skipped) that end the run."""
    log_every_steps: int = field(default=100, metadata=_MAY_CHANGE)
    """Steps between lines of the log."""

    def __post_init__(self) -> None:
        """Check every field."""
        check_fields(self)
        check_range(self, 1, INFINITY, "num_train_steps", "warmup_steps", "log_every_steps")
        check_range(self, 1, INFINITY, "max_nonfinite_steps")
        check_fits(self, "num_train_steps", "warmup_steps", "learning_rate_factor", "adam_epsilon")
        # At a beta of 1 or an epsilon of 0 an update is 0 / 0.
        check_range(self, 0, 0.999999, "adam_beta1", "adam_beta2")
        check_range(self, 1e-30, INFINITY, "adam_epsilon")
        check_range(self, 0, 0.99, "label_smoothing")
        check_range(self, 0, INFINITY, "learning_rate_factor")
        check_range(self, 0, 2**31 - 1, "seed")


@dataclass(frozen=True)
class CheckpointConfig:
    """When the training state is written, and what is kept of it."""

    every_steps: int | None = field(default=None, metadata=_MAY_CHANGE)
    """Steps between checkpoints; None leaves the pace to `every_minutes`."""
    every_minutes: float | None = field(default=10.0, metadata=_MAY_CHANGE)
    """Minutes between checkpoints (the paper: 10); None leaves the pace to `every_steps`."""
    keep: int = field(default=5, metadata=_MAY_CHANGE)
    """Newest checkpoints kept; averaging takes them from here."""
    average: int = field(default=5, metadata=_MAY_CHANGE)
    """How many of the last checkpoints make the model that is scored and used once training is over
    (section 6.1; base: 5, big: 20; Table 3: 1)."""
    keep_best: bool = field(default=True, metadata=_MAY_CHANGE)
    """Also keep the checkpoint with the best dev score, apart from the newest."""

    def __post_init__(self) -> None:
        """Check every field."""
        check_fields(self)
        check_range(self, 1, INFINITY, "keep", "average")
        require(
            self.average <= self.keep,
            f"checkpoint.average={self.average} is more than checkpoint.keep={self.keep}; "
            "raise checkpoint.keep or lower checkpoint.average",
        )
        check_positive(self, "every_steps", "every_minutes")


@dataclass(frozen=True)
class EvaluationConfig:
    """The look at the dev set during training."""

    every_steps: int = field(default=1000, metadata=_MAY_CHANGE)
    """Steps between evaluations on dev."""
    num_sentences: int | None = field(default=None, metadata=_MAY_CHANGE)
    """Dev sentences translated for BLEU, from the first on; None means all. Loss uses all."""
    num_samples: int = field(default=3, metadata=_MAY_CHANGE)
    """Translations printed at each evaluation."""
    beam_size: int = field(default=1, metadata=_MAY_CHANGE)
    """Beam size during training; 1 is greedy search and fast."""

    def __post_init__(self) -> None:
        """Check every field."""
        check_fields(self)
        check_range(self, 1, INFINITY, "every_steps")
        check_range(self, 1, _WIDEST_BEAM, "beam_size")
        check_range(self, 0, INFINITY, "num_samples")
        check_positive(self, "num_sentences")


@dataclass(frozen=True)
class DecodingConfig:
    """The search for a translation: section 6.1."""

    beam_size: int = field(default=4, metadata=_MAY_CHANGE)
    """Hypotheses kept alive per sentence; 1 is greedy search."""
    length_penalty: float = field(default=0.6, metadata=_MAY_CHANGE)
    """alpha: scores are log-probabilities divided by ((5 + length) / 6) ** alpha."""
    max_extra_length: int = field(default=50, metadata=_MAY_CHANGE)
    """Output length is at most the source length plus this."""
    max_source_length: int = field(default=1024, metadata=_MAY_CHANGE)
    """Longest source, in subwords with the end of sentence, that is decoded as a whole."""
    long_lines: Literal["split", "refuse"] = field(default="split", metadata=_MAY_CHANGE)
    """A longer line, or one for which there are no learned positions: split it, at the ends of its
    sentences if it can be, decode the parts and join what comes out; or refuse it by its number."""
    temperature: float = field(default=0.0, metadata=_MAY_CHANGE)
    """0 searches for the best translation; above 0, sample from the model at this temperature."""
    top_k: int = field(default=0, metadata=_MAY_CHANGE)
    """When sampling, draw from the k most probable subwords; 0 means all."""
    top_p: float = field(default=1.0, metadata=_MAY_CHANGE)
    """When sampling, draw from the smallest set of subwords that holds this probability."""
    tokens_per_batch: int = field(default=8192, metadata=_MAY_CHANGE)
    """Positions decoded together, padding included: of the sources or of the room for outputs,
    whichever is longer. Each hypothesis of a beam keeps keys and values for as many."""
    quantize: Literal["none", "int8"] = field(default="none", metadata=_MAY_CHANGE)
    """Make weights integers of 8 bits, and what they are multiplied with: faster on CPUs, and a
    little less exact."""

    def __post_init__(self) -> None:
        """Check every field."""
        check_fields(self)
        check_range(self, 1, _WIDEST_BEAM, "beam_size")
        check_range(self, 1, 100_000, "max_extra_length")
        check_range(self, 8, 100_000, "max_source_length")
        check_range(self, 1, 100_000_000, "tokens_per_batch")
        check_range(self, 0, INFINITY, "temperature", "top_k")
        check_range(self, 0, 10, "length_penalty")  # more than float32 can hold of a long output
        check_range(self, 0, 1, "top_p")
        require(self.top_p > 0, "top_p=0 leaves nothing to sample from")


@dataclass(frozen=True)
class ParallelConfig:
    """How the work of a step is laid out over devices, in space and in time.

    A run may go on with other values: they change no batch and no dropout mask, only the order in
    which numbers are added up.
    """

    backend: Literal["jit", "pmap"] = field(default="jit", metadata=_MAY_CHANGE)
    """What compiles the training step: `jax.jit` over the mesh, or `jax.pmap` for classic data
    parallelism in one process."""
    data: int = field(default=-1, metadata=_MAY_CHANGE)
    """Groups of devices that take different rows of a batch and hold the same parameters; -1 means
    as many as there are devices for."""
    fsdp: int = field(default=1, metadata=_MAY_CHANGE)
    """Devices that share one copy of the parameters and Adam's moments, and take different rows."""
    tensor: int = field(default=1, metadata=_MAY_CHANGE)
    """Devices that share the work on the same rows: heads, d_ff and vocabulary are split."""
    tokens_per_device: int | None = field(default=None, metadata=_MAY_CHANGE)
    """Most positions, of source or target, whichever is longer, a device computes at once: a larger
    share of a batch is taken in several passes, whose sums are added before the one division. None
    takes it in one pass."""
    remat: Literal["none", "dots", "layer"] = field(default="none", metadata=_MAY_CHANGE)
    """What each layer computes again for its derivative instead of keeping it: nothing, all but its
    products with parameters, or all but its input. Less memory, more work."""
    loss_chunks: Literal[1, 2, 4, 8] = field(default=1, metadata=_MAY_CHANGE)
    """Parts in which logits and loss are computed: the memory of that part of the logits and their
    gradient, for a third more work on the output projection (unless it is 1)."""

    def __post_init__(self) -> None:
        """Check every field."""
        check_fields(self)
        require(
            self.data == -1 or self.data >= 1,
            f"parallel.data={self.data} is not a number of devices; use -1 for all",
        )
        check_range(self, 1, INFINITY, "fsdp", "tensor")
        require(
            self.backend == "jit" or self.fsdp == self.tensor == 1,
            f"parallel.backend='pmap' holds all parameters on every device, so parallel.fsdp="
            f"{self.fsdp} and parallel.tensor={self.tensor} must be 1; use backend='jit'",
        )
        check_positive(self, "tokens_per_device")
        check_fits(self, "data", "fsdp", "tensor", "tokens_per_device")


@dataclass(frozen=True)
class Config:
    """Everything a run depends on, besides its corpus."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)

    def __post_init__(self) -> None:
        """Check what one section cannot know of another."""
        longest = self.data.max_length + self.decoding.max_extra_length
        require(
            self.model.longest_sentence >= longest,
            f"model.max_positions={self.model.max_positions} is less than data.max_length="
            f"{self.data.max_length} plus decoding.max_extra_length="
            f"{self.decoding.max_extra_length}; raise model.max_positions to {longest}",
        )

    def replace(self, changes: Mapping[str, Any]) -> "Config":
        """A copy with some fields changed, named by their dotted path.

        Args:
          changes: `{"model.d_ff": 1024, "training.seed": 1}`.

        Raises:
          UserError: a path names no field, or a value is refused.
        """
        nested = to_dict(self)
        for path, value in changes.items():
            section, _, name = path.partition(".")
            fields = nested.get(section)
            if not name or not isinstance(fields, dict) or name not in fields:
                raise _unknown_field(path, [path for path, _, _ in walk(self)])
            fields[name] = value
        return from_dict(nested)

    def to_json(self) -> str:
        """The config as indented JSON; `from_json` reads back an equal one."""
        return json.dumps(to_dict(self), indent=2, allow_nan=False) + "\n"

    @staticmethod
    def from_json(text: str) -> "Config":
        """The config that `to_json` wrote.

        Raises:
          UserError: the text is not JSON, or has a field that does not exist, or lacks one.
        """
        try:
            nested = parse_object(text, Schema())
        except ValueError as error:
            raise UserError(f"config is damaged: {error}") from error
        return from_dict(nested)


def walk(config: Config) -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """Every leaf of a config: its dotted path, its dataclass field and its value."""
    for section in dataclasses.fields(config):
        values = getattr(config, section.name)
        for leaf in dataclasses.fields(values):
            yield f"{section.name}.{leaf.name}", leaf, getattr(values, leaf.name)


def differences(
    old: Config, new: Config, *, only_binding: bool = False
) -> dict[str, tuple[Any, Any]]:
    """Fields in which two configs differ: `{dotted path: (old value, new value)}`.

    Args:
      old: a config.
      new: another.
      only_binding: leave out the fields under which a run may be continued (how often it logs,
        saves and evaluates, how long it trains, how it decodes, on how many devices it runs, when
        it gives up, where its corpus and cache are).
    """
    changed = {}
    for (path, leaf, before), (_, _, after) in zip(walk(old), walk(new), strict=True):
        if before != after and not (only_binding and leaf.metadata.get("may_change")):
            changed[path] = (before, after)
    return changed


def describe(changed: Mapping[str, tuple[Any, Any]]) -> str:
    """What `differences` found, in a line: `model.d_ff 64 -> 128, ...`."""
    return ", ".join(f"{path} {old!r} -> {new!r}" for path, (old, new) in changed.items())


def to_dict(config: Config) -> dict[str, Any]:
    """The config as nested dictionaries of plain values."""
    return dataclasses.asdict(config)


def from_dict(nested: Mapping[str, Any]) -> Config:
    """The config that nested dictionaries of plain values describe.

    Every field is given, but for those under which a run may be continued: one that is not there
    is younger than the run, and has its default.

    Raises:
      UserError: a field that does not exist or is not given, or a value that is refused.
    """
    if not isinstance(nested, Mapping):
        raise UserError(f"config is a {type(nested).__name__}, not an object with sections")
    known = [path for path, _, _ in walk(Config())]
    given = [
        f"{section}.{name}" if isinstance(values, Mapping) else section
        for section, values in nested.items()
        for name in (values if isinstance(values, Mapping) else [""])
    ]
    for path in given:
        if path not in known:
            raise _unknown_field(path, known)
    binding = [path for path, leaf, _ in walk(Config()) if not leaf.metadata.get("may_change")]
    missing = [path for path in binding if path not in given]
    if missing:
        raise UserError(f"config lacks the field {missing[0]}; it was written by another version")
    sections = get_type_hints(Config)
    return Config(**{name: section(**nested.get(name, {})) for name, section in sections.items()})


def _unknown_field(path: str, known: list[str]) -> UserError:
    hint = did_you_mean(path, known, "see --help for all fields")
    return UserError(f"unknown config field {path!r}; {hint}")
