"""The training loop, with logs, evaluations, checkpoints and stops between steps."""

import os
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from numbers import Integral
from pathlib import Path
from signal import SIGUSR1

import optax
from jaxtyping import Array

from t2t_jax.config import Config
from t2t_jax.config.corpus_name import OWN
from t2t_jax.config.registered import with_parts
from t2t_jax.config.schedules import Schedule
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError, quote, warn
from t2t_jax.parallel.processes import Agreement, agree, broadcast_from_main, hosts, is_main
from t2t_jax.run.evaluation import evaluate_split
from t2t_jax.run.hooks import Hook
from t2t_jax.run.loading import TrainedRun
from t2t_jax.run.meter import StepMeter
from t2t_jax.run.parts import RunParts
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
from t2t_jax.training.objective import LossFunction, MetricsFunction
from t2t_jax.training.state import TrainState
from t2t_jax.training.step import compile_train_step

# What each process proposes after a step: nothing, a checkpoint, or a stop, which is twice the
# number of the signal, as SIGHUP is 1. The processes agree on the largest proposal.
_NOTHING, _CHECKPOINT = 0, 1


def train(
    config: Config,
    workdir: str | os.PathLike[str],
    *,
    data: object = None,
    loss: LossFunction | str | None = None,
    optimizer: optax.GradientTransformation | str | None = None,
    schedule: Callable[[Array], Array] | Schedule | str | None = None,
    metrics: MetricsFunction | None = None,
    hooks: Sequence[Hook] = (),
    until: int | None = None,
    profile_steps: tuple[int, int] | None = None,
    preemption_notices: Cloud | None = None,
    mirror_dir: str | os.PathLike[str] | None = None,
) -> TrainedRun:
    """Train a model, or resume a run.

    With `until`, training writes a checkpoint after that step and pauses. The config still defines
    the number of steps and the schedule, so a run that pauses and resumes has the same final
    parameters, checkpoints and scores as an uninterrupted run.

    An invalid config, corpus or function raises an error before `workdir` changes.

    Args:
      config: the config of the run.
      workdir: the run directory, also in a bucket (`s3://bucket/name`).
      data: a mapping of train, dev and test to sequences of (source, target) pairs, texts or dicts
        (see `data.own`); None opens `data.corpus`. A resumed run needs the same data.
      loss: `loss(apply, batch, key) -> (sum, weight)`; see `training.objective`. None is the loss
        of the config, as for the next two arguments.
      optimizer: a transformation of Optax. If its updates have a learning rate, a schedule is
        refused.
      schedule: a function from the step to the learning rate.
      metrics: `metrics(outputs, batch) -> {name: (sum, count)}`, computed in every step and logged
        as means.
      hooks: functions `hook(step, record, state)`; see `run.hooks`. A hook that raises ends the
        run with a checkpoint.
      until: the step after which training pauses; None trains to the end.
      profile_steps: the first and the last step to profile.
      mirror_dir: the parent of the local copy of a run in a bucket; None is the user's cache
        folder.
      preemption_notices: the cloud whose preemption notices trigger an immediate checkpoint.

    Returns:
      The run. Its exit code is 0 after a pause, the last step or an early stop, and 128 + n if
      signal n stopped the run with a checkpoint, from which the same call resumes.

    Raises:
      UserError: an argument, the corpus or the run directory is invalid, or a hook failed.
      DivergedError: the loss or gradient was not finite in too many consecutive steps, or an
        evaluation had no finite probabilities. A `DivergedError` is a `UserError`.
    """
    if not isinstance(config, Config):
        raise UserError(f"config={quote(config)} is not a t2t_jax.Config; give one")
    is_step = isinstance(until, Integral) and not isinstance(until, bool) and until >= 1
    if until is not None and not is_step:
        raise UserError(f"until={quote(until)} is not a step; give 1 or more, or leave it out")
    own_parts = {"loss": loss, "optimizer": optimizer, "schedule": schedule}
    config = with_parts(config, {f"training.{name}": part for name, part in own_parts.items()})
    parts = RunParts(metrics, hooks, data)
    check_profiled(profile_steps, config.training.num_train_steps)
    mirrors, trained = None if mirror_dir is None else Path(mirror_dir), None
    try:
        with (
            SignalRequest(SIGUSR1) as profile_request,
            PreemptionNotices(preemption_notices) as notices,
            open_run(config, as_path(workdir), mirrors, parts) as run,
        ):
            state, signal = _train(run, profile_steps, until, profile_request, notices)
            trained = _end(run, state, signal)
    except UnsentError as error:
        if trained is None or not run.stop.number:
            raise
        warn(str(error))  # the exit code of the signal only promises that the run can be resumed
        trained = TrainedRun(trained.directory, 128 + run.stop.number, trained.history)
    return trained


def _train(
    run: Run,
    profile_steps: tuple[int, int] | None,
    until: int | None,
    profile_request: SignalRequest,
    notices: PreemptionNotices,
) -> tuple[TrainState, int]:
    """Train to the last step, a pause, an early stop or a signal.

    Returns:
      The last state, and the number of the signal, or 0.
    """
    state, progress = run.state, run.progress
    step = start = int(state.step)
    pause = run.last_step if until is None else max(start, min(run.last_step, until))
    train_step = compile_train_step(run.config, run.model, run.mesh, run.parts.metrics)
    scored_steps = {record["step"] for record in run.log.history.evaluations}
    if start and _evaluates(run, start) and start not in scored_steps:
        with progress.during(EVALUATION):  # a signal or a kill interrupted this evaluation
            signal = _evaluate(run, start, state)
        if signal:
            return state, signal
    if run.hooks.failure or _is_over(run):
        return state, 0
    meter = StepMeter(run, start)
    saver = _Saver(run, meter, notices)
    prefetched = run.batches.prefetch(start, pause, lambda shape: run.layout(shape).local_rows())
    with (
        closing(prefetched) as batches,
        closing(progress.timed(batches)) as timed,
        closing(profiled(run, meter, timed, profile_steps, pause, profile_request)) as traced,
    ):
        for step, batch in enumerate(traced, start + 1):
            shape = run.batches.shape(step - 1)
            with meter.launching(shape):
                state, metrics = train_step(state, run.layout(shape).put(batch))
            meter.add(step, metrics)
            run.job.step(step)
            if run.hooks and meter.logs(step):
                meter.flush()
                run.hooks(run.log.history.training[-1:], state)
            # After a failure, the resumed run makes up for the evaluation.
            is_scored = _evaluates(run, step) and not run.hooks.failure
            # Before an evaluation, as a stop may end it.
            if is_scored or is_due(run.config, step) or step == pause:
                saver.save(state)
            if is_scored:
                with meter.during(EVALUATION):
                    signal = _evaluate(run, step, state)
                if signal or _is_over(run):
                    return state, signal
            decision = saver.decide(step)
            if decision != _NOTHING or run.hooks.failure:
                saver.save(state)
            if decision > _CHECKPOINT or run.hooks.failure:
                return state, decision // 2
    return state, 0


def _evaluates(run: Run, step: int) -> bool:
    return run.has_dev and (step >= run.last_step or step % run.config.evaluation.every_steps == 0)


def _evaluate(run: Run, step: int, state: TrainState) -> int:
    """Evaluate a state on dev; return the number of the signal that interrupted it, or 0."""
    settings = run.config.evaluation
    overrides: Record = {"num_sentences": settings.num_sentences, "beam_size": settings.beam_size}
    translator = Translator(run.config, run.vocabulary, state.evaluated)
    work = partial(evaluate_split, translator, run.corpus, "dev", **overrides)
    # After a signal, all processes leave the evaluation after the same batch.
    evaluation = run.stop.attempt(work, Agreement())
    if evaluation is None:
        return agree(run.stop.number)
    measurement = overrides | {"max_extra_length": run.config.decoding.max_extra_length}
    if settings.metric is not None:
        measurement["metric"] = settings.metric
    # `training.checkpoint` requires this order: state, best parameters, log.
    with run.progress.during(CHECKPOINTS):
        committed = run.log.checkpoint(run.checkpoints.save(state))
        run.checkpoints.save_if_best(state, evaluation.scores.best, measurement)
    run.log.evaluation(step, evaluation, settings.num_samples, measurement)
    run.hooks([*committed, run.log.history.evaluations[-1]], state)
    return 0


def _is_over(run: Run) -> bool:
    return bool(broadcast_from_main(int(run.reason_to_stop is not None)))


class _Saver:
    """Save states, and agree with the other processes on additional checkpoints."""

    def __init__(self, run: Run, meter: StepMeter, notices: PreemptionNotices) -> None:
        self._run, self._meter, self._notices = run, meter, notices
        self._agreement, self._slow_hosts = Agreement(), SlowHosts()
        self._saved, self._proposed = time.monotonic(), False

    def save(self, state: TrainState) -> None:
        """Wait for the previous checkpoint and log it, then start to write a new one."""
        with self._meter.during(CHECKPOINTS):
            newest = self._run.checkpoints.save(state, self._meter.window)
            committed = self._run.log.checkpoint(newest)
            self._run.job.checkpoint(int(state.step))
        self._run.hooks(committed, state)
        self._saved, self._proposed = time.monotonic(), False

    def decide(self, step: int) -> int:
        """Return the common decision after a step: nothing, a checkpoint, or a stop."""
        proposal = 2 * self._run.stop.number or self._proposal()
        busy, lap = self._run.progress.take_lap()
        with self._run.progress.waiting():
            decision = self._agreement(proposal, busy)
        if slow_host := self._slow_hosts.slowest(self._agreement.seconds, lap):
            process, delay = slow_host
            warning = (
                f"process {process} on {hosts()[process]} keeps the other processes waiting: its "
                f"host works {1000 * delay:,.0f} ms longer before each step than the others; check "
                "which other programs run there and how fast its disk is"
            )
            rule = f"slow_host_{process}"
            self._run.log.warn(step, rule, warning, process=process, seconds_behind=delay)
        return decision

    def _proposal(self) -> int:
        """Return `_CHECKPOINT` if this process proposes a checkpoint, and `_NOTHING` otherwise.

        It proposes each checkpoint once. All processes agree on the proposal some steps later.
        """
        if notice := self._notices.take():
            warn(f"{host_name()} has a preemption notice ({notice}): the run writes a checkpoint")
            return _CHECKPOINT
        every_minutes = self._run.config.checkpoint.every_minutes
        minutes = (time.monotonic() - self._saved) / 60
        is_time = every_minutes is not None and minutes >= every_minutes
        if not is_time or self._proposed or not is_main():
            return _NOTHING
        self._proposed = True
        return _CHECKPOINT


def _end(run: Run, state: TrainState, signal: int) -> TrainedRun:
    with run.progress.during(CHECKPOINTS):  # a checkpoint of this step may exist already
        committed = run.log.checkpoint(run.checkpoints.save(state))
    run.hooks(committed, state)
    if run.hooks.failure is not None:
        raise run.hooks.failure
    step = int(state.step)
    reason, advice = _end_reason(run, step, signal)
    exit_code = 128 + signal if signal else 0
    run.log.end(step, reason, advice)
    run.job.end(reason, exit_code)
    return TrainedRun(run.workdir, exit_code, run.log.history)


def _end_reason(run: Run, step: int, signal: int) -> tuple[str, str]:
    """Return the reason why training ended, and advice for the user."""
    progress = f"step {step:,} of {run.last_step:,}"
    reason = run.reason_to_stop if step < run.last_step else None
    scores_dev = run.has_dev and "test" not in run.corpus.splits
    is_best = bool(reason) and run.config.checkpoint.keep_best
    if run.config.data.corpus == OWN:
        best, split = ", step='best'" * is_best, ", 'dev'" * scores_dev
        translator = f"t2t_jax.load({str(run.workdir)!r}{best})"
        advice = f"score: t2t_jax.evaluate({translator}, data{split})"
    else:
        flags = " --split dev" * scores_dev + " --step best" * is_best
        command = f"evaluate --workdir {shlex.quote(str(run.workdir))}{flags}"
        advice = f"score: {command_line(command)}"
    if signal:
        return f"stopped after step {step:,}", "run the same command to resume"
    if reason:
        return f"{reason} after {progress}", advice
    if step < run.last_step:
        return f"paused after {progress}", "resume with a later step as `until`"
    return f"{step:,} steps are done", advice
