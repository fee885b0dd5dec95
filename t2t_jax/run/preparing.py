"""Prepare a run: check its config, and create everything that the first step needs."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import jax
from jax.sharding import Mesh

import t2t_jax.workdir as run_files
from t2t_jax.config import Config
from t2t_jax.config.corpus_name import BUNDLED, OWN
from t2t_jax.config.registered import check_registered_parts, registered_parts
from t2t_jax.data.batching import Batches, describe_corpus
from t2t_jax.data.corpus import Corpus, open_corpus
from t2t_jax.data.mixing import mixed_parts
from t2t_jax.data.parts import Engine, Parts
from t2t_jax.data.rows import BatchShape, Examples
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.errors import OF_TRAINING, UserError, check_installed, warn
from t2t_jax.modules.models import make_model
from t2t_jax.modules.named_functions import function_problems
from t2t_jax.modules.network import Network, declared_parameters
from t2t_jax.parallel.devices import within_memory
from t2t_jax.parallel.jax_settings import described_options
from t2t_jax.parallel.mesh import BatchLayout, batch_layout, described_slices
from t2t_jax.parallel.processes import bound_together, check_same, locked
from t2t_jax.run.evaluation import prepare_evaluation
from t2t_jax.run.health import Health, corpus_figures
from t2t_jax.run.history import reason_to_stop
from t2t_jax.run.hooks import Hooks
from t2t_jax.run.job import JobRecord
from t2t_jax.run.log import RunLog
from t2t_jax.run.own_parts import compare_own_parts
from t2t_jax.run.parts import NO_PARTS, RunParts
from t2t_jax.run.progress import PhaseTimer
from t2t_jax.run.provenance import provenance, record_provenance, without_files
from t2t_jax.run.start import initial_run, initial_state, initial_vocabulary
from t2t_jax.run.turns import in_turn
from t2t_jax.run.watchdog import Watchdog
from t2t_jax.system.mirror import mirrored
from t2t_jax.system.quiet import orbax_kept_quiet
from t2t_jax.system.signals import StopSignal
from t2t_jax.tasks import task_of
from t2t_jax.tasks.task import Task, predicted_by
from t2t_jax.training.averaging import check_average
from t2t_jax.training.checkpoint import Checkpoints
from t2t_jax.training.origin import Identity
from t2t_jax.training.recipe import make_optimizer
from t2t_jax.training.settling import settled
from t2t_jax.training.state import TrainState
from t2t_jax.training.step import abstract_batch, check_functions, training_mesh
from t2t_jax.training.step_memory import TrainingMemory, check_memory


@dataclass(frozen=True)
class Plan:
    """A checked training run before its directory changes: data, vocabulary, model and memory."""

    workdir: Path
    config: Config
    """The config with all open choices resolved, such as "auto"."""
    mesh: Mesh
    corpus: Corpus
    task: Task
    vocabulary: Vocabulary
    batches: Batches
    health: Health
    """The health rules that check the log."""
    model: Network
    memory: TrainingMemory
    """The minimum memory of a step."""
    fingerprints: Mapping[str, str]
    """The hashes of the vocabulary and the training text, which checkpoints record."""
    load_initial_run: Callable[[], run_files.StoredRun | None]
    """A function that returns the `initial_run`; it opens the run once."""
    parts: RunParts

    @property
    def has_dev(self) -> bool:
        """Return whether the corpus has a dev split."""
        return "dev" in self.corpus.splits

    @property
    def last_step(self) -> int:
        """Return the last training step of the run, `training.num_train_steps`."""
        return self.config.training.num_train_steps

    def layout(self, shape: BatchShape) -> BatchLayout:
        """Return the layout of a batch on the devices."""
        return _layout(self.config, self.mesh, shape)


@dataclass(frozen=True)
class Run(Plan):
    """A run that is ready for its next step: its directory is locked, its files are open."""

    state: TrainState
    """The state before the next step."""
    checkpoints: Checkpoints
    log: RunLog
    job: JobRecord
    progress: PhaseTimer
    stop: StopSignal
    hooks: Hooks

    @property
    def reason_to_stop(self) -> str | None:
        """Return why early stopping ends the run, or None if the run continues."""
        return reason_to_stop(self.config.training, self.log.history.evaluations)


def make_plan(config: Config, workdir: Path, parts: RunParts = NO_PARTS) -> Plan:
    """Make and check the plan of a run, without writing to its directory.

    Raises:
      UserError: the config, the corpus, the directory or a function of `parts` is invalid, or a
        package of the extra `train` is not installed.
    """
    check_installed("train", "training", *OF_TRAINING)
    if parts.data is not None:
        name = parts.data.name if isinstance(parts.data, Corpus) else OWN
        config = config.replace({"data.corpus": name})
    check_registered_parts(config)
    if jax.process_count() > 1 and str(workdir).startswith("s3:"):
        raise UserError(
            f"{workdir} is in S3, which supports only runs of one process; name a directory that "
            "all hosts share, or gs://BUCKET/NAME"
        )
    stored = run_files.check_workdir(config, workdir)
    mesh = training_mesh(config.parallel)
    config = settled(config, mesh, stored)
    _check_functions(config, workdir, is_resumed=stored is not None)
    if stored is None or config.checkpoint != stored.checkpoint:
        check_average(config)
    load_initial_run = cache(partial(initial_run, config))
    if stored is None:
        load_initial_run()
    check_memory(config, config.data.vocab_size, mesh)
    # Each process makes a plan, and the processes take turns at the corpus cache.
    with in_turn(config.data):
        corpus = open_corpus(config.data, parts.data)
        task = task_of(corpus.name, corpus.task)
        vocabulary = None if stored is None else run_files.run_vocabulary(config, corpus, workdir)
        if vocabulary is None:
            vocabulary = task.vocabulary(
                config, corpus, initial_vocabulary(config, load_initial_run())
            )
        config = _with_sources(config, vocabulary)
        examples = training_parts(task, config, corpus, vocabulary)
        order_seed = config.training.effective_seed("order_seed")
        batches = Batches(
            examples, config.data, order_seed, lambda shape: _layout(config, mesh, shape).rows
        )
        memory = check_memory(config, len(vocabulary), mesh, batches.shapes)
        _check_dev(config, corpus, vocabulary)
    model = make_model(config, len(vocabulary), mesh)
    shape = max(batches.shapes)
    batch = abstract_batch(_layout(config, mesh, shape), model.example(), *shape[1:])
    check_functions(config, model, mesh, batch, parts.metrics)
    return Plan(
        workdir=workdir,
        config=config,
        mesh=mesh,
        corpus=corpus,
        task=task,
        vocabulary=vocabulary,
        batches=batches,
        health=Health(config, corpus_figures(batches)),
        model=model,
        memory=memory,
        fingerprints=run_files.fingerprints(corpus, vocabulary),
        load_initial_run=load_initial_run,
        parts=parts,
    )


@contextmanager
def open_run(
    config: Config, workdir: Path, mirror_dir: Path | None = None, parts: RunParts = NO_PARTS
) -> Iterator[Run]:
    """Open a run for its next step, and close its files at the end of the context.

    Args:
      mirror_dir: the parent of the local copy of a run in a bucket.

    Raises:
      UserError: the config, the corpus or the directory is invalid, another program trains in the
        directory, or every checkpoint of the run is unreadable.
    """
    progress = PhaseTimer()
    plan = make_plan(config, workdir, parts)
    check_same(shared_facts(plan))
    contents = plan.config, plan.corpus, plan.vocabulary
    watchdog = Watchdog(workdir, progress, plan.config.parallel.hang_minutes)
    has_peers = jax.process_count() > 1  # all of which write to the bucket
    with (
        locked(workdir),
        StopSignal() as stop,
        watchdog,
        nullcontext(workdir) if has_peers else mirrored(workdir, stop, mirror_dir) as folder,
    ):
        run_files.begin_run(folder, *contents)
        software = provenance(plan.config)
        identity = Identity(plan.config, plan.fingerprints, without_files(software))
        with (
            orbax_kept_quiet(),
            Checkpoints(folder, identity) as checkpoints,
            bound_together(),
            within_memory(),
        ):
            compare_own_parts(plan.config, plan.model, plan.mesh, folder)
            state = initial_state(plan, checkpoints)
            run_files.claim(folder, *contents)  # write the fields that may change, after all checks
            start = int(state.step)
            if start < plan.last_step:
                run_files.become_ordinary(folder)
                record_provenance(folder, software, start)
            with (
                RunLog(folder, start, plan.last_step, plan.health, predicted_by(plan.task)) as log,
                JobRecord(
                    folder, progress, plan.config, plan.batches, start, identity.provenance
                ) as job,
            ):
                log.checkpoint(start or None)
                log.say(describe_corpus(plan.batches))
                log.look(start)
                watchdog.on_end = job.end
                run = Run(
                    **vars(plan),
                    state=state,
                    checkpoints=checkpoints,
                    log=log,
                    job=job,
                    progress=progress,
                    stop=stop,
                    hooks=Hooks(parts.hooks, progress),
                )
                for line in _introduction(run):
                    log.say(line)
                yield run


def _layout(config: Config, mesh: Mesh, shape: BatchShape) -> BatchLayout:
    rows, *lengths = shape
    return batch_layout(mesh, rows, max(lengths), config.parallel.pass_tokens)


def _check_functions(config: Config, workdir: Path, *, is_resumed: bool) -> None:
    for problem in function_problems(config, executes=False):
        raise UserError(problem)
    for problem in function_problems(config):
        if not is_resumed:
            raise UserError(problem)
        warn(f"{workdir}: {problem}")


def _with_sources(config: Config, vocabulary: Vocabulary) -> Config:
    """Set `source_vocab_size`, of a model that predicts labels, from its vocabulary.

    Raises:
      UserError: the vocabulary and the model differ in the number of source entries.
    """
    if "source" not in config.model.embeddings:
        return config
    size, field = vocabulary.source_size, "model.source_vocab_size"
    if config.data.facts.predicts_labels and config.value(field) is None:
        return config.replace({field: size})
    if size != config.model.entries(len(vocabulary))[config.model.embeddings["source"]]:
        raise UserError(
            f"{field}={config.value(field)}, but the vocabulary has "
            f"{size} entries for sources; leave that field out, or give training.init_from a run "
            "whose vocabulary has as many"
        )
    return config


def training_parts(
    task: Task, config: Config, corpus: Corpus, vocabulary: Vocabulary, engine: Engine = map
) -> Examples | Parts:
    """Return the training data: examples in memory, or parts of a larger corpus.

    Args:
      engine: a `map` function that tokenizes shards without a cache entry.

    Raises:
      UserError: the train split is missing or unreadable.
    """
    if corpus.components and corpus.parts["train"].shards:
        parts_of = partial(training_parts, task, config, vocabulary=vocabulary, engine=engine)
        parts = [(parts_of(corpus=component), weight) for component, weight in corpus.components]
        return mixed_parts(parts, config.data.window)
    text_rules = task.train_text(config, vocabulary)
    pieces = corpus.parts["train"].pieces if "train" in corpus.parts else None
    if text_rules is None or pieces is None:
        return task.training_examples(config, corpus, vocabulary)
    return pieces(config.data, vocabulary, text_rules, engine)


def _check_dev(config: Config, corpus: Corpus, vocabulary: Vocabulary) -> None:
    if "dev" in corpus.splits:
        prepare_evaluation(config, corpus, vocabulary, "dev")
        return
    patience = config.training.stop_after_evaluations_without_gain
    if patience is not None:
        raise UserError(
            f"training.stop_after_evaluations_without_gain={patience} has no effect, as "
            f"{corpus.name} has no dev split; add one, or leave the field out"
        )


def shared_facts(plan: Plan) -> dict[str, str]:
    """Return the config and the hashes of files, which all processes must share, by description."""
    parts = registered_parts(plan.config).values()
    # These fields may differ by host.
    host_placeholders = {"data.corpus": BUNDLED, "data.cache_dir": "", "data.prefetch": 1}
    return {
        "the config": plan.config.replace(host_placeholders).to_json(),
        "the list of functions": plan.parts.names(),
        **{f"the {name}": digest for name, digest in plan.fingerprints.items()},
        **{f"the file of {part.title}": str(part.source) for part in parts},
    }


def _introduction(run: Run) -> Iterator[str]:
    config, training = run.config, run.config.training
    start_step, last_step, schedule_end = int(run.state.step), run.last_step, training.schedule_end
    if training.init_from is not None and not start_step:
        checkpoint = "" if training.init_step is None else f", step {training.init_step}"
        yield f"starts with the parameters and the vocabulary of {training.init_from}{checkpoint}"
    if make_optimizer(config, declared_parameters(run.model)).has_rate:
        yield (
            f"the optimizer {training.optimizer} has its own learning rate, so training."
            "warmup_steps, learning_rate_factor and peak_learning_rate have no effect"
        )
    if not run.has_dev:
        yield f"{run.corpus.name} has no dev split, so there are no scores and no best checkpoint"
    elif training.ema_decay is not None:
        yield f"dev is scored with a moving average of the parameters, decay {training.ema_decay}"
    total = sum(array.size for array in jax.tree.leaves(run.state.params))
    axes = " x ".join(f"{name} {size}" for name, size in run.mesh.shape.items())
    platform, hosts = run.mesh.devices.flat[0].platform, jax.process_count()
    yield (
        f"{total:,} parameters on {run.mesh.size} {platform} device(s) of {hosts} process(es): "
        f"{axes}, in {config.model.compute_dtype}"
    )
    if slices := described_slices(run.mesh):
        yield slices
    if config.parallel.backend == "jit" and (options := described_options(run.mesh)):
        yield f"compiled with {options}"
    if start_step < last_step and run.reason_to_stop is None:
        if schedule_end is not None and schedule_end < last_step:
            yield (
                f"the learning rate is 0 from training.schedule_steps={schedule_end} on, so later "
                "steps do not change the parameters"
            )
        seconds = sum(run.progress.seconds().values())
        yield f"step {start_step + 1:,} of {last_step:,} begins {seconds:.1f} s after the start"
