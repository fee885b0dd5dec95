"""The dry run of a training: its plan and every check of its start, without any training."""

import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import jax

from t2t_jax.config import Config, differences, format_differences
from t2t_jax.config.cost import num_parameters
from t2t_jax.data.batching import describe_corpus
from t2t_jax.errors import UserError
from t2t_jax.parallel.devices import gib, memory_of_a_device
from t2t_jax.parallel.processes import check_free, check_same, of_main, one_without
from t2t_jax.run.history import History
from t2t_jax.run.preparing import Plan, planned, shared_facts
from t2t_jax.run.provenance import provenance
from t2t_jax.system.atomic_file import removed_at_end, write_whole
from t2t_jax.system.bucket import BucketPath
from t2t_jax.training.state import abstract_state
from t2t_jax.training.storage import steps_of_run
from t2t_jax.workdir import CHECKPOINTS

_PROBE_BYTES = 1 << 20


def rehearsed_start(config: Config, workdir: Path) -> Iterator[str]:
    """Check all that a training checks before its first step, and return lines that describe it.

    All processes of the training call this. It also compares their software, and checks that they
    share the run directory. Only the tokenised corpus stays, in the cache, where the training finds
    it.

    Raises:
      UserError: the training would be refused, or would fail later.
    """
    plan = planned(config, workdir)
    check_free(workdir)
    software = provenance(plan.config)
    check_same(
        shared_facts(plan)
        | {"the name of --workdir": workdir.name, "the code of t2t-jax": software["code"]}
        | {f"the version of {name}": number for name, number in software["versions"].items()}
    )
    _check_room(plan)
    _check_shared_directory(workdir)
    return _lines(plan, config)


def _check_room(plan: Plan) -> None:
    """Refuse a disk that is too small for the checkpoints of a run, on every process."""
    place, needed, problem = _existing(plan.workdir), _bytes_of_checkpoints(plan), ""
    if not isinstance(place, BucketPath) and (free := shutil.disk_usage(place).free) < needed:
        problem = (
            f"{place} has {gib(free)} free, but the checkpoints of the run need {gib(needed)}; "
            "make room there, lower checkpoint.keep, or choose another --workdir"
        )
    _raise_together(problem, place)


def _check_shared_directory(workdir: Path) -> None:
    """Have each process write a file in the future run directory, and look for all of them.

    Raises:
      UserError: on every process, if one cannot write there or misses a file of another.
    """
    place, mark = _existing(workdir), of_main(secrets.randbits(30))
    files = [place / f".dry-run-{mark:x}-{number}" for number in range(jax.process_count())]
    problem = ""
    with removed_at_end(files[jax.process_index()]) as file:
        try:
            write_whole(file, secrets.token_bytes(_PROBE_BYTES))
        except UserError as error:
            problem = str(error)
        _raise_together(problem, place)
        if missing := [number for number, other in enumerate(files) if not other.exists()]:
            problem = (
                f"{place} lacks the file that process {missing[0]} wrote a moment ago; put "
                f"--workdir {workdir} on a filesystem that all hosts share, or in a bucket"
            )
        _raise_together(problem, place)


def _raise_together(problem: str, place: Path) -> None:
    """Raise an error on all processes if one has a problem, so that none waits for it."""
    failing = one_without(not problem)
    if failing is not None:
        raise UserError(problem or f"{place} cannot be used by process {failing}; see its error")


def _existing(workdir: Path) -> Path:
    """Return the directory, or its nearest parent that exists; a bucket path unchanged."""
    if isinstance(workdir, BucketPath):
        return workdir
    absolute = workdir.absolute()
    return next(path for path in (absolute, *absolute.parents) if path.is_dir())


def _bytes_of_checkpoints(plan: Plan) -> int:
    """Return the bytes that the checkpoints of a run still need: those kept, and one more.

    Each is written before the oldest is removed. Between two due steps there may be one for safety,
    and the best parameters are kept twice for a moment. Three have the optimizer state if there are
    averages, and all that are kept for good.
    """
    state, settings = abstract_state(plan.config, plan.model, plan.mesh), plan.config.checkpoint
    parameter_bytes, best = _num_bytes((state.params, state.ema)), 2 * _num_bytes(state.evaluated)
    for_good = plan.last // settings.keep_every if settings.keep_every else 0
    there = len(steps_of_run(plan.workdir, CHECKPOINTS))
    due = -(-plan.last // settings.every_steps) if settings.every_steps else settings.keep
    num_missing = max(1, min(settings.keep, due) + for_good + 2 - there)
    num_complete = num_missing if settings.average == 1 else min(num_missing, 3 + for_good)
    size = num_complete * _num_bytes(state) + (num_missing - num_complete) * parameter_bytes
    return size + best * (settings.keep_best and plan.has_dev)


def _num_bytes(tree: object) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


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
    yield from (f"warning: {text}" for _, text in plan.health.news(History()))
    size = len(plan.vocabulary)
    parameters = num_parameters(plan.config.model, size)
    yield f"{parameters:,} parameters, with a vocabulary of {size:,} entries"
    yield (
        f"at most {data.source_tokens_per_step:,} source and {data.target_tokens_per_step:,} "
        "target positions a step, padding included"
    )
    device = plan.mesh.devices.flat[0]
    yield (
        f"at least {gib(plan.memory.total)} of memory on each of {plan.mesh.size} "
        f"{device.platform} device(s), which has {gib(memory_of_a_device(plan.mesh))}; the "
        "compiler may take twice as much: --compile-only measures it"
    )
    if done < plan.last:
        settings, place = plan.config.checkpoint, plan.workdir
        when = f"every {settings.every_steps:,} steps" if settings.every_steps else "at the end"
        yield (
            f"{place} would get config.json, the vocabulary, log.jsonl, TensorBoard events, and "
            f"checkpoints {when}, of which {settings.keep} stay: at most "
            f"{gib(_bytes_of_checkpoints(plan))}"
        )
    yield "all checks have passed; nothing stays but tokenised text in the cache"
