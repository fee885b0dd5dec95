"""The dry run of training: every check before the first step, without training."""

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
from t2t_jax.parallel.processes import broadcast_from_main, check_free, check_same, failing_process
from t2t_jax.run.history import History
from t2t_jax.run.preparing import Plan, make_plan, shared_facts
from t2t_jax.run.provenance import provenance
from t2t_jax.system.atomic_file import removed_at_end, write_whole
from t2t_jax.system.bucket import BucketPath
from t2t_jax.training.checkpoint_files import steps_of_run
from t2t_jax.training.state import abstract_state
from t2t_jax.workdir import CHECKPOINTS

_PROBE_BYTES = 1 << 20


def dry_run(config: Config, workdir: Path) -> Iterator[str]:
    """Run all checks before the first step, and return lines that describe the run.

    All processes of the run call this function, which also checks that they have the same software
    and share the run directory. The tokenized corpus stays in the cache.

    Raises:
      UserError: training would fail.
    """
    plan = make_plan(config, workdir)
    check_free(workdir)
    software = provenance(plan.config)
    check_same(
        shared_facts(plan)
        | {"the name of --workdir": workdir.name, "the code of t2t-jax": software["code"]}
        | {f"the version of {name}": version for name, version in software["versions"].items()}
    )
    _check_room(plan)
    _check_shared_directory(workdir)
    return _lines(plan, config)


def _check_room(plan: Plan) -> None:
    folder, needed, problem = _existing(plan.workdir), _bytes_of_checkpoints(plan), ""
    if not isinstance(folder, BucketPath) and (free := shutil.disk_usage(folder).free) < needed:
        problem = (
            f"{folder} has {gib(free)} free, but the checkpoints of the run need {gib(needed)}; "
            "make room there, lower checkpoint.keep, or choose another --workdir"
        )
    _raise_together(problem, folder)


def _check_shared_directory(workdir: Path) -> None:
    """Write a file of each process to the run directory, and look for all of these files.

    Raises:
      UserError: on every process, if a process cannot write a file or does not find all files.
    """
    folder, token = _existing(workdir), broadcast_from_main(secrets.randbits(30))
    files = [folder / f".dry-run-{token:x}-{index}" for index in range(jax.process_count())]
    problem = ""
    with removed_at_end(files[jax.process_index()]) as file:
        try:
            write_whole(file, secrets.token_bytes(_PROBE_BYTES))
        except UserError as error:
            problem = str(error)
        _raise_together(problem, folder)
        if missing_indices := [index for index, path in enumerate(files) if not path.exists()]:
            problem = (
                f"{folder} lacks the file that process {missing_indices[0]} has just written; put "
                f"--workdir {workdir} on a filesystem that all hosts share, or in a bucket"
            )
        _raise_together(problem, folder)


def _raise_together(problem: str, folder: Path) -> None:
    """Raise an error on all processes if one process has a problem, so that no process hangs."""
    failing = failing_process(not problem)
    if failing is not None:
        raise UserError(problem or f"{folder} cannot be used by process {failing}; see its error")


def _existing(workdir: Path) -> Path:
    """Return a directory or its nearest existing parent; a bucket path stays unchanged."""
    if isinstance(workdir, BucketPath):
        return workdir
    absolute = workdir.absolute()
    return next(path for path in (absolute, *absolute.parents) if path.is_dir())


def _bytes_of_checkpoints(plan: Plan) -> int:
    # A checkpoint is written before the oldest is removed, there may be a recovery checkpoint, and
    # the best parameters exist twice for a moment. With averaging, only three checkpoints and the
    # permanent ones have the optimizer state.
    state, settings = abstract_state(plan.config, plan.model, plan.mesh), plan.config.checkpoint
    parameter_bytes = _num_bytes((state.params, state.ema))
    num_permanent = plan.last_step // settings.keep_every if settings.keep_every else 0
    num_existing = len(steps_of_run(plan.workdir, CHECKPOINTS))
    num_due = -(-plan.last_step // settings.every_steps) if settings.every_steps else settings.keep
    num_missing = max(1, min(settings.keep, num_due) + num_permanent + 2 - num_existing)
    num_complete = num_missing if settings.average == 1 else min(num_missing, 3 + num_permanent)
    size = num_complete * _num_bytes(state) + (num_missing - num_complete) * parameter_bytes
    return size + 2 * _num_bytes(state.evaluated) * (settings.keep_best and plan.has_dev)


def _num_bytes(tree: object) -> int:
    return sum(array.size * array.dtype.itemsize for array in jax.tree.leaves(tree))


def _lines(plan: Plan, requested: Config) -> Iterator[str]:
    data, last_step = plan.config.data, plan.last_step
    saved_step = max(steps_of_run(plan.workdir, CHECKPOINTS), default=0)
    if saved_step >= last_step:
        yield f"{plan.workdir} has reached its last step, {last_step:,}: training would do nothing"
    else:
        action = f"resumes {plan.workdir}" if saved_step else f"begins a run in {plan.workdir}"
        epochs = (last_step - saved_step) / plan.batches.steps_per_epoch
        yield f"{action}: steps {saved_step + 1:,} to {last_step:,}, {epochs:,.1f} epochs"
    if resolved := differences(requested, plan.config):
        yield f"open choices resolved: {format_differences(resolved)}"
    yield from describe_corpus(plan.batches).split("\n")
    yield from (f"warning: {text}" for _, text in plan.health.news(History()))
    vocab_size = len(plan.vocabulary)
    parameters = num_parameters(plan.config.model, vocab_size)
    yield f"{parameters:,} parameters, with a vocabulary of {vocab_size:,} entries"
    yield (
        f"at most {data.source_tokens_per_step:,} source and {data.target_tokens_per_step:,} "
        "target positions per step, including padding"
    )
    device = plan.mesh.devices.flat[0]
    yield (
        f"at least {gib(plan.memory.total)} of memory on each of {plan.mesh.size} "
        f"{device.platform} device(s), which has {gib(memory_of_a_device(plan.mesh))}; the "
        "compiled step may need twice as much, which --compile-only measures"
    )
    if saved_step < last_step:
        settings, workdir = plan.config.checkpoint, plan.workdir
        schedule = f"every {settings.every_steps:,} steps" if settings.every_steps else "at the end"
        yield (
            f"{workdir} would contain config.json, the vocabulary, log.jsonl, TensorBoard events, "
            f"and checkpoints {schedule}, of which {settings.keep} are kept: at most "
            f"{gib(_bytes_of_checkpoints(plan))}"
        )
    yield "all checks have passed; only tokenized text remains, in the cache"
