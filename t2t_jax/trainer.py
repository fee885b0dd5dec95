"""The training loop, and only the loop."""

import time
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
from jax.sharding import Mesh

from t2t_jax.config import Config
from t2t_jax.data.batching import Batches, describe
from t2t_jax.data.corpus import Corpus, open_corpus
from t2t_jax.data.tokenized import prepare
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.decoding.translator import Translator, make_model
from t2t_jax.evaluation.evaluate import evaluate, prepare_evaluation
from t2t_jax.modules.transformer import Transformer
from t2t_jax.parallel.mesh import make_mesh, put_batch, replicated
from t2t_jax.run_log import RunLog
from t2t_jax.signals import StopSignal
from t2t_jax.step_meter import StepMeter
from t2t_jax.training.checkpoint import Checkpoints, is_due
from t2t_jax.training.step import TrainState, abstract_state, compile_train_step, init_state
from t2t_jax.workdir import check_workdir, claim, is_run, locked, run_vocabulary


def train(config: Config, workdir: Path) -> int:
    """Train a model, or go on with a run that was stopped.

    All that can be refused is refused before anything in `workdir` changes.

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
    check_workdir(config, workdir)
    mesh = make_mesh(config.parallel)
    corpus = open_corpus(config.data)
    vocabulary = run_vocabulary(config, corpus, workdir)
    split = prepare(config.data, corpus, vocabulary, "train")
    batches = Batches(split, config.data, config.training.seed)
    if "dev" in corpus.splits:
        prepare_evaluation(config, corpus, vocabulary, "dev")

    model = make_model(config, vocabulary)
    with locked(workdir), StopSignal() as stop:
        if not is_run(workdir):  # first of all: a kill from here on leaves a run
            claim(workdir, config, corpus, vocabulary)
        with closing(Checkpoints(workdir, config)) as checkpoints:
            state = _initial_state(config, model, mesh, checkpoints)
            claim(workdir, config, corpus, vocabulary)  # what may change, now that all fits
            with RunLog(workdir, int(state.step), config.training.num_train_steps) as log:
                log.say(describe(split, batches))
                run = _Run(config, corpus, vocabulary, model, mesh, checkpoints, log, stop)
                run.introduce(state, time.monotonic() - start)
                step = run.loop(state, batches)
                if stop.number:
                    log.say(f"stopped after step {step:,}; the same command goes on from there")
                    return 128 + stop.number
                command = "parseval" if corpus.is_treebank else "bleu"
                log.say(f"{step:,} steps are done; score: eval.py {command} --workdir {workdir}")
                return 0


@dataclass(frozen=True)
class _Run:
    """What stays the same from step to step."""

    config: Config
    corpus: Corpus
    vocabulary: Vocabulary
    model: Transformer
    mesh: Mesh
    checkpoints: Checkpoints
    log: RunLog
    stop: StopSignal

    def introduce(self, state: TrainState, seconds: float) -> None:
        """Say what is about to be trained, `seconds` after the start."""
        if "dev" not in self.corpus.splits:
            self.log.say(f"{self.corpus.name} has no dev split: no scores, no best checkpoint")
        size = sum(x.size for x in jax.tree.leaves(state.params))
        devices = f"{self.mesh.size} {self.mesh.devices.flat[0].platform} device(s)"
        self.log.say(f"{size:,} parameters on {devices}")
        first, last = int(state.step), self.config.training.num_train_steps
        if first < last:
            self.log.say(f"step {first + 1:,} of {last:,} begins {seconds:.1f} s after the start")

    def loop(self, state: TrainState, batches: Batches) -> int:
        """Train from `state` on, to the last step or a signal; returns the number of the step."""
        config = self.config
        first, last = int(state.step), config.training.num_train_steps
        train_step = compile_train_step(config, self.model, self.mesh)
        meter = StepMeter(self.log, config.training, first, self.mesh.size)
        saved_at, step = time.monotonic(), first
        if first and self._evaluates(first) and not self.log.has_evaluation(first, "dev"):
            self._evaluate(first, state)  # which a signal or a kill had ended
        with closing(batches.prefetch(first, last)) as ahead:
            for step, batch in enumerate(ahead, first + 1):
                on_devices = put_batch(batch, self.mesh, config.parallel.tokens_per_device)
                state, metrics = train_step(state, on_devices)
                meter.add(step, metrics)
                ends = step == last or self.stop.number > 0
                evaluates = self._evaluates(step)
                saves = ends or is_due(config.checkpoint, step, time.monotonic() - saved_at)
                if evaluates or saves:
                    with meter.paused():
                        if saves:
                            self.checkpoints.save(state)
                            saved_at = time.monotonic()
                        if evaluates:
                            self._evaluate(step, state)
                if self.stop.number:
                    self.checkpoints.save(state)
                    break
        return step

    def _evaluates(self, step: int) -> bool:
        is_last = step >= self.config.training.num_train_steps
        return is_last or step % self.config.evaluation.every_steps == 0

    def _evaluate(self, step: int, state: TrainState) -> None:
        """Score the model on dev; a signal ends that at once."""
        if "dev" not in self.corpus.splits:
            return
        settings = self.config.evaluation
        translator = Translator(self.config, self.vocabulary, state.params)
        evaluation = self.stop.attempt(
            lambda: evaluate(
                translator,
                self.corpus,
                "dev",
                num_sentences=settings.num_sentences,
                beam_size=settings.beam_size,
            )
        )
        if evaluation is not None:
            self.log.evaluation(step, evaluation, settings.num_samples)
            measure = {
                "num_sentences": settings.num_sentences,
                "beam_size": settings.beam_size,
                "max_extra_length": self.config.decoding.max_extra_length,
            }
            self.checkpoints.save_if_best(state, evaluation.scores.best, measure)


def _initial_state(
    config: Config, model: Transformer, mesh: Mesh, checkpoints: Checkpoints
) -> TrainState:
    """The newest checkpoint, or the state before the first step."""
    whole = replicated(mesh)
    restored = checkpoints.restore(abstract_state(config, model, whole))
    return restored or jax.jit(partial(init_state, config, model), out_shardings=whole)()
