"""The training loop, and only the loop."""

import os
import signal
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from t2t_jax.config import CheckpointConfig, Config, differences
from t2t_jax.data.batching import Batches, describe
from t2t_jax.data.corpus import Corpus, open_corpus
from t2t_jax.data.tokenized import prepare, prepare_vocabulary
from t2t_jax.data.vocabulary import BOS_ID, Vocabulary
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError
from t2t_jax.evaluation.evaluate import evaluate
from t2t_jax.loading import CONFIG_FILE, VOCABULARY_FILE, read_config
from t2t_jax.modules.transformer import Transformer
from t2t_jax.parallel.mesh import make_mesh, put_batch, replicated
from t2t_jax.run_log import RunLog
from t2t_jax.training.checkpoint import Checkpoints
from t2t_jax.training.step import Metrics, TrainState, compile_train_step, init_state

# Steps whose metrics are still on the device: the host reads them without making the device wait.
_LAG = 2

CORPUS_FILE = "corpus.sha256"


def train(config: Config, workdir: Path) -> int:
    """Train a model, or go on with a run that was stopped.

    Args:
      config: the run.
      workdir: its directory: config, vocabulary, checkpoints and logs.

    Returns:
      The exit code: 0 when the run is at its end, 128 + n when signal n stopped it (with a
      checkpoint; the same call goes on from there).

    Raises:
      UserError: the config, the corpus or the run directory does not fit, or the loss diverged.
    """
    start = time.monotonic()
    _check_workdir(config, workdir)
    corpus = open_corpus(config.data)
    vocabulary = _vocabulary(config, corpus, workdir)
    split = prepare(config.data, corpus, vocabulary, "train")
    batches = Batches(split, config.data, config.training.seed)
    _claim_workdir(config, corpus, vocabulary, workdir)

    mesh = make_mesh(config.parallel)
    model = Transformer(config.model, len(vocabulary), BOS_ID)
    with closing(Checkpoints(workdir, config.checkpoint)) as checkpoints, _signals() as stop:
        state = _initial_state(config, model, mesh, checkpoints)
        first_step, last_step = int(state.step), config.training.num_train_steps
        with RunLog(workdir, first_step, last_step) as log:
            log.say(describe(split, batches))
            size = sum(x.size for x in jax.tree.leaves(state.params))
            log.say(
                f"{size:,} parameters on {mesh.size} {mesh.devices.flat[0].platform} device(s); "
                f"step {first_step + 1:,} of {last_step:,} begins {time.monotonic() - start:.1f} s "
                "after the start"
            )
            run = _Run(config, model, mesh, corpus, vocabulary, checkpoints, log, stop)
            step = run.loop(state, batches)
            if step >= last_step:
                log.say(
                    f"{last_step:,} steps are done; score them: eval.py bleu --workdir {workdir}"
                )
                return 0
            log.say(f"stopped after step {step:,}; the same command goes on from there")
            return 128 + stop[0]


@dataclass
class _Run:
    """What the loop works with."""

    config: Config
    model: Transformer
    mesh: Mesh
    corpus: Corpus
    vocabulary: Vocabulary
    checkpoints: Checkpoints
    log: RunLog
    stop: list[int]

    def loop(self, state: TrainState, batches: Batches) -> int:
        """Train from `state` on, to the last step or a signal; returns the number of the step."""
        config = self.config
        train_step = compile_train_step(config, self.model, self.mesh)
        first, last = int(state.step), config.training.num_train_steps
        window = _Window(self, first)
        saved_at = time.monotonic()
        step = first
        with closing(batches.prefetch(first, last)) as ahead:
            for step, batch in enumerate(ahead, first + 1):
                on_devices = put_batch(batch, self.mesh, config.parallel.tokens_per_device)
                state, metrics = train_step(state, on_devices)
                window.add(step, metrics)
                is_end = step == last or bool(self.stop)
                evaluates = not self.stop and (
                    step == last or step % config.evaluation.every_steps == 0
                )
                saves = is_end or _is_due(config.checkpoint, step, time.monotonic() - saved_at)
                if evaluates or saves:
                    window.read_all()
                if evaluates:
                    self._evaluate(step, state)
                if saves:
                    self.checkpoints.save(state)
                    saved_at = time.monotonic()
                if evaluates or saves:
                    window.restart()
                if is_end:
                    break
        return step

    def _evaluate(self, step: int, state: TrainState) -> None:
        if "dev" not in self.corpus.splits:
            return
        translator = Translator(self.config, self.vocabulary, state.params)
        settings = self.config.evaluation
        evaluation = evaluate(
            translator,
            self.corpus,
            "dev",
            num_sentences=settings.num_sentences,
            beam_size=settings.beam_size,
        )
        self.log.evaluation(step, evaluation, settings.num_samples)
        self.checkpoints.save_if_best(state, evaluation.scores.bleu)


class _Window:
    """The steps since the last record of the log.

    The metrics of the newest steps are left on the device, so that reading the older ones never
    makes it wait for the host.
    """

    def __init__(self, run: _Run, first_step: int) -> None:
        self._run = run
        self._pending: deque[tuple[int, Metrics]] = deque()
        self._read: list[Metrics] = []
        self._seconds = 0.0
        self._started = time.monotonic()
        self._first_step = first_step
        self._seconds_in_all = 0.0

    def add(self, step: int, metrics: Metrics) -> None:
        """Take the metrics of a step, and read those of an earlier one."""
        self._pending.append((step, metrics))
        if len(self._pending) > _LAG:
            self._read_one()

    def read_all(self) -> None:
        """Wait for the device."""
        while self._pending:
            self._read_one()
        self._pause()

    def restart(self) -> None:
        """Leave the time since `read_all` out of the rate."""
        self._started = time.monotonic()

    def _pause(self) -> None:
        now = time.monotonic()
        self._seconds += now - self._started
        self._started = now

    def _read_one(self) -> None:
        step, on_device = self._pending.popleft()
        metrics: Metrics = jax.device_get(on_device)
        self._read.append(metrics)
        self._run.log.step(step)
        training = self._run.config.training
        if metrics.nonfinite_in_a_row >= training.max_nonfinite_steps:
            raise UserError(
                f"loss or gradient was not finite in {metrics.nonfinite_in_a_row} steps in a row, "
                f"up to step {step}; lower training.learning_rate_factor or raise "
                "training.warmup_steps, and start again in another workdir"
            )
        if step % training.log_every_steps == 0 or step == training.num_train_steps:
            self._pause()
            self._run.log.training(step, self._figures(step))
            self._read, self._seconds = [], 0.0

    def _figures(self, step: int) -> dict[str, float]:
        smoothed, nll, tokens = np.asarray([m.losses for m in self._read], np.float64).T
        last = self._read[-1]
        self._seconds_in_all += self._seconds
        seconds_per_step = self._seconds_in_all / (step - self._first_step)
        return {
            "loss": smoothed.sum() / tokens.sum(),
            "nll": nll.sum() / tokens.sum(),
            "perplexity": float(np.exp(min(nll.sum() / tokens.sum(), 700))),
            "learning_rate": float(last.learning_rate),
            "gradient_norm": float(last.gradient_norm),
            "target_tokens": tokens.sum(),
            "target_tokens_per_second": tokens.sum() / self._seconds,
            "nonfinite_steps": int(last.nonfinite_total),
            "seconds_left": seconds_per_step * (self._run.config.training.num_train_steps - step),
        }


def _is_due(config: CheckpointConfig, step: int, seconds_since: float) -> bool:
    by_steps = config.every_steps is not None and step % config.every_steps == 0
    by_time = config.every_minutes is not None and seconds_since >= 60 * config.every_minutes
    return by_steps or by_time


def _initial_state(
    config: Config, model: Transformer, mesh: Mesh, checkpoints: Checkpoints
) -> TrainState:
    """The newest checkpoint, or the state before the first step."""
    whole = replicated(mesh)
    initialise = jax.jit(lambda: init_state(config, model), out_shardings=whole)
    like = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole),
        jax.eval_shape(initialise),
    )
    return checkpoints.restore(like) or initialise()


def _check_workdir(config: Config, workdir: Path) -> None:
    """Refuse a directory that holds another run, before anything is read or written."""
    if not (workdir / CONFIG_FILE).exists():
        foreign = workdir.is_file() or (
            workdir.exists() and any(path.suffix != ".tmp" for path in workdir.iterdir())
        )
        if foreign:
            raise UserError(
                f"{workdir} exists and is not a run directory; choose another --workdir"
            )
        return
    changed = differences(read_config(workdir), config, only_binding=True)
    if changed:
        listed = ", ".join(f"{path} {old!r} -> {new!r}" for path, (old, new) in changed.items())
        raise UserError(
            f"{workdir} holds a run with another config ({listed}); choose another --workdir, or "
            "leave these fields as they are to go on with it"
        )


def _vocabulary(config: Config, corpus: Corpus, workdir: Path) -> Vocabulary:
    """The run's own vocabulary, or for a new run the corpus's."""
    stored = workdir / VOCABULARY_FILE
    if not stored.exists():
        return prepare_vocabulary(config.data, corpus)
    fingerprint = (workdir / CORPUS_FILE).read_text(encoding="utf-8").strip()
    if fingerprint != corpus.fingerprint("train"):
        raise UserError(
            f"the training text of {config.data.corpus} is not what {workdir} was started with; "
            "restore the files, or choose another --workdir"
        )
    return Vocabulary.load(stored)


def _claim_workdir(config: Config, corpus: Corpus, vocabulary: Vocabulary, workdir: Path) -> None:
    """Write what makes a directory this run's. The vocabulary comes last: it marks the end."""
    workdir.mkdir(parents=True, exist_ok=True)
    _write(workdir / CONFIG_FILE, config.to_json())
    if not (workdir / VOCABULARY_FILE).exists():
        _write(workdir / CORPUS_FILE, corpus.fingerprint("train") + "\n")
        vocabulary.save(workdir / VOCABULARY_FILE)


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    beside = path.with_suffix(".tmp")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """A list that SIGTERM or Ctrl-C adds its number to. A second one ends the program at once."""
    received: list[int] = []
    before: dict[int, object] = {}

    def receive(number: int, _: object) -> None:
        received.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)  # type: ignore[arg-type]

    for each in (signal.SIGTERM, signal.SIGINT):
        before[each] = signal.signal(each, receive)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
