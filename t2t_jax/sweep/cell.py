"""A cell of a grid: a variant under one seed, trained in a separate directory; and plans of cells.

GRID/VARIANT/seedN/              the run directory
GRID/VARIANT/seedN/rung-STEP.json   the perplexity on dev at a step where the training paused, or
                                 a note that it diverged before that step
GRID/VARIANT/seedN/result.json   the score on dev, written last: a cell with this file is finished
GRID/VARIANT/seedN/result-test.json   the score on test, if the grid is scored on it at its end
GRID/VARIANT/seedN.log           the output of the cell's process
"""

import ctypes
import json
import math
import os
import re
import signal
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NotRequired, TypeAlias, TypedDict

from t2t_jax.config import Config, differences, format_differences, from_dict, to_dict, walk
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
"""The split on which a grid chooses and, by default, compares variants, as in Table 3."""

Scores = Mapping[str, Mapping[int, float]]
"""The perplexities on dev by the name of a cell and by the step; lower is better."""
_PR_SET_PDEATHSIG = 1  # from Linux's prctl.h
RESULT = "result.json"
"""The file of a finished cell with its config and scores."""
_SCORE_AGAIN = "remove it to score again"
"""The way out where a result is damaged."""
_SEED = re.compile("seed([0-9]+)")
"""The name of a cell's directory."""
_RUNG = re.compile(r"rung-([0-9]+)\.json")
_SCHEMA = records.schema({"config": dict, "perplexity": records.POSITIVE | None}, {"diverged": str})
"""The fields of the record of a rung."""
# Fields that may change during a run, but change the score of a finished one.
_SCORED = (
    "training.num_train_steps",
    "training.stop_after_evaluations_without_gain",
    "checkpoint.average",
    "decoding.",
)


class _Result(TypedDict):
    """The fields of a result that `tables` and `comparison` rely on."""

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
    """A variant of a grid under one seed: the config and the directory of its run."""

    variant: str
    """The variant's name in the grid."""
    config: Config
    """The variant's config, with the seed of this cell."""
    workdir: Path
    """The run directory of the cell."""
    until: int
    """The step up to which the cell is to be trained now: its end, or a pause for a decision."""
    split: str = SPLIT
    """The split on which the trained cell is scored."""

    @property
    def name(self) -> str:
        """Return the variant and the seed as one name, such as `A-h1/seed0`."""
        return f"{self.variant}/{self.workdir.name}"

    @property
    def result_file(self) -> Path:
        """Return the file with the scores of the trained cell on its split."""
        return self.workdir / (RESULT if self.split == SPLIT else f"result-{self.split}.json")

    @property
    def log(self) -> Path:
        """Return the file for the output of the cell's process.

        On one machine, the process that locks this file trains the cell. For a cell in a bucket,
        the file is on this machine, in the user's state directory.
        """
        return on_this_machine(self.workdir.with_suffix(".log"))

    def result(self) -> Record | None:
        """Return the result of the cell; None if there is none, or it was scored differently.

        The result has the return value of `settled` in a field of this name, unless it is None.
        """
        from t2t_jax.workdir import check_registered

        path = self.result_file
        if not path.exists():
            return None
        result = records.read_object(path, _Result, _SCORE_AGAIN)
        settled = self.settled(result)
        try:
            old = from_dict(result["config"])
            ran = old.replace(settled or {})
            _check_scores(result)
            if result["split"] != self.split:
                raise UserError(f"its scores are of {result['split']}, not of {self.split}")
        except ValueError as error:
            raise UserError(f"{path} is damaged ({error}); {_SCORE_AGAIN}") from error
        if changed := differences(ran, self.config, only_binding=True):
            raise UserError(
                f"{self.workdir} was trained with another config "
                f"({format_differences(changed)}); choose another --workdir, or move it away"
            )
        check_registered(self.config, self.workdir)
        if settled is not None:
            result["settled"] = same_code.settled_fields(self.config, ran)
        return result if _scored(old) == _scored(self.config) else None

    def settled(self, result: Record | None = None) -> Record | None:
        """Return the fields that the config leaves open, with the values that the run has chosen.

        Returns:
          The values by the path of a field; None if they are unknown, as before the run begins.
        """
        from t2t_jax.workdir import is_run, read_config

        if result is not None and "settled" in result:
            return dict(result["settled"])
        if not is_run(self.workdir):
            return None
        return same_code.settled_fields(self.config, read_config(self.workdir))

    def rungs(self) -> dict[int, Record]:
        """Return the records of the steps at which the training has paused, by step.

        The perplexity in a record is None if the training diverged before that step.
        """
        paths = self.workdir.glob("rung-*.json")
        steps = {int(name[1]): path for path in paths if (name := _RUNG.fullmatch(path.name))}
        return {
            step: records.read_object(path, _SCHEMA, _SCORE_AGAIN)
            for step, path in sorted(steps.items())
        }

    def scores(self, result: Record | None) -> dict[int, float]:
        """Return the perplexities on dev by step, at pauses and of the result; inf if it diverged.

        Args:
          result: the return value of `result`.
        """
        scores = {step: record["perplexity"] for step, record in self.rungs().items()}
        if result is not None:
            scores[self.config.training.num_train_steps] = result["perplexity"]
        return {
            step: math.inf if score is None or math.isnan(score) else float(score)
            for step, score in scores.items()
        }

    def progress(self) -> Record:
        """Return the last record of training in the run's log; {} before the first."""
        from t2t_jax.workdir import read_log

        log = reversed(read_log(self.workdir))
        return next((record for record in log if record["of"] == "train"), {})


def _check_scores(result: Record) -> None:
    """Refuse a result that lacks a score, or does not have one hypothesis for each reference."""
    score, beside, *_ = measures_of(result)
    for measure in (score, beside) if beside else (score,):
        signature = {measure.signature_field: str} if measure.signature_field else {}
        records.check(result, records.schema({measure.field: records.FINITE, **signature}))
    hypotheses, references = len(result["hypotheses"]), len(result["references"])
    if hypotheses != references:
        raise UserError(f"it has {hypotheses} hypotheses of {references} references")


def num_seeds_in(grid: Grid, workdir: Path) -> int:
    """Return the number of seeds up to the last with a result in a grid's directory, at least 1."""
    counts = (
        count
        for variant, config in grid.variants.items()
        for path in (workdir / variant).glob(f"seed*/{RESULT}")
        if (seed := _SEED.fullmatch(path.parent.name))  # others were moved away
        and (count := int(seed[1]) - config.training.seed + 1) <= MOST_CELLS
    )
    return max([1, *counts])  # the variant's own seed may have been raised, or lowered by far


def cells(grid: Grid, workdir: Path, num_seeds: int) -> list[Cell]:
    """Return all cells of a grid, seed by seed, so that a table is complete as early as possible.

    The seeds of a variant are counted from its `training.seed`.
    """
    all_cells = []
    for index in range(num_seeds):
        for variant, config in grid.variants.items():
            seed, end = config.training.seed + index, config.training.num_train_steps
            seeded = config.replace({"training.seed": seed})
            all_cells.append(Cell(variant, seeded, workdir / variant / f"seed{seed}", end))
    return all_cells


def check_cells(cells: Sequence[Cell], *, allow_mixed: bool = False, here: bool = False) -> None:
    """Refuse cells whose directories hold something else than their runs, before any is trained.

    This can be a run or result of another config, a damaged one, or no run; or the directory is not
    writable.

    Args:
      allow_mixed: whether to accept cells of other code, or whose runs chose other settings.
      here: whether this machine trains the cells that have not begun.
    """
    from t2t_jax.workdir import check_workdir

    refused, results = {}, []
    for cell in cells:
        try:
            result = cell.result()
            if result is None:
                check_workdir(cell.config, cell.workdir)
            results.append((cell, result))
        except UserError as error:
            refused[cell.name] = str(error)
    if refused:
        first, *further = refused
        also = f" (also refused: {', '.join(further)})" if further else ""
        raise UserError(f"nothing was started: {first}: {refused[first]}{also}")
    if not allow_mixed:
        same_code.check_same_code(_software(results, here))


def _software(cells: Sequence[tuple[Cell, Record | None]], here: bool) -> dict[str, list[Record]]:
    """Return the provenance records of cells by name, each as in `same_code.software_of_result`.

    For a cell without a result, the software here is the last record, as it continues the training.
    If it has not begun here, "auto" is the dtype of this machine, which is looked for only if there
    is a run to compare it with.
    """
    states = [(cell, result, cell.settled(result)) for cell, result in cells]
    has_runs = any(same_code.DTYPE in settled for *_, settled in states if settled)
    new = [cell.config.model.compute_dtype for cell, _, settled in states if settled is None]
    dtype = same_code.dtype_here() if here and has_runs and "auto" in new else None
    software = {}
    for cell, result, settled in states:
        if result is not None:
            software[cell.name] = same_code.software_of_result(result)
            continue
        settings = same_code.compared_settings(cell.config, settled or {same_code.DTYPE: dtype})
        every = *training_software(cell.workdir), provenance(cell.config)
        software[cell.name] = [record | {"settled": settings} for record in every]
    return software


def train_and_score(cell: Cell, flags: Sequence[str] = ()) -> int:
    """Train or resume a cell, then score it on its split and write the score.

    At the end of the training it translates the split and writes the result. If the training pauses
    before its end, or diverges, it writes `rung-STEP.json`.

    Args:
      flags: flags of plugins for the cell; see `plugins.flags_from`.

    Returns:
      0, or 128 + n if signal n stopped the training, with a checkpoint.
    """
    from t2t_jax.run.trainer import train

    corpus = open_corpus(cell.config.data)
    for name in (SPLIT, cell.split):
        if name not in corpus.splits:
            raise UserError(f"{corpus.name} has no {name} split to compare variants on; add one")
    is_last = cell.until >= cell.config.training.num_train_steps
    try:
        with ExitStack() as stack:
            for part in flags_from(flags, "sweep"):
                stack.enter_context(part.around(cell.workdir))
            code = train(cell.config, cell.workdir, until=cell.until).exit_code
        if not code:
            (_write_result if is_last else _score_at_pause)(cell, corpus)
    except DivergedError as error:
        if cell.split != SPLIT:
            raise UserError(f"{cell.workdir}: {error}; it has no scores on {cell.split}") from error
        print(f"diverged: {error}", flush=True)
        _write_rung(cell, {"perplexity": None, "diverged": str(error)})
        return 0
    return code


def _write_rung(cell: Cell, record: Record) -> None:
    line = records.as_line({"config": to_dict(cell.config), "step": cell.until, **record})
    write_whole(cell.workdir / f"rung-{cell.until}.json", line.encode())


def _score_at_pause(cell: Cell, corpus: Corpus) -> None:
    """Write the dev perplexity of a cell whose training has paused."""
    from t2t_jax.run.evaluation import corpus_loss, prepare_evaluation
    from t2t_jax.run.loading import load
    from t2t_jax.training.averaging import saved_steps

    # A training that its evaluations ended early has no later checkpoint.
    translator = load(cell.workdir, step=min(cell.until, saved_steps(cell.workdir)[-1]))
    vocabulary, longest = translator.vocabulary, translator.longest_sentence
    pairs = prepare_evaluation(translator.config, corpus, vocabulary, SPLIT, longest=longest)
    figure = perplexity(corpus_loss(translator, pairs).nll)
    _write_rung(cell, {"perplexity": figure, "checkpoints": list(translator.steps)})


def _write_result(cell: Cell, corpus: Corpus) -> None:
    """Translate the split of a fully trained cell, and write its result."""
    from t2t_jax.run.evaluation import evaluate, score_record
    from t2t_jax.run.job import read_jobs
    from t2t_jax.run.loading import load
    from t2t_jax.workdir import read_config, read_fingerprints, read_log, record_scores

    config, workdir = cell.config, cell.workdir
    translator = load(workdir)
    evaluation = evaluate(translator, corpus, cell.split)
    record = score_record(translator, corpus, evaluation, decoding=config.decoding)
    record_scores(workdir, record)
    if nonfinite := [n for n, x in record.items() if isinstance(x, float) and not math.isfinite(x)]:
        raise DivergedError(f"not a finite number on {cell.split}: {', '.join(nonfinite)}")
    log, jobs = read_log(workdir), read_jobs(workdir)
    result = {
        "config": to_dict(config),
        **record,
        # The last step of training may be later than the last averaged checkpoint.
        "steps": max((r["step"] for r in log if r["of"] == "train"), default=cell.until),
        "target_tokens_per_second": _speed(log),
        "provenance": [*training_software(workdir), provenance(config)],
        "settled": same_code.settled_fields(config, read_config(workdir)),
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
    """Return target tokens per second: the median of the log, as some records include compiling."""
    rates = (r.get("target_tokens_per_second") for r in log if r["of"] == "train")
    return statistics.median([rate for rate in rates if rate is not None] or [math.nan])


def _scored(config: Config) -> dict[str, object]:
    return {path: value for path, _, value in walk(config) if path.startswith(_SCORED)}


def score_at(scores: Scores, cell: Cell, step: int) -> float | None:
    """Return a cell's perplexity at a step; inf if it diverged before, None without a score."""
    of_cell = scores.get(cell.name, {})
    return of_cell.get(step, math.inf if math.inf in of_cell.values() else None)


def mean_of(scores: Iterable[float | None]) -> float | None:
    """Return the mean of scores; None if one of them is missing."""
    all_scores = [*scores]
    known = [score for score in all_scores if score is not None]
    return statistics.fmean(known) if len(known) == len(all_scores) else None


GridPlan: TypeAlias = Callable[[Scores], Sequence[Cell]]
"""A function that returns all cells of a grid so far, each with the step to train it to now.

A cell that has its score at that step waits for a later decision, or is finished. With more scores,
a cell never leaves the plan, and its step never decreases. The decision depends only on the files
in the grid's directory. So a killed sweep resumes unchanged, and several sweeps agree.
"""


def decide(plan: GridPlan) -> tuple[Sequence[Cell], Scores]:
    """Return the decision of a plan, from the files in its cells' directories.

    Returns:
      All cells so far, each with the step up to which it is to be trained now; and their scores,
      which a cell lacks if they are unreadable.
    """
    scores: dict[str, Mapping[int, float]] = {}
    while new := [cell for cell in plan(scores) if cell.name not in scores]:
        for cell in new:
            scores[cell.name] = {}
            with suppress(UserError):
                scores[cell.name] = cell.scores(cell.result())
    return plan(scores), scores


def main(arguments: Sequence[str]) -> int:
    """Train the cell in a directory, the first argument, with the config on the standard input.

    The second argument is the step at which the training pauses, the third the id of the sweep's
    process, and the fourth the split. When that process ends, this one stops as by SIGTERM, so that
    a killed sweep leaves no process unknown to the next sweep. Further arguments are flags of
    plugins.
    """
    workdir, until, parent, split, *flags = arguments
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(parent):  # the sweep ended before the call above
            return 128 + signal.SIGTERM
    config = Config.from_json(sys.stdin.read())
    return train_and_score(Cell("", config, as_path(workdir), int(until), split), flags)


if __name__ == "__main__":
    from t2t_jax.system.program import run

    run(main)
