"""The training loop, and only the loop."""

import os
import time
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int

from t2t_jax.config import Config, walk
from t2t_jax.config.tables import named_entries
from t2t_jax.data.batching import Batches, describe_corpus
from t2t_jax.data.corpus import Corpus, open_corpus
from t2t_jax.data.rows import BatchShape
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError
from t2t_jax.modules.models import make_model
from t2t_jax.modules.network import Network
from t2t_jax.parallel.compiler_options import described_options
from t2t_jax.parallel.memory import within_memory
from t2t_jax.parallel.mesh import BatchLayout, batch_layout
from t2t_jax.parallel.processes import Agreement, bound_together, check_same, is_main, of_main
from t2t_jax.parallel.slices import described_slices
from t2t_jax.run.early_stopping import reason_to_stop
from t2t_jax.run.evaluation import evaluate, prepare_evaluation
from t2t_jax.run.health import Health, corpus_figures
from t2t_jax.run.log import RunLog
from t2t_jax.run.meter import StepMeter
from t2t_jax.run.start import check_start, initial_state, introduce_start
from t2t_jax.run.trained_run import TrainedRun
from t2t_jax.system.bucket import as_path
from t2t_jax.system.program import command_line
from t2t_jax.system.quiet import orbax_kept_quiet
from t2t_jax.system.signals import StopSignal
from t2t_jax.tasks import task_of
from t2t_jax.tasks.task import predicted_by
from t2t_jax.training.averaging import check_average, is_due
from t2t_jax.training.checkpoint import Checkpoints
from t2t_jax.training.memory import check_gathering, check_memory
from t2t_jax.training.origin import Identity
from t2t_jax.training.schedule import settled_schedule
from t2t_jax.training.settling import settled
from t2t_jax.training.state import TrainState, abstract_state
from t2t_jax.training.step import compile_train_step, training_mesh
from t2t_jax.workdir import (
    check_workdir,
    claim,
    fingerprints,
    give_up,
    is_run,
    locked,
    read_config,
    run_vocabulary,
)


def train(config: Config, workdir: str | os.PathLike[str]) -> TrainedRun:
    """Train a model, or go on with a run that was stopped.

    All that can be refused is refused before anything in `workdir` changes.

    Args:
      config: the run.
      workdir: the directory for all that it writes, or its place in a bucket, `s3://bucket/name`.

    Returns:
      The run, whose exit code is 0 at its end (its last step, or an early end by its evaluations)
      and 128 + n when signal n stopped it, with a checkpoint from which the same call goes on.

    Raises:
      UserError: the config, the corpus or the run directory does not fit, or the loss diverged.
    """
    start = time.monotonic()
    workdir = as_path(workdir)
    goes_on = workdir if check_workdir(config, workdir) else None
    mesh = training_mesh(config.parallel)
    config = _settled(config, mesh, goes_on)
    if goes_on is None:
        check_average(config)
        check_start(config)
    check_memory(config, config.data.vocab_size, mesh)
    corpus = open_corpus(config.data)
    task = task_of(corpus.name, corpus.task)
    vocabulary = run_vocabulary(config, corpus, goes_on, task.vocabulary)
    config = _with_sources(config, vocabulary)
    split = task.training_examples(config, corpus, vocabulary)
    batches = Batches(split, config.data, config.training.seed)
    check_memory(config, len(vocabulary), mesh, batches.shapes)
    _check_dev(config, corpus, vocabulary)
    health = Health(config, corpus_figures(split, batches))
    check_same(_facts(config, corpus, vocabulary))

    model = make_model(config, len(vocabulary), mesh)
    check_gathering(abstract_state(config, model, mesh), workdir)
    with locked(workdir), StopSignal() as stop:
        _make_it_a_run(config, workdir, corpus, vocabulary)
        identity = Identity(config, fingerprints(corpus, vocabulary))
        with (
            orbax_kept_quiet(),
            Checkpoints(workdir, identity) as checkpoints,
            bound_together(),
            within_memory(),
        ):
            state = initial_state(config, model, mesh, checkpoints)
            claim(workdir, config, corpus, vocabulary)  # fields that may change, now that all fits
            steps = int(state.step), config.training.num_train_steps
            with RunLog(workdir, *steps, health, predicted_by(task)) as log:
                log.checkpoint(int(state.step) or None)
                log.say(describe_corpus(split, batches))
                log.look(int(state.step))
                run = _Run(config, corpus, vocabulary, model, mesh, checkpoints, log, stop)
                run.introduce(state, time.monotonic() - start)
                step, signal = run.loop(state, batches)
                log.checkpoint(checkpoints.wait())
                log.end(step, *run.last_words(step, signal, f"{task.command} --workdir {workdir}"))
                return TrainedRun(workdir, 128 + signal if signal else 0, log.history)


def _make_it_a_run(config: Config, workdir: Path, corpus: Corpus, vocabulary: Vocabulary) -> None:
    """Make a run of a directory before anything else is written: a kill from here on leaves a run.

    The other processes may have made files by now; a run is there only if another start had the
    lock before this one.
    """
    if is_main() and not (is_run(workdir) and check_workdir(config, workdir)):
        give_up(workdir)
        claim(workdir, config, corpus, vocabulary)


def _settled(config: Config, mesh: Mesh, workdir: Path | None) -> Config:
    """The config with the choices made that it leaves open: as the run has them, or as is best.

    Args:
      config: the config as it was asked for.
      mesh: the devices.
      workdir: the directory of the run that goes on; None for a new run.
    """
    if workdir is None:
        return settled_schedule(settled(config, mesh))
    own = read_config(workdir)
    chosen = {path: value for path, leaf, value in walk(own) if "left_open" in leaf.metadata}
    if config.parallel.tokens_per_device == "auto":
        chosen["parallel.tokens_per_device"] = own.parallel.tokens_per_device
    return settled(config.replace(chosen), mesh)


def _with_sources(config: Config, vocabulary: Vocabulary) -> Config:
    """The config with as many entries for sources as the vocabulary has, where targets are labels.

    Raises:
      UserError: the vocabulary has more or fewer entries for sources than the model.
    """
    if config.data.facts.predicts_labels and config.model.source_vocab_size is None:
        size = vocabulary.source_size or None  # images have none
        return config.replace({"model.source_vocab_size": size})
    size, wanted = vocabulary.source_size, config.model.source_vocab_size or len(vocabulary)
    if size != wanted:
        raise UserError(
            f"model.source_vocab_size={config.model.source_vocab_size}, but the vocabulary has "
            f"{size} entries for sources; leave that field out, or give training.init_from a run "
            "whose vocabulary has as many"
        )
    return config


def _check_dev(config: Config, corpus: Corpus, vocabulary: Vocabulary) -> None:
    """Refuse a dev split that cannot be scored, and a config that needs one where there is none."""
    if "dev" in corpus.splits:
        prepare_evaluation(config, corpus, vocabulary, "dev")
        return
    patience = config.training.stop_after_evaluations_without_gain
    if patience is not None:
        raise UserError(
            f"training.stop_after_evaluations_without_gain={patience} has no effect, as "
            f"{corpus.name} has no dev split; add one, or leave the field out"
        )


def _facts(config: Config, corpus: Corpus, vocabulary: Vocabulary) -> dict[str, str]:
    """The facts that all processes must agree on: all but where each of them keeps its data."""
    places = {"data.corpus": "", "data.cache_dir": "", "data.prefetch": 1}
    return {
        "the config": config.replace(places).to_json(),
        **{f"the {name}": one for name, one in fingerprints(corpus, vocabulary).items()},
        **{f"the file of {one.title}": str(one.source) for one in named_entries(config).values()},
    }


# What a process proposes to the others at each step: nothing, a checkpoint because it is time, or a
# stop for the signal with a number (all of which are greater).
_NOTHING, _CHECKPOINT = 0, 1


@dataclass(frozen=True)
class _Run:
    """A run under way: everything that stays the same from step to step, and the loop."""

    config: Config
    corpus: Corpus
    vocabulary: Vocabulary
    model: Network
    mesh: Mesh
    checkpoints: Checkpoints
    log: RunLog
    stop: StopSignal

    def introduce(self, state: TrainState, seconds: float) -> None:
        """Say what is about to be trained, `seconds` after the start."""
        introduce_start(self.config, state, self.log)
        if "dev" not in self.corpus.splits:
            self.log.say(f"{self.corpus.name} has no dev split: no scores, no best checkpoint")
        elif (decay := self.config.training.ema_decay) is not None:
            self.log.say(f"dev is scored with a moving average of the parameters, decay {decay}")
        size = sum(x.size for x in jax.tree.leaves(state.params))
        axes = " x ".join(f"{name} {size}" for name, size in self.mesh.shape.items())
        platform, hosts = self.mesh.devices.flat[0].platform, jax.process_count()
        self.log.say(
            f"{size:,} parameters on {self.mesh.size} {platform} device(s) of {hosts} process(es): "
            f"{axes}, in {self.config.model.compute_dtype}"
        )
        options = described_options(self.mesh) if self.config.parallel.backend == "jit" else ""
        for line in (described_slices(self.mesh), options and f"compiled with {options}"):
            if line:
                self.log.say(line)
        first, last = int(state.step), self.config.training.num_train_steps
        end = self.config.training.schedule_end
        if first < last and self._reason_to_stop() is None:
            if end is not None and end < last:
                self.log.say(
                    f"the learning rate is 0 from training.schedule_steps={end} on: the steps "
                    "after it change no parameter"
                )
            self.log.say(f"step {first + 1:,} of {last:,} begins {seconds:.1f} s after the start")

    def loop(self, state: TrainState, batches: Batches) -> tuple[int, int]:
        """Train from `state` on, to the last step or a signal.

        Returns:
          The number of the step, and of the signal; 0 for none.
        """
        config, agreement = self.config, Agreement()
        first, last = int(state.step), config.training.num_train_steps
        train_step = compile_train_step(config, self.model, self.mesh)
        clock = _Clock(config.checkpoint.every_minutes)
        step, agreed = first, _NOTHING
        if first and self._evaluates(first) and not self.log.has_evaluation(first, "dev"):
            self._evaluate(first, state)  # a signal or a kill had cut it short
        if self._is_over():
            return first, 0
        with (
            closing(StepMeter(self.log, config.training, first, self.mesh.size)) as meter,
            closing(batches.prefetch(first, last, self._rows)) as ahead,
        ):
            for step, batch in enumerate(meter.timed(ahead), first + 1):
                shape = batches.shape(step - 1)
                layout = self._layout(shape)
                with meter.launching(shape):
                    state, metrics = train_step(state, layout.put(batch))
                meter.add(step, metrics)
                saves = is_due(config, step)
                evaluates = self._evaluates(step)
                if saves or evaluates:
                    with meter.paused():
                        if saves:
                            self._save(state)
                            clock.restart()
                        if evaluates:
                            self._evaluate(step, state)
                    if evaluates and self._is_over():
                        self._save(state)
                        return step, 0
                agreed = agreement(self.stop.number or clock.proposal())
                if agreed != _NOTHING:
                    with meter.paused():
                        self._save(state)
                    clock.restart()
                if agreed > _CHECKPOINT:
                    return step, agreed
        return step, 0

    def last_words(self, step: int, signal: int, score: str) -> tuple[str, str]:
        """Why a training ended, and what comes next.

        Args:
          step: the last step.
          signal: the number of the signal that stopped it; 0 for none.
          score: the command that scores the run, without the program's name.
        """
        last = self.config.training.num_train_steps
        if signal:
            return f"stopped after step {step:,}", "the same command goes on from there"
        if step < last and (reason := self._reason_to_stop()):
            best = " --step best" if self.config.checkpoint.keep_best else ""
            ended = f"{reason} after step {step:,} of {last:,}"
            return ended, f"score: {command_line(score + best)}"
        return f"{step:,} steps are done", f"score: {command_line(score)}"

    def _reason_to_stop(self) -> str | None:
        return reason_to_stop(self.config.training, self.log.history.evaluations)

    def _is_over(self) -> bool:
        """Whether the run ends before its last step; all processes get process 0's answer."""
        return bool(of_main(int(self._reason_to_stop() is not None)))

    def _save(self, state: TrainState) -> None:
        """Begin to write a state; the one before is on the disk then, and the log has it."""
        self.log.checkpoint(self.checkpoints.save(state))

    def _layout(self, shape: BatchShape) -> BatchLayout:
        rows, *lengths = shape
        return batch_layout(self.mesh, rows, max(lengths), self.config.parallel.pass_tokens)

    def _rows(self, shape: BatchShape) -> Int[np.ndarray, " n"]:
        return self._layout(shape).local_rows()

    def _evaluates(self, step: int) -> bool:
        is_last = step >= self.config.training.num_train_steps
        return is_last or step % self.config.evaluation.every_steps == 0

    def _evaluate(self, step: int, state: TrainState) -> None:
        """Score the model on dev; a signal ends that at once, if no other process takes part."""
        if "dev" not in self.corpus.splits:
            return
        settings = self.config.evaluation
        translator = Translator(self.config, self.vocabulary, state.evaluated)
        work = partial(
            evaluate,
            translator,
            self.corpus,
            "dev",
            num_sentences=settings.num_sentences,
            beam_size=settings.beam_size,
        )
        # A process that dropped it would leave the others waiting.
        evaluation = work() if jax.process_count() > 1 else self.stop.attempt(work)
        if evaluation is not None:
            measure = {
                "num_sentences": settings.num_sentences,
                "beam_size": settings.beam_size,
                "max_extra_length": self.config.decoding.max_extra_length,
            }
            # In this order, as `training.checkpoint` says: states, the best, the log.
            self.log.checkpoint(self.checkpoints.wait())
            self.checkpoints.save_if_best(state, evaluation.scores.best, measure)
            self.log.evaluation(step, evaluation, settings.num_samples, measure)


class _Clock:
    """The watch of process 0, which says when it is time for a checkpoint."""

    def __init__(self, every_minutes: float | None) -> None:
        self._every_minutes = every_minutes
        self.restart()

    def restart(self) -> None:
        """Start again from zero: there is a checkpoint."""
        self._started, self._proposed = time.monotonic(), False

    def proposal(self) -> int:
        """`_CHECKPOINT` once it is time, and only once, as the others take a while to agree."""
        minutes = (time.monotonic() - self._started) / 60
        is_time = self._every_minutes is not None and minutes >= self._every_minutes
        if not is_time or self._proposed or not is_main():
            return _NOTHING
        self._proposed = True
        return _CHECKPOINT
