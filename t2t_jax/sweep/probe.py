"""A short trial of a cell in a process of its own, which times the parts of its work.

The trial trains for some seconds in a directory that is thrown away, translates a few sentences of
dev, and writes `timing.json`. What it compiles is kept nowhere, as in the first run of a config.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from t2t_jax.config import Config
from t2t_jax.sweep.cell import SPLIT, main
from t2t_jax.system.atomic_file import write_whole

if TYPE_CHECKING:
    from t2t_jax.data.batching import Batches

TIMING = "timing.json"
"""The file in which a trial leaves its timing, as `time_cell` describes it."""
_SECONDS, _LEAST_STEPS = 4.0, 4
_SENTENCES = 64
_NEVER = 10**9


def time_cell(
    config: Config, workdir: Path, track: Sequence[str] = (), until: int | None = None
) -> int:
    """Time the parts of the work of a cell, and write them into a directory beside its trial.

    `timing.json` gets seconds: `once` for what a cell does once, `compiled` for the part of it that
    compiles the search, which a later cell with the same model finds compiled, and `step` for a
    step with its share of evaluations and checkpoints.

    Args:
      track: no trackers; a trial is sent nowhere.
      until: the step at which the cell itself would pause; a trial takes fewer steps.

    Returns:
      0, or 128 + n if signal n stopped the trial.

    Raises:
      UserError: the cell would be refused.
    """
    from t2t_jax.data.corpus import open_corpus
    from t2t_jax.run.job import read_jobs
    from t2t_jax.run.loading import load
    from t2t_jax.run.progress import CHECKPOINTS, COMPILATION, DATA, START, STEPS

    run = workdir / "run"
    code, batches = _trained(config, run)
    job = read_jobs(run)[-1]
    steps, spent = job["step"], job["seconds"]
    if code:
        return code
    translator, loading = _timed(partial(load, run))
    corpus, training, every = open_corpus(config.data), config.training, config.checkpoint
    sizes = config.evaluation.num_sentences, None
    beams = config.evaluation.beam_size, config.decoding.beam_size
    (begun, scored), (begun_last, scored_last) = (
        _scoring(translator, corpus, *each) for each in zip(sizes, beams, strict=True)
    )
    whole = training.num_train_steps
    evaluations = -(-whole // config.evaluation.every_steps)
    checkpoints = -(-whole // every.every_steps) if every.every_steps else 1
    repeated = evaluations * scored + (checkpoints - 1) * spent[CHECKPOINTS]
    seen = {batches.shape(step) for step in range(steps)}
    compilation = spent[COMPILATION] * len(batches.shapes) / len(seen)
    trained = spent[START] + compilation + spent[CHECKPOINTS]
    timing = {
        "once": trained + loading + begun + begun_last + scored_last,
        "compiled": begun + begun_last,
        "step": (spent[STEPS] + spent[DATA]) / steps + repeated / whole,
    }
    write_whole(workdir / TIMING, json.dumps(timing).encode())
    return 0


def _trained(config: Config, run: Path) -> tuple[int, "Batches"]:
    """Train for some seconds, and return the exit code and the batches.

    The exit code is not 0 where the signal of somebody else has ended the training.
    """
    from t2t_jax.run.preparing import planned
    from t2t_jax.run.trainer import train

    trial = config.replace(
        {
            "evaluation.every_steps": _NEVER,
            "checkpoint.every_steps": _NEVER,
            "checkpoint.average": 1,
            "checkpoint.every_minutes": None,
            "checkpoint.local_dir": None,
            # What has learned nothing goes on to this bound, where trained models end as early.
            "decoding.max_extra_length": 1,
        }
    )
    over = Event()
    Thread(target=_stop_in_time, args=(run, over), daemon=True).start()
    code = train(trial, run).exit_code
    code = 0 if over.is_set() else code
    over.set()
    return code, planned(trial, run.with_name("plan")).batches


def _stop_in_time(run: Path, over: Event) -> None:
    """Stop the training of this process by SIGTERM after some seconds of steps, and note that."""
    from t2t_jax.run.job import read_jobs
    from t2t_jax.run.progress import STEPS

    while not over.wait(0.5):
        jobs = read_jobs(run)
        if jobs and jobs[-1]["step"] >= _LEAST_STEPS and jobs[-1]["seconds"][STEPS] >= _SECONDS:
            over.set()
            os.kill(os.getpid(), signal.SIGTERM)


def _scoring(
    translator: Any, corpus: Any, num_sentences: int | None, beam_size: int
) -> tuple[float, float]:
    """Return the seconds in which an evaluation is compiled, and those in which it runs."""
    from t2t_jax.run.evaluation import corpus_loss, evaluate, prepare_evaluation

    pairs = prepare_evaluation(translator.config, corpus, translator.vocabulary, SPLIT)
    many = len(pairs) if num_sentences is None else min(num_sentences, len(pairs))
    few = min(many, _SENTENCES)
    search = partial(evaluate, translator, corpus, SPLIT, num_sentences=few, beam_size=beam_size)
    loss = partial(corpus_loss, translator, pairs)
    (_, first_loss), (_, losses) = _timed(loss), _timed(loss)
    (_, first_search), (_, whole) = _timed(search), _timed(search)
    searched = max(0.0, whole - losses) * many / few
    compiled = max(0.0, first_loss - losses) + max(0.0, first_search - whole)
    return compiled, losses + searched


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.monotonic()
    return work(), time.monotonic() - start


if __name__ == "__main__":
    from t2t_jax.system.program import run

    os.environ["JAX_COMPILATION_CACHE_DIR"] = f"{sys.argv[1]}.compiled"
    run(partial(main, work=time_cell))
