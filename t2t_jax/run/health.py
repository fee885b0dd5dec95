"""Health rules, which detect problems of a run in its corpus and its log during training.

A rule is a stateless function of the config, the corpus figures and the log records. It returns
None, or a warning that names the observation, the problem and a remedy. `RULES` lists all rules.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Integer

from t2t_jax.config import Config
from t2t_jax.data.batching import Batches
from t2t_jax.run.history import History, plateau
from t2t_jax.system.records import Record

_MOST_SKIPPED = 0.05
_MOST_PADDING = 0.4
_MOST_EMPTY = 0.05
_MOST_WAITING = 0.1
_SHORTEST_WAIT = 5.0  # seconds of training; one pause may fill a shorter interval
_WINDOW = 5
_GROWTH = 3.0
_EVALUATIONS = 3


class CorpusFigures(NamedTuple):
    """The figures of a training corpus, such as the share of padding, that health rules read."""

    num_pairs_read: int
    """The number of pairs in the corpus."""
    skipped: Mapping[str, int]
    """The number of pairs that training skips, by reason."""
    padding: float
    """The share of padding among source and target positions in non-empty batch rows."""
    unigram_nll: float
    """The negative log-likelihood per target token of a unigram model."""
    empty_rows: float = 0.0
    """The share of positions in empty rows, which pad the batch to the number of devices."""
    bounds: tuple[int, int] | None = None
    """Source and target tokens per step that leave few empty rows, or None."""


Rule = Callable[[Config, CorpusFigures, History], str | None]
"""A function that returns a warning or None."""


def corpus_figures(batches: Batches) -> CorpusFigures:
    """Compute the figures of a train split that the health rules read."""
    counts, padding_shares = batches.parts.content, batches.padding_waste
    num_tokens = {"source": counts.source.total, "target": counts.target.total}
    positions = sum(num_tokens[side] / (1 - share) for side, share in padding_shares.items())
    empty_share = batches.empty_rows()
    padding = 1 - sum(num_tokens[side] for side in padding_shares) / (positions * (1 - empty_share))
    nll = unigram_nll(batches.parts.token_counts())
    bounds = batches.bounds_with_few_empty_rows(_MOST_EMPTY) if empty_share > _MOST_EMPTY else None
    return CorpusFigures(counts.num_pairs_read, counts.skipped, padding, nll, empty_share, bounds)


def unigram_nll(counts: Integer[np.ndarray, " vocab"]) -> float:
    """Compute the loss of a unigram model: the entropy of the token frequencies in nats."""
    frequencies = counts[counts > 0] / counts.sum()
    return float(-(frequencies * np.log(frequencies)).sum())


def many_pairs_skipped(config: Config, corpus: CorpusFigures, history: History) -> str | None:
    """Warn if training skips more than 5% of the pairs."""
    skipped = sum(corpus.skipped.values())
    share = skipped / max(1, corpus.num_pairs_read)
    if share <= _MOST_SKIPPED:
        return None
    reason = max(corpus.skipped, key=lambda name: corpus.skipped[name])
    remedy = (
        f"raise data.max_length={config.data.max_length} in a new run, or split long lines"
        if reason == "too_long"
        else "check that both sides of the corpus have their lines, in the same order"
    )
    return (
        f"{skipped:,} of {corpus.num_pairs_read:,} pairs ({share:.1%}) are left out of training, "
        f"most of them as {reason.replace('_', ' ')}: the model does not see the whole corpus; "
        f"{remedy}"
    )


def much_padding(config: Config, corpus: CorpusFigures, history: History) -> str | None:
    """Warn if more than 40% of the source and target positions are padding."""
    if corpus.padding <= _MOST_PADDING:
        return None
    remedy = (
        "use data.batching=pack, which puts several pairs in a row,"
        if config.data.batching == "bucket"
        else "make data.source_tokens_per_step and data.target_tokens_per_step as unequal as the "
        f"two sides are, or lower data.max_length={config.data.max_length},"
    )
    return (
        f"{corpus.padding:.0%} of the batch positions are padding, so about as large a share of "
        f"the time is wasted; {remedy} in a new run"
    )


def many_empty_rows(config: Config, corpus: CorpusFigures, history: History) -> str | None:
    """Warn if more than 5% of the batch positions are in empty rows."""
    if corpus.empty_rows <= _MOST_EMPTY:
        return None
    remedy = "train on fewer devices along parallel.data and parallel.fsdp"
    if corpus.bounds:
        source, target = corpus.bounds
        remedy += (
            f", or in a new run with data.source_tokens_per_step={source} and "
            f"data.target_tokens_per_step={target}"
        )
    return (
        f"{corpus.empty_rows:.0%} of the positions that the devices compute are in empty rows, as "
        f"the rows of a batch do not fill the devices evenly; {remedy}"
    )


def loss_above_unigram(config: Config, corpus: CorpusFigures, history: History) -> str | None:
    """Warn if the mean `nll` of steps after the warmup is above the loss of a unigram model."""
    warmup = config.training.warmup_steps
    if len(history.training) < 2:
        return None
    record_before, last = history.training[-2:]
    nll = last.get("nll")
    if record_before["step"] < warmup or nll is None or nll <= corpus.unigram_nll:
        return None
    return (
        f"the loss at step {last['step']:,}, after the warmup, is {nll:.3f} nats per target token, "
        f"above the {corpus.unigram_nll:.3f} of a model that knows only the token frequencies: "
        f"the model learns nothing; {_lower_rate(config)}, and check that line n of one side of "
        "the corpus is the translation of line n of the other"
    )


def gradient_norm_grows(config: Config, corpus: CorpusFigures, history: History) -> str | None:
    """Warn if the gradient norm has tripled within 15 log lines after the warmup."""
    # The rule compares the medians of the first and the last 5 of these lines, without non-finite
    # norms. In healthy runs, the medians differ by less than a factor of 2.
    warmup = config.training.warmup_steps
    recent = [record for record in history.training[-3 * _WINDOW :] if record["step"] > warmup]
    if len(recent) < 3 * _WINDOW:
        return None
    earlier_norm, later_norm = _median_norm(recent[:_WINDOW]), _median_norm(recent[-_WINDOW:])
    if earlier_norm is None or later_norm is None or later_norm <= _GROWTH * earlier_norm:
        return None
    return (
        f"the gradient norm grew from {earlier_norm:.3g} to {later_norm:.3g} between steps "
        f"{recent[0]['step']:,} and {recent[-1]['step']:,} (medians of {_WINDOW} lines of the "
        f"log), which may lead to divergence; {_lower_rate(config)}, or set "
        f"training.clip_gradient_norm to about {earlier_norm:.2g}"
    )


def devices_wait_for_data(config: Config, corpus: CorpusFigures, history: History) -> str | None:
    """Warn if the devices waited for data over 10% of the time in two consecutive log lines."""
    # Lines with fewer than 5 seconds of training do not count. One line is not enough, because the
    # first line of a run includes startup time.
    lines = history.training[-2:]
    waits = [r.get("data_wait") or 0.0 for r in lines if _seconds(r) >= _SHORTEST_WAIT]
    if len(waits) < 2 or min(waits) <= _MOST_WAITING:
        return None
    return (
        f"at step {lines[-1]['step']:,} the devices spent {waits[-1]:.0%} of the time waiting for "
        "data: the host prepares batches too slowly; give the process more CPU "
        f"cores, raise data.prefetch={config.data.prefetch}, or put data.cache_dir on a faster disk"
    )


def dev_score_falls(config: Config, corpus: CorpusFigures, history: History) -> str | None:
    """Warn if the best dev score is more than 2 evaluations old."""
    stall = plateau(history.evaluations)
    if stall is None or stall.evaluations < _EVALUATIONS:
        return None
    return (
        f"{stall}: further steps may make the model worse on unseen text; use the "
        "best checkpoint (--step best), raise model.dropout_rate="
        f"{config.model.dropout_rate} in a new run, or end such runs by "
        "training.stop_after_evaluations_without_gain"
    )


def dev_score_not_finite(config: Config, corpus: CorpusFigures, history: History) -> str | None:
    """Warn if the loss or score of the last dev evaluation is NaN or infinite."""
    last = history.evaluations[-1] if history.evaluations else {}
    # The log contains null for non-finite values.
    nonfinite = [name for name in ("loss", "perplexity", "score") if last.get(name, 0) is None]
    if not nonfinite:
        return None
    return (
        f"on dev, {' and '.join(nonfinite)} at step {last['step']:,} is not a finite number: the "
        f"model has diverged; use an earlier checkpoint (--step), or {_lower_rate(config)}"
    )


RULES: Mapping[str, Rule] = {
    "many_pairs_skipped": many_pairs_skipped,
    "much_padding": much_padding,
    "many_empty_rows": many_empty_rows,
    "loss_above_unigram": loss_above_unigram,
    "gradient_norm_grows": gradient_norm_grows,
    "devices_wait_for_data": devices_wait_for_data,
    "dev_score_falls": dev_score_falls,
    "dev_score_not_finite": dev_score_not_finite,
}
"""All rules, by the rule name in log records."""


class Health:
    """Check a run with all health rules; each rule warns at most once per process."""

    def __init__(self, config: Config, corpus: CorpusFigures) -> None:
        """Store the config and the corpus figures that the health rules read."""
        self._config, self._corpus = config, corpus
        self._reported: set[str] = set()

    def news(self, history: History) -> Iterator[tuple[str, str]]:
        """Yield the name and the warning text of each health rule that warns for the first time."""
        for name, rule in RULES.items():
            if name not in self._reported and (text := rule(self._config, self._corpus, history)):
                self._reported.add(name)
                yield name, text


def _lower_rate(config: Config) -> str:
    training = config.training
    rate = (
        f"training.learning_rate_factor={training.learning_rate_factor:g}"
        if training.peak_learning_rate is None
        else f"training.peak_learning_rate={training.peak_learning_rate:g}"
    )
    return f"lower {rate} or raise training.warmup_steps={training.warmup_steps} in a new run"


def _median_norm(records: Sequence[Record]) -> float | None:
    norms = [norm for record in records if (norm := record.get("gradient_norm")) is not None]
    return statistics.median(norms) if norms else None


def _seconds(record: Record) -> float:
    """Return the seconds of training that a log record covers; 0 if unknown."""
    tokens, rate = record.get("target_tokens"), record.get("target_tokens_per_second")
    return tokens / rate if tokens and rate else 0.0
