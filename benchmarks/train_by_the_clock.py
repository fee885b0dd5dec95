"""Train the paper's base model for some minutes, and score it: a whole run on a lent accelerator.

    python benchmarks/train_by_the_clock.py --minutes 8 --workdir runs/clock --corpus text:DIR
    python benchmarks/train_by_the_clock.py --minutes 8 --workdir /tmp/clock --tiny  # 200 steps

The run starts twice. The first start takes a few steps, so that every program is compiled and the
time of a step is known. The second goes on for as many steps as fit into the time, with 25,000 +
25,000 tokens each in bfloat16, packed into rows of 64. The schedule is equation 3 with a shorter
warmup, whose peak is that of the paper. The test set is scored with the average of five checkpoints
and a beam of 4. A start that is late is stopped by SIGTERM, and what it has reached is scored.

Vocabulary and tokens may come from a machine that costs less: `t2t-jax train --dry-run` there makes
them in `--data.cache-dir`, which can be taken along.

`clock.jsonl` in the run's directory has a line for each stage; the run's own files have the rest.
"""

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from on_accelerator.logs import seconds_of_a_step
from on_accelerator.sizes import TINY

from t2t_jax.errors import UserError
from t2t_jax.run.job import read_goodput
from t2t_jax.system.program import run
from t2t_jax.system.records import as_line
from t2t_jax.workdir import read_log

_PEAK = 512**-0.5 * 4000**-0.5
"""The learning rate of the paper's base model after its warmup, by equation 3."""

_SETTINGS = {
    "model.compute_dtype": "bfloat16",
    "data.batching": "pack",
    "data.max_length": 64,
    "data.source_tokens_per_step": 25_088,
    "data.target_tokens_per_step": 25_088,
    "parallel.tokens_per_device": None,
    "training.peak_learning_rate": _PEAK,
    "evaluation.num_sentences": 500,
    "checkpoint.every_minutes": None,
    # All sentences at once: one program for each search, and no other to compile.
    "decoding.tokens_per_batch": 1_000_000,
}
_TINY = TINY | {
    "data.vocab_size": 500,
    "data.source_tokens_per_step": 512,
    "data.target_tokens_per_step": 512,
    "evaluation.num_sentences": 5,
    "decoding.max_extra_length": 5,
    "decoding.tokens_per_batch": 8192,
}
_EVERY = 10
"""Steps between lines of the log at the first start, which takes four times as many."""
_CHECKPOINTS = 20
"""Checkpoints of the run, of which every fourth is scored on dev."""
_TO_SPARE = 0.92
"""Share of the time left to steps: evaluations, checkpoints and a slower step take the rest."""
_SECONDS_TO_STOP = 15.0
"""Seconds from SIGTERM until a run has written its last checkpoint."""


def main(arguments: Sequence[str]) -> int:
    """Train and score by the clock."""
    asked = _parse(arguments)
    end = time.monotonic() + 60 * asked.minutes
    trained = end - asked.scoring
    flags = _SETTINGS | {
        "data.corpus": asked.corpus,
        "data.cache_dir": asked.cache_dir,
        "training.warmup_steps": asked.warmup,
    }
    stages = _Stages(asked.workdir, flags | (_TINY if asked.tiny else {}))
    first = stages.train(4 * _EVERY, trained, {"training.log_every_steps": _EVERY})
    if stages.last_step < 4 * _EVERY:
        raise UserError(f"the first start took {stages.last_step} of {4 * _EVERY} steps; see above")
    step = seconds_of_a_step(asked.workdir)
    # The next start finds every program in the cache of compiled programs, and is no slower.
    start = min(first, asked.start)
    left = 0.0 if asked.tiny else max(0.0, trained - time.monotonic() - start)
    every = _EVERY + int(_TO_SPARE * left / step) // _CHECKPOINTS
    stages.train(
        _CHECKPOINTS * every,
        trained,
        {
            "training.log_every_steps": min(100, every),
            "checkpoint.every_steps": every,
            "evaluation.every_steps": 4 * every,
        },
    )
    stages.score(end)
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "train_by_the_clock.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=7.0, help="time for all stages together")
    parser.add_argument("--scoring", type=float, default=80.0, help="seconds of it for the scores")
    parser.add_argument("--start", type=float, default=35.0, help="seconds of the second start")
    parser.add_argument("--warmup", type=int, default=2000, help="steps of warmup")
    parser.add_argument("--workdir", type=Path, required=True, help="directory of the run")
    parser.add_argument("--corpus", default="bundled:", help="corpus, as data.corpus names it")
    parser.add_argument("--cache-dir", default="", help="folder of tokenised corpora")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the program")
    return parser.parse_args(arguments)


class _Stages:
    """The stages of a run, whose times are written down as they end."""

    def __init__(self, workdir: Path, flags: Mapping[str, Any]) -> None:
        """Begin, with the flags that every start of the training has."""
        self._workdir, self._flags, self._begin = workdir, flags, time.monotonic()

    @property
    def last_step(self) -> int:
        """Return the last step of the run's log."""
        return max((record["step"] for record in read_log(self._workdir)), default=0)

    def train(self, steps: int, deadline: float, more: Mapping[str, Any]) -> float:
        """Train up to a number of steps, or until the deadline; return the seconds."""
        flags = {**self._flags, "training.num_train_steps": steps, **more}
        command = ["train.py", "--config=configs/base.py", f"--workdir={self._workdir}"]
        command += [f"--{name}={value}" for name, value in flags.items() if value != ""]
        start, code = time.monotonic(), self._call(command, deadline - _SECONDS_TO_STOP)
        goodput = read_goodput(self._workdir)
        self._write(
            f"training up to step {steps:,}",
            start,
            exit_code=code,
            last_step=self.last_step,
            goodput=None if goodput is None else goodput.figures(None, None),
        )
        return time.monotonic() - start

    def score(self, deadline: float) -> None:
        """Score the test set with the average of the last checkpoints and a beam of 4."""
        command = ["eval.py", "evaluate", f"--workdir={self._workdir}", "--before-averaging"]
        answers = self._workdir / "test.out"
        start, code = time.monotonic(), self._call([*command, f"--output={answers}"], deadline)
        self._write("scoring", start, exit_code=code)

    def _call(self, command: Sequence[str], deadline: float) -> int:
        """Run a program, which is told to stop at the deadline; return its exit code."""
        process = subprocess.Popen([sys.executable, *command])
        try:
            return process.wait(max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            return process.wait()

    def _write(self, stage: str, start: float, **figures: Any) -> None:
        now = time.monotonic()
        row = {"stage": stage, "seconds": now - start, "since_begin": now - self._begin, **figures}
        self._workdir.mkdir(parents=True, exist_ok=True)
        with (self._workdir / "clock.jsonl").open("a", encoding="utf-8") as file:
            file.write(as_line(row) + "\n")
        print(as_line(row), flush=True)


if __name__ == "__main__":
    run(main)
