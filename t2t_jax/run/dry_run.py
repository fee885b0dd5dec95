"""What a training would do: its plan, with every check of its start and nothing of its work."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from t2t_jax.config import Config, differences, format_differences
from t2t_jax.config.cost import num_parameters
from t2t_jax.data.batching import describe_corpus
from t2t_jax.parallel.device_memory import gib, memory_of_a_device
from t2t_jax.parallel.directory_lock import check_free
from t2t_jax.run.preflight.store import bytes_of_checkpoints
from t2t_jax.run.preparing import Plan, planned
from t2t_jax.run.trackers.follower import check_target
from t2t_jax.run.trackers.tracker import targets_of
from t2t_jax.training.step_memory import least_memory
from t2t_jax.training.storage import steps_of_run
from t2t_jax.workdir import CHECKPOINTS


def rehearsed_start(config: Config, workdir: Path, trackers: Sequence[str]) -> Iterator[str]:
    """Check all that a training checks before its first step, and return lines about what it does.

    Nothing is written, but the tokenised corpus in the cache, where the training will find it.

    Raises:
      UserError: the training would be refused.
    """
    for target in targets_of(trackers):
        check_target(workdir, target)
    plan = planned(config, workdir)
    check_free(workdir)
    return _lines(plan, config)


def _lines(plan: Plan, asked: Config) -> Iterator[str]:
    data = plan.config.data
    done = max(steps_of_run(plan.workdir, CHECKPOINTS), default=0)
    if done >= plan.last:
        yield f"{plan.workdir} has its last step, {plan.last:,}: nothing would be trained"
    else:
        whose = f"goes on in {plan.workdir}" if done else f"begins a run in {plan.workdir}"
        epochs = (plan.last - done) / plan.batches.steps_per_epoch
        yield f"{whose}: steps {done + 1:,} to {plan.last:,}, {epochs:,.1f} epochs"
    if settled := differences(asked, plan.config):
        yield f"choices that were left open: {format_differences(settled)}"
    yield from describe_corpus(plan.batches).split("\n")
    size = len(plan.vocabulary)
    parameters = num_parameters(plan.config.model, size)
    yield f"{parameters:,} parameters, with a vocabulary of {size:,} entries"
    yield (
        f"at most {data.source_tokens_per_step:,} source and {data.target_tokens_per_step:,} "
        "target positions a step, padding included"
    )
    device = plan.mesh.devices.flat[0]
    least = least_memory(plan.config, size, plan.mesh, plan.batches.shapes).total
    yield (
        f"at least {gib(least)} of memory on each of {plan.mesh.size} {device.platform} "
        f"device(s), which has {gib(memory_of_a_device(plan.mesh))}; the compiler may take twice "
        "as much: --compile-only measures it"
    )
    if done < plan.last:
        settings, place = plan.config.checkpoint, plan.workdir
        when = f"every {settings.every_steps:,} steps" if settings.every_steps else "at the end"
        yield (
            f"{place} would get config.json, the vocabulary, log.jsonl, TensorBoard events, and "
            f"checkpoints {when}, of which {settings.keep} stay: at most "
            f"{gib(bytes_of_checkpoints(plan))}"
        )
    yield "all checks have passed; nothing was written but tokenised text in the cache"
