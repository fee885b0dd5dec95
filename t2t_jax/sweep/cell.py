"""Train and score a cell of a grid: one variant with one seed.

GRID/VARIANT/seedN/                   the run directory
GRID/VARIANT/seedN/rung-STEP.json     the dev perplexity at a pause, or a note that training
                                      diverged
GRID/VARIANT/seedN/result.json        the dev scores, written last: marks a finished cell
GRID/VARIANT/seedN/result-test.json   the test scores, if the grid is scored on test
GRID/VARIANT/seedN.log                the output of the cell's process
"""

import ctypes
import json
import math
import os
import re
import signal
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NotRequired, TypeAlias, TypedDict

from t2t_jax.config import Config, differences, format_differences, from_stored, to_dict, walk
from t2t_jax.config.file import MOST_CELLS, Grid
from t2t_jax.data.corpus import Corpus, open_corpus
from t2t_jax.errors import DivergedError, UserError
from t2t_jax.plugins import flags_from
from t2t_jax.run.provenance import SoftwareRecord, provenance, training_software
from t2t_jax.sweep import same_code
from t2t_jax.sweep.comparison import measures_of
from t2t_jax.system import records
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.system.bucket import as_path, on_this_machine
from t2t_jax.system.records import Record
from t2t_jax.tasks.measures.perplexity import perplexity

SPLIT: Final = "dev"
"""The split that chooses variants and, by default, compares them, as in the paper's Table 3."""

Scores = Mapping[str, Mapping[int, float]]
"""Dev perplexities by cell name and step; lower is better."""
_PR_SET_PDEATHSIG = 1  # from Linux's prctl.h
RESULT = "result.json"
"""The file with the scores of a finished cell."""
_SCORE_AGAIN = "remove it to score again"
_SEED = re.compile("seed([0-9]+)")
_RUNG = re.compile(r"rung-([0-9]+)\.json")
_SCHEMA = records.schema({"config": dict, "perplexity": records.POSITIVE | None}, {"diverged": str})
# A run may resume with other values of these fields, but a finished cell must be scored again.
_SCORING_FIELDS = (
    "training.num_train_steps",
    "training.stop_after_evaluations_without_gain",
    "checkpoint.average",
    "decoding.",
)


class _Result(TypedDict):
    """The fields of `result.json`, the scores of a trained cell, that the sweep's tables read."""

    config: Record
    corpus: str
    split: str
    perplexity: records.POSITIVE
    target_tokens: records.COUNT
    target_tokens_per_second: float
    hypotheses: list[str]
    references: list[str]
    steps: records.COUNT
    task: NotRequired[str]
    provenance: NotRequired[list[SoftwareRecord]]
    settled: NotRequired[Record]
    device: NotRequired[str]
    vocabulary: NotRequired[str]
    sentence_nll: NotRequired[list]
    sentence_tokens: NotRequired[list]


@dataclass(frozen=True)
class Cell:
    """A training run of a sweep: a variant (a named config of the grid) with one seed."""

    variant: str
    """The variant's name in the grid."""
    config: Config
    """The variant's config with the seed of this cell."""
    workdir: Path
    """The run directory of the cell."""
    last_step: int
    """The step to train to: the end of training, or an earlier pause."""
    split: str = SPLIT
    """The split on which to score the trained cell."""

    @property
    def name(self) -> str:
        """Return the name of the cell, such as `A-h1/seed0`."""
        return f"{self.variant}/{self.workdir.name}"

    @property
    def result_file(self) -> Path:
        """Return the file with the scores of the trained cell."""
        return self.workdir / (RESULT if self.split == SPLIT else f"result-{self.split}.json")

    @property
    def log(self) -> Path:
        """Return the log file of the cell's process, always a local file."""
        # The process holds a lock on the file while it trains.
        return on_this_machine(self.workdir.with_suffix(".log"))

    def result(self) -> Record | None:
        """Read the scores of the trained cell; None if missing or scored with other settings.

        The field `settled` holds the return value of `resolved_fields`, if any.

        Raises:
          UserError: the file is damaged, or the run has another config.
        """
        from t2t_jax.workdir import check_registered

        path = self.result_file
        if not path.exists():
            return None
        result = records.read_object(path, _Result, _SCORE_AGAIN)
        chosen_values = self.resolved_fields(result)
        try:
            old_config = from_stored(result["config"])
            run_config = old_config.replace(chosen_values or {})
            _check_scores(result)
            if result["split"] != self.split:
                raise UserError(f"its scores are on {result['split']}, not on {self.split}")
        except ValueError as error:
            raise UserError(f"{path} is damaged ({error}); {_SCORE_AGAIN}") from error
        if changed := differences(run_config, self.config, only_binding=True):
            raise UserError(
                f"{self.workdir} was trained with another config "
                f"({format_differences(changed)}); choose another --workdir, or move it away"
            )
        check_registered(self.config, self.workdir)
        if chosen_values is not None:
            result["settled"] = same_code.resolved_fields(self.config, run_config)
        return result if _scoring_fields(old_config) == _scoring_fields(self.config) else None

    def resolved_fields(self, result: Record | None = None) -> Record | None:
        """Return the values that the run chose for open config fields, such as an "auto" dtype.

        Args:
          result: the content of the result file, if read before.

        Returns:
          Values by field path; None before the run starts.
        """
        from t2t_jax.workdir import is_run, read_config

        if result is not None and "settled" in result:
            return dict(result["settled"])
        if not is_run(self.workdir):
            return None
        return same_code.resolved_fields(self.config, read_config(self.workdir))

    def rungs(self) -> dict[int, Record]:
        """Read the record of each rung, a step where training paused or diverged, by step.

        The `perplexity` (on dev) in a record is None if training diverged.
        """
        paths = self.workdir.glob("rung-*.json")
        path_at = {int(match[1]): path for path in paths if (match := _RUNG.fullmatch(path.name))}
        return {
            step: records.read_object(path, _SCHEMA, _SCORE_AGAIN)
            for step, path in sorted(path_at.items())
        }

    def scores(self, result: Record | None) -> dict[int, float]:
        """Return the dev perplexities at pauses and at the end, by step; inf if training diverged.

        Args:
          result: the return value of `result`; None omits the score at the end.
        """
        scores = {step: record["perplexity"] for step, record in self.rungs().items()}
        if result is not None:
            scores[self.config.training.num_train_steps] = result["perplexity"]
        return {
            step: math.inf if score is None or math.isnan(score) else float(score)
            for step, score in scores.items()
        }

    def progress(self) -> Record:
        """Return the last training record in the run's log; {} if there is none."""
        from t2t_jax.workdir import read_log

        log = reversed(read_log(self.workdir))
        return next((record for record in log if record["of"] == "train"), {})


def _check_scores(result: Record) -> None:
    score, secondary, *_ = measures_of(result)
    for measure in (score, secondary) if secondary else (score,):
        signature = {measure.signature_field: str} if measure.signature_field else {}
        records.check(result, records.schema({measure.field: records.FINITE, **signature}))
    num_hypotheses, num_references = len(result["hypotheses"]), len(result["references"])
    if num_hypotheses != num_references:
        raise UserError(f"it has {num_hypotheses} hypotheses for {num_references} references")


def num_seeds_in(grid: Grid, workdir: Path) -> int:
    """Return the number of seeds up to the last that has a result for any variant; at least 1."""
    counts = (
        count
        for variant, config in grid.variants.items()
        for path in (workdir / variant).glob(f"seed*/{RESULT}")
        if (match := _SEED.fullmatch(path.parent.name))  # skip directories that users renamed
        and (count := int(match[1]) - config.training.seed + 1) <= MOST_CELLS
    )
    return max([1, *counts])  # users may raise or lower the first seed in the config


def cells(grid: Grid, workdir: Path, num_seeds: int) -> list[Cell]:
    """List a cell for each variant and seed. Seeds count up from the variant's `training.seed`."""
    all_cells = []
    # All variants of one seed come before the next seed, so that early tables have all variants.
    for seed_index in range(num_seeds):
        for variant, config in grid.variants.items():
            seed, num_steps = config.training.seed + seed_index, config.training.num_train_steps
            seeded = config.replace({"training.seed": seed})
            all_cells.append(Cell(variant, seeded, workdir / variant / f"seed{seed}", num_steps))
    return all_cells


def check_cells(cells: Sequence[Cell], *, allow_mixed: bool = False, local: bool = False) -> None:
    """Refuse cells whose directories are read-only, damaged or used for something else.

    Args:
      allow_mixed: whether to accept cells of different code or settings.
      local: whether this machine trains the new cells.
    """
    from t2t_jax.workdir import check_workdir

    errors, results = {}, []
    for cell in cells:
        try:
            result = cell.result()
            if result is None:
                check_workdir(cell.config, cell.workdir)
            results.append((cell, result))
        except UserError as error:
            errors[cell.name] = str(error)
    if errors:
        first_name, *other_names = errors
        suffix = f" (also refused: {', '.join(other_names)})" if other_names else ""
        raise UserError(f"nothing was started: {first_name}: {errors[first_name]}{suffix}")
    if not allow_mixed:
        same_code.check_same_code(_software(results, local))


def _software(pairs: Sequence[tuple[Cell, Record | None]], local: bool) -> dict[str, list[Record]]:
    """Return the provenance records (code, versions and settings) of each cell, by cell name.

    Args:
      pairs: pairs of a cell and its result, or None before it is finished.
      local: whether this machine trains the new cells.
    """
    states = [(cell, result, cell.resolved_fields(result)) for cell, result in pairs]
    has_dtype = any(same_code.DTYPE in resolved for *_, resolved in states if resolved)
    # For new cells, "auto" means the dtype of this machine. Finding it is slow, and only useful if
    # another run has a dtype to compare.
    dtypes = [cell.config.model.compute_dtype for cell, _, resolved in states if resolved is None]
    dtype = same_code.local_dtype() if local and has_dtype and "auto" in dtypes else None
    software = {}
    for cell, result, resolved in states:
        if result is not None:
            software[cell.name] = same_code.software_of_result(result)
            continue
        settings = same_code.compared_settings(cell.config, resolved or {same_code.DTYPE: dtype})
        # The installed software will continue an unfinished run.
        provenances = *training_software(cell.workdir), provenance(cell.config)
        software[cell.name] = [record | {"settled": settings} for record in provenances]
    return software


def train_and_score(cell: Cell, flags: Sequence[str] = ()) -> int:
    """Train or resume a cell, and write its scores.

    The scores go to `result.json`, or to `rung-STEP.json` if training pauses or diverges.

    Args:
      flags: command-line flags of plugins for the cell.

    Returns:
      0, or 128 + n if signal n stopped training after a checkpoint.
    """
    from t2t_jax.run.trainer import train

    corpus = open_corpus(cell.config.data)
    for split in (SPLIT, cell.split):
        if split not in corpus.splits:
            raise UserError(f"{corpus.name} has no {split} split to compare variants on; add one")
    is_final = cell.last_step >= cell.config.training.num_train_steps
    try:
        with ExitStack() as stack:
            for plugin_flag in flags_from(flags, "sweep"):
                stack.enter_context(plugin_flag.around(cell.workdir))
            exit_code = train(cell.config, cell.workdir, until=cell.last_step).exit_code
        if not exit_code:
            (_write_result if is_final else _score_at_pause)(cell, corpus)
    except DivergedError as error:
        if cell.split != SPLIT:
            raise UserError(f"{cell.workdir}: {error}; it has no scores on {cell.split}") from error
        print(f"diverged: {error}", flush=True)
        _write_rung(cell, {"perplexity": None, "diverged": str(error)})
        return 0
    return exit_code


def _write_rung(cell: Cell, record: Record) -> None:
    line = records.as_line({"config": to_dict(cell.config), "step": cell.last_step, **record})
    write_whole(cell.workdir / f"rung-{cell.last_step}.json", line.encode())


def _score_at_pause(cell: Cell, corpus: Corpus) -> None:
    """Write the dev perplexity of a paused cell."""
    from t2t_jax.run.evaluation import corpus_loss, prepare_evaluation
    from t2t_jax.run.loading import load
    from t2t_jax.training.averaging import saved_steps

    # After early stopping there is no checkpoint at `last_step`.
    translator = load(cell.workdir, step=min(cell.last_step, saved_steps(cell.workdir)[-1]))
    vocabulary, longest = translator.vocabulary, translator.longest_sentence
    pairs = prepare_evaluation(translator.config, corpus, vocabulary, SPLIT, longest=longest)
    dev_perplexity = perplexity(corpus_loss(translator, pairs).nll)
    _write_rung(cell, {"perplexity": dev_perplexity, "checkpoints": list(translator.steps)})


def _write_result(cell: Cell, corpus: Corpus) -> None:
    from t2t_jax.run.evaluation import evaluate, score_record
    from t2t_jax.run.job import read_jobs
    from t2t_jax.run.loading import load
    from t2t_jax.workdir import read_config, read_fingerprints, read_log, record_scores

    config, workdir = cell.config, cell.workdir
    translator = load(workdir)
    evaluation = evaluate(translator, corpus, cell.split)
    record = score_record(translator, corpus, evaluation, decoding=config.decoding)
    record_scores(workdir, record)
    if bad_names := [n for n, v in record.items() if isinstance(v, float) and not math.isfinite(v)]:
        raise DivergedError(f"not a finite number on {cell.split}: {', '.join(bad_names)}")
    log, jobs = read_log(workdir), read_jobs(workdir)
    result = {
        "config": to_dict(config),
        **record,
        # The last step of training may be later than the last averaged checkpoint.
        "steps": max((r["step"] for r in log if r["of"] == "train"), default=cell.last_step),
        "target_tokens_per_second": _speed(log),
        "provenance": [*training_software(workdir), provenance(config)],
        "settled": same_code.resolved_fields(config, read_config(workdir)),
        # A run may resume on other devices.
        "device": " and ".join(dict.fromkeys(job["hardware"] for job in jobs if "hardware" in job)),
        "vocabulary": read_fingerprints(workdir)["vocabulary"],
        "hypotheses": evaluation.hypotheses,
        "references": evaluation.references,
    }
    loss = evaluation.loss
    if loss.sentence_nll is not None and loss.sentence_tokens is not None:
        result["sentence_nll"] = [round(nll, 5) for nll in loss.sentence_nll.tolist()]
        result["sentence_tokens"] = loss.sentence_tokens.tolist()
    write_whole(cell.result_file, json.dumps(result).encode())


def _speed(log: Sequence[Record]) -> float:
    """Return the median training speed in a log, in target tokens per second; NaN if unknown."""
    # The mean would count compilation, which some records include.
    rates = (r.get("target_tokens_per_second") for r in log if r["of"] == "train")
    return statistics.median([rate for rate in rates if rate is not None] or [math.nan])


def _scoring_fields(config: Config) -> dict[str, object]:
    return {path: value for path, _, value in walk(config) if path.startswith(_SCORING_FIELDS)}


def score_at(scores: Scores, cell: Cell, step: int) -> float | None:
    """Return a cell's perplexity at a step; inf if training diverged, None if unscored."""
    cell_scores = scores.get(cell.name, {})
    return cell_scores.get(step, math.inf if math.inf in cell_scores.values() else None)


GridPlan: TypeAlias = Callable[[Scores], Sequence[Cell]]
"""A function from scores to all cells, each with the step to train it to.

The cells and their order are the same for all scores, and more scores never lower a step.
Decisions depend only on files in the grid's directory, so a killed sweep resumes unchanged and
parallel sweeps agree.
"""


def decide(plan: GridPlan) -> tuple[Sequence[Cell], Scores]:
    """Let a plan choose the steps of its cells by their stored scores.

    Returns:
      The cells, each with the step to train it to; and their scores by cell name, {} for a cell
      with unreadable files.
    """
    scores: dict[str, Mapping[int, float]] = {}
    for cell in plan({}):
        scores[cell.name] = {}
        with suppress(UserError):
            scores[cell.name] = cell.scores(cell.result())
    return plan(scores), scores


def main(arguments: Sequence[str]) -> int:
    """Train a cell in a subprocess of a sweep, with the config on standard input.

    Args:
      arguments: the run directory, the last step, the sweep's process id, the split, and flags of
        plugins.
    """
    workdir, last_step, parent_id, split, *flags = arguments
    # A killed sweep must leave no process behind, so ask for SIGTERM when the sweep ends.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(parent_id):  # the sweep ended before the call above
            return 128 + signal.SIGTERM
    config = Config.from_json(sys.stdin.read())
    return train_and_score(Cell("", config, as_path(workdir), int(last_step), split), flags)


if __name__ == "__main__":
    from t2t_jax.system.program import run

    run(main)
