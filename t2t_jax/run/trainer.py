"""The training loop, with logs, evaluations, checkpoints and stops between steps."""

import os
import shlex
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from signal import SIGUSR1

from t2t_jax.config import Config
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError, warn
from t2t_jax.parallel.processes import Agreement, agree, hosts, is_main, of_main
from t2t_jax.run.evaluation import evaluate_split
from t2t_jax.run.loading import TrainedRun
from t2t_jax.run.meter import StepMeter, serving_metrics
from t2t_jax.run.preemption import PreemptionNotices
from t2t_jax.run.preparing import Run, open_run
from t2t_jax.run.profile import check_profiled, profiled
from t2t_jax.run.progress import CHECKPOINTS, EVALUATION
from t2t_jax.run.watchdog import SlowHosts
from t2t_jax.system.bucket import as_path
from t2t_jax.system.host import Cloud, host_name
from t2t_jax.system.mirror import UnsentError
from t2t_jax.system.program import command_line
from t2t_jax.system.records import Record
from t2t_jax.system.signals import SignalRequest
from t2t_jax.training.averaging import is_due
from t2t_jax.training.state import TrainState
from t2t_jax.training.step import compile_train_step

# What a process proposes to the others at each step: nothing, a checkpoint because it is time, or a
# stop for the signal with a number (all of which are greater).
_NOTHING, _CHECKPOINT = 0, 1


def train(
    config: Config,
    workdir: str | os.PathLike[str],
    profile_steps: tuple[int, int] | None = None,
    until: int | None = None,
    metrics_port: int | None = None,
    preemption_notices: Cloud | None = None,
    mirror_dir: str | os.PathLike[str] | None = None,
) -> TrainedRun:
    """Train a model, or resume a run.

    With `until`, the training pauses after that step, with a checkpoint. The config still defines
    the length of the training and the end of its schedule: a run that pauses and resumes has in the
    end the same parameters, checkpoints and scores as an unbroken one.

    A config or corpus that does not fit is refused before anything in `workdir` changes.

    Args:
      config: the config of the run.
      workdir: the directory for all that the run writes; in a bucket, `s3://bucket/name`.
      profile_steps: the first and the last of the steps to profile.
      until: the step after which the training pauses; None trains to the end.
      metrics_port: the port on which process 0 serves metrics for Prometheus, to all networks.
      mirror_dir: the local directory below which a run in a bucket is trained, as uploads come
        after; None is the user's cache folder.
      preemption_notices: the cloud whose notices make the run write a checkpoint at once.

    Returns:
      The run. Its exit code is 0 at a pause and at its end (its last step, or an early stop), and
      128 + n when signal n stopped it, with a checkpoint from which the same call resumes.

    Raises:
      UserError: the config, the corpus or the run directory does not fit, or `until` is not
        positive.
      DivergedError: the loss or the gradient was not finite in too many steps in a row, or an
        evaluation had no finite probabilities; this is a `UserError`, too.
    """
    if until is not None and until < 1:
        raise UserError(f"until={until} is not a step; give 1 or more, or leave it out")
    check_profiled(profile_steps, config.training.num_train_steps)
    mirrors, trained = None if mirror_dir is None else Path(mirror_dir), None
    try:
        with (
            SignalRequest(SIGUSR1) as profile_request,
            serving_metrics(metrics_port) as metrics,
            PreemptionNotices(preemption_notices) as notices,
            open_run(config, as_path(workdir), mirrors) as run,
        ):
            metrics.run = run
            state, signal = _train(run, profile_steps, until, profile_request, notices)
            with run.progress.during(CHECKPOINTS):  # it is on the disk, or still being written
                run.log.checkpoint(run.checkpoints.save(state))
            step = int(state.step)
            reason, advice = _last_words(run, step, signal)
            exit_code = 128 + signal if signal else 0
            run.log.end(step, reason, advice)
            run.job.end(reason, exit_code)
            trained = TrainedRun(run.workdir, exit_code, run.log.history)
    except UnsentError as error:
        if trained is None or not run.stop.number:
            raise
        warn(str(error))  # the code of the signal promises no more than that the run goes on
        trained = TrainedRun(trained.directory, 128 + run.stop.number, trained.history)
    return trained


def _train(
    run: Run,
    profile_steps: tuple[int, int] | None,
    until: int | None,
    profile_request: SignalRequest,
    notices: PreemptionNotices,
) -> tuple[TrainState, int]:
    """Train to the last step, a pause, an early end or a signal.

    Returns:
      The last state, and the number of the signal; 0 for none.
    """
    state, progress = run.state, run.progress
    step = first = int(state.step)
    pause = run.last if until is None else max(first, min(run.last, until))
    train_step = compile_train_step(run.config, run.model, run.mesh)
    scored = {record["step"] for record in run.log.history.evaluations}
    if first and _evaluates(run, first) and first not in scored:
        with progress.during(EVALUATION):  # a signal or a kill had interrupted this one
            signal = _evaluate(run, first, state)
        if signal:
            return state, signal
    if _is_over(run):
        return state, 0
    meter = StepMeter(run, first)
    saver = _Saver(run, meter, notices)
    ahead = run.batches.prefetch(first, pause, lambda shape: run.layout(shape).local_rows())
    with (
        closing(ahead) as batches,
        closing(progress.timed(batches)) as timed,
        closing(profiled(run, meter, timed, profile_steps, pause, profile_request)) as watched,
    ):
        for step, batch in enumerate(watched, first + 1):
            shape = run.batches.shape(step - 1)
            with meter.launching(shape):
                state, metrics = train_step(state, run.layout(shape).put(batch))
            meter.add(step, metrics)
            run.job.step(step)
            is_scored = _evaluates(run, step)
            # Before an evaluation, as a stop may end it.
            if is_scored or is_due(run.config, step) or step == pause:
                saver.save(state)
            if is_scored:
                with meter.during(EVALUATION):
                    signal = _evaluate(run, step, state)
                if signal or _is_over(run):
                    return state, signal
            agreed = saver.agreed(step)
            if agreed != _NOTHING:
                saver.save(state)
            if agreed > _CHECKPOINT:
                return state, agreed
    return state, 0


def _evaluates(run: Run, step: int) -> bool:
    """Return whether the model is scored on dev after a step."""
    return run.has_dev and (step >= run.last or step % run.config.evaluation.every_steps == 0)


def _evaluate(run: Run, step: int, state: TrainState) -> int:
    """Score the model on dev; return the signal that ended the scoring, or 0."""
    settings = run.config.evaluation
    search: Record = {"num_sentences": settings.num_sentences, "beam_size": settings.beam_size}
    translator = Translator(run.config, run.vocabulary, state.evaluated)
    work = partial(evaluate_split, translator, run.corpus, "dev", **search)
    # All processes leave the evaluation after the same batch, or none does.
    evaluation = run.stop.attempt(work, Agreement())
    if evaluation is None:
        return agree(run.stop.number)
    measure = search | {"max_extra_length": run.config.decoding.max_extra_length}
    if settings.metric is not None:
        measure["metric"] = settings.metric
    # In this order, as `training.checkpoint` says: states, the best, the log.
    with run.progress.during(CHECKPOINTS):
        run.log.checkpoint(run.checkpoints.save(state))
        run.checkpoints.save_if_best(state, evaluation.scores.best, measure)
    run.log.evaluation(step, evaluation, settings.num_samples, measure)
    return 0


def _is_over(run: Run) -> bool:
    """Return whether the run ends before its last step, by process 0's decision."""
    return bool(of_main(int(run.reason_to_stop is not None)))


class _Saver:
    """Saves states, and agrees with the other processes on additional saves."""

    def __init__(self, run: Run, meter: StepMeter, notices: PreemptionNotices) -> None:
        self._run, self._meter, self._notices = run, meter, notices
        self._agreement, self._slow_hosts = Agreement(), SlowHosts()
        self._saved, self._proposed = time.monotonic(), False

    def save(self, state: TrainState) -> None:
        """Begin to write a state, once the previous one is on the disk; log the previous one."""
        with self._meter.during(CHECKPOINTS):
            self._run.log.checkpoint(self._run.checkpoints.save(state, self._meter.window.tolist()))
            self._run.job.checkpoint(int(state.step))
        self._saved, self._proposed = time.monotonic(), False

    def agreed(self, step: int) -> int:
        """Return what all processes do after this step: nothing, a checkpoint, or a stop."""
        proposal = self._run.stop.number or self._proposal()
        busy, lap = self._run.progress.take_lap()
        with self._run.progress.waiting():
            agreed = self._agreement(proposal, busy)
        if slow := self._slow_hosts.slowest(self._agreement.seconds, lap):
            process, behind = slow
            text = (
                f"process {process} on {hosts()[process]} keeps the others waiting: its host works "
                f"{1000 * behind:,.0f} ms longer before each step than any other; see what else "
                "runs there, and how fast it reads"
            )
            rule = f"slow_host_{process}"
            self._run.log.warn(step, rule, text, process=process, seconds_behind=behind)
        return agreed

    def _proposal(self) -> int:
        """Return `_CHECKPOINT` when it is due, but only once, as an agreement takes a while."""
        if notice := self._notices.take():
            warn(f"{host_name()} has a notice of preemption ({notice}): the run saves its state")
            return _CHECKPOINT
        every_minutes = self._run.config.checkpoint.every_minutes
        minutes = (time.monotonic() - self._saved) / 60
        is_time = every_minutes is not None and minutes >= every_minutes
        if not is_time or self._proposed or not is_main():
            return _NOTHING
        self._proposed = True
        return _CHECKPOINT


def _last_words(run: Run, step: int, signal: int) -> tuple[str, str]:
    """Return why a training ended, and the advice on what to do next."""
    score = f"evaluate --workdir {shlex.quote(str(run.workdir))}"
    if run.has_dev and "test" not in run.corpus.splits:
        score += " --split dev"
    if signal:
        return f"stopped after step {step:,}", "the same command goes on from there"
    if step < run.last and (reason := run.reason_to_stop):
        best = " --step best" if run.config.checkpoint.keep_best else ""
        ended = f"{reason} after step {step:,} of {run.last:,}"
        return ended, f"score: {command_line(score + best)}"
    if step < run.last:
        return f"paused after step {step:,} of {run.last:,}", "a later step as `until` goes on"
    return f"{step:,} steps are done", f"score: {command_line(score)}"
