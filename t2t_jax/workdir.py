"""The run directory: its files, and the checks of which run a directory belongs to.

W/config.json          the config, as resolved from file and flags
W/vocabulary.model     the vocabulary
W/vocabulary.sha256    its hash, as `sha256sum --check` takes it
W/corpus.sha256        the training text's fingerprint
W/registered/          copies of the files that registered functions which the config names; the
                       program never runs these copies: see `config.tables`
W/imported.json        instead of corpus.sha256, for an imported model: the source of the import
W/checkpoints, W/best  see `training.checkpoint`
W/log.jsonl, events    see `run.log`
W/provenance.json      the software that trained the run; see `run.provenance`
W/jobs/NUMBER.json     what the time of each start of the training went to; see `run.job`
W/trackers, W/profile  see `extras.trackers` and `run.profile`
W/launch/              the job that trains it, and the logs of its scheduler: see `extras.launch`
W/scores.jsonl         the scores of commands such as `t2t-jax evaluate`, one evaluation a line
W/model.safetensors    parameters of an exported run; see `training.parameter_file`
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from t2t_jax.config import Config, differences, format_differences
from t2t_jax.config.config import check_recipe
from t2t_jax.config.registry import FILES, UnregisteredError
from t2t_jax.config.tables import TABLES, named_entries
from t2t_jax.data.corpus import Corpus
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.errors import UserError, did_you_mean
from t2t_jax.parallel.processes import is_main
from t2t_jax.system.atomic_file import check_writable, write_whole
from t2t_jax.system.opening import DEMO
from t2t_jax.system.records import COUNT, NUMBER, TIME, Record, append_line, read_records, schema
from t2t_jax.system.regular_file import regular
from t2t_jax.system.sums import SUMS, digest_of

CHECKPOINTS, BEST = "checkpoints", "best"
"""The two directories of a run that have one directory for each checkpoint, named by its step."""
PARAMETERS = "model.safetensors"
"""The file of an exported run with its parameters, which stand for its checkpoints."""
CARD = "README.md"
"""The file of an exported run with a page about it; that of a published run is its model card."""
TRACKERS_FOLDER = "trackers"
"""The directory of a run with how far the run was sent to each tracker."""
LAUNCH = "launch"
"""The directory of a run that has the job that trains it, which is there before the run is."""

CONFIG, VOCABULARY = "config.json", "vocabulary.model"
_CORPUS, _VOCABULARY_HASH = "corpus.sha256", "vocabulary.sha256"
IMPORTED = "imported.json"
"""The file of an imported model that says where it came from."""
_REGISTERED = "registered"
LOG, _SCORES = "log.jsonl", "scores.jsonl"
"""The log of a run, which `run.log` writes, and its evaluations by commands."""
PROVENANCE = "provenance.json"
"""The file of a run that records the software that trained it; see `run.provenance`."""
RECORDS = _CORPUS, IMPORTED, PROVENANCE, _SCORES
"""The files of a run that say where its model comes from and how good it is."""

_FIGURES = ("loss", "nll", "perplexity", "learning_rate", "gradient_norm", "data_wait", "score")
LOG_SCHEMA = schema(
    {"step": COUNT, "of": str},
    dict.fromkeys((*_FIGURES, "target_tokens", "target_tokens_per_second"), NUMBER)
    | dict.fromkeys(("step_seconds", "host_memory_bytes", "device_memory_bytes"), NUMBER)
    | {"time": TIME | None, "measure": dict, "rule": str, "text": str},
)
"""The fields of a record of `log.jsonl` that its readers rely on."""
_SCORES_SCHEMA = schema(
    {},
    dict.fromkeys(("corpus", "split", "date", "hardware"), str)
    | dict.fromkeys(("decoding", "provenance"), Record)
    | {"num_sentences": COUNT, "checkpoints": list[int], "ema_decays": list[float]},
)
CHECKPOINT = "checkpoint"
"""Value of the field `of` of a log record: the state after the record's step is on the disk."""
WARNING = "warning"
"""Value of the field `of` of a log record: a rule of `run.health` found a sign of failure."""
END = "end"
"""Value of the field `of` of a log record: the training ended, for the reason in the field `text`.
The record is removed when the run goes on."""


class StoredRun(NamedTuple):
    """A run in a directory, whose files are read once."""

    workdir: Path
    config: Config
    vocabulary: Vocabulary
    fingerprints: Mapping[str, str]
    """The result of `read_fingerprints`."""


def read_run(workdir: Path) -> StoredRun:
    """Read the config, the vocabulary and the hashes of a run.

    Raises:
      UserError: the directory is no run's, or a file is damaged.
    """
    config, vocabulary = read_config(workdir), read_vocabulary(workdir)
    return StoredRun(workdir, config, vocabulary, read_fingerprints(workdir))


def is_run(workdir: Path) -> bool:
    """Return whether a run was started in a directory."""
    return (workdir / CONFIG).is_file()


def read_config(workdir: Path) -> Config:
    """Read the config of a run; refuse a directory that is no run's, and a damaged config."""
    path = workdir / CONFIG
    if not path.is_file():
        raise _no_run(workdir)
    try:
        return Config.from_json(path.read_text(encoding="utf-8"))
    except UnregisteredError as error:
        raise UserError(f"{path}: {error}{_kept_file(workdir)}") from error
    except ValueError as error:  # UserError and UnicodeDecodeError are
        raise UserError(f"{path}: {error}") from error


def _no_run(workdir: Path) -> UserError:
    if workdir.exists():
        problem = f"{workdir} is not a run directory: it has no {CONFIG}"
        if workdir == Path(DEMO):
            problem += (
                "; it hides the translator of the package, whose name it has; give it another"
            )
        return UserError(problem)
    if workdir == Path(DEMO):  # given as ./demo or demo/
        return UserError(
            f"{workdir} does not exist; the translator of the package is {DEMO}, without /"
        )
    names = [DEMO] if workdir == Path(workdir.name) else []
    with suppress(OSError):
        names += [path.name for path in workdir.parent.iterdir()]
    hint = did_you_mean(workdir.name, names, "check the path")
    return UserError(f"{workdir} does not exist; {hint}")


def _kept_file(workdir: Path) -> str:
    """Describe how to register a config's functions by files that the run keeps; "" without any."""
    files = [file for field in TABLES if (file := _file_of(workdir, field)).is_file()]
    if not files:
        return ""
    different = {file.read_bytes(): str(file) for file in reversed(files)}
    return (
        f"; the run keeps what registered its functions, which nothing runs by itself: read "
        f"{' and '.join(reversed(different.values()))}, and name it in {FILES}"
    )


def _file_of(workdir: Path, field: str) -> Path:
    return workdir / _REGISTERED / f"{field}.py"


def check_registered(config: Config, workdir: Path) -> None:
    """Refuse functions that were registered by other code than that of the run in a directory.

    A file that registered a function may not have changed since the run was started.
    """
    for field, entry in named_entries(config).items():
        kept = _file_of(workdir, field)
        if not (entry.source and kept.is_file()):
            continue
        if not entry.source.is_alike(kept.read_text(encoding="utf-8", errors="replace")):
            raise UserError(
                f"{entry.title} is registered by {entry.source.path}, which is not as it was when "
                f"{workdir} was started ({kept}); bring it back, or choose another --workdir, or "
                f"remove {kept} if the function is the same"
            )


def _keep_registered(config: Config, workdir: Path) -> None:
    """Copy the files that registered a config's functions, unless a run with steps has copies."""
    for field, entry in named_entries(config).items():
        kept = _file_of(workdir, field)
        if entry.source and not (kept.is_file() and _steps(workdir / CHECKPOINTS)):
            kept.parent.mkdir(exist_ok=True)
            write_whole(kept, entry.source.text.encode())


def read_vocabulary(workdir: Path) -> Vocabulary:
    """Read the vocabulary of a run, and check that it is that of the start of the run.

    Raises:
      UserError: the vocabulary is missing or damaged, or is not that of the start of the run.
    """
    path, stored = workdir / VOCABULARY, workdir / _VOCABULARY_HASH
    vocabulary = Vocabulary.load(path)
    expected = _first_word(stored)
    if expected is not None and expected != vocabulary.fingerprint:
        raise UserError(
            f"{path} is damaged, or not the one that the run was started with: its hash is not "
            f"that in {stored.name}; bring back a copy, or remove it: a training makes the same "
            "again from the same training text"
        )
    return vocabulary


def fingerprints(corpus: Corpus, vocabulary: Vocabulary) -> dict[str, str]:
    """Return the hashes that tie a run's checkpoints to its vocabulary and its training text."""
    return {"vocabulary": vocabulary.fingerprint, "corpus": corpus.fingerprint("train")}


def read_fingerprints(workdir: Path) -> dict[str, str]:
    """Read the `fingerprints` of the run in a directory, without those whose file is missing."""
    found = {"corpus": _first_word(workdir / _CORPUS)}
    with suppress(FileNotFoundError):
        # `Vocabulary.fingerprint`, without reading the model a second time.
        found["vocabulary"] = digest_of(workdir / VOCABULARY)
    return {name: fingerprint for name, fingerprint in found.items() if fingerprint is not None}


def _first_word(path: Path) -> str | None:
    """Read the first word of a file, which is a hash; return None if there is no file."""
    try:
        return next(iter(regular(path).read_text(encoding="utf-8", errors="replace").split()), "")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def check_workdir(config: Config, workdir: Path) -> Config | None:
    """Refuse a directory that cannot be this run's, and write nothing.

    A run without a checkpoint has nothing to lose: where its config differs, as after one that
    needed too much memory, this run may take its place.

    Returns:
      The stored config of the run that was started in the directory with this config, and is to
      go on; None for a new run.

    Raises:
      UserError: the directory cannot be written to, is no run's, or has a run with another config
        or an imported model, a run whose checkpoints are lost, or one with more steps than
        `training.num_train_steps`.
    """
    stored = None
    if is_run(workdir):
        _check_was_trained(workdir)
        _check_nothing_lost(workdir)
        stored = read_config(workdir)
        changed = differences(stored, config, only_binding=True)
        if _steps(workdir / CHECKPOINTS):
            check_recipe((workdir / CONFIG).read_text(encoding="utf-8"))
            if changed:
                raise UserError(
                    f"{workdir} holds a run with another config ({format_differences(changed)}); "
                    "choose another --workdir, or leave these fields as they are to go on with it"
                )
            check_registered(config, workdir)
            _check_steps(config, workdir)
        elif changed:
            stored = None
    elif workdir.exists() and (not workdir.is_dir() or not _is_empty(workdir)):
        raise UserError(f"{workdir} exists and is not a run directory; choose another --workdir")
    check_writable(workdir)
    return stored


def _check_was_trained(workdir: Path) -> None:
    """Refuse to continue an imported or exported model, which has no optimiser state."""
    is_imported = (workdir / IMPORTED).exists()
    if is_imported or ((workdir / PARAMETERS).exists() and not _steps(workdir / CHECKPOINTS)):
        raise UserError(
            f"{workdir} holds a model that was {'imported' if is_imported else 'exported'}, and no "
            "training to go on with; choose another --workdir, and start there with "
            f"--training.init-from {workdir}"
        )


def _check_nothing_lost(workdir: Path) -> None:
    """Refuse to begin at step 1 where something proves that there were checkpoints.

    A run makes their directory before anything else of a step is written, and its log has a record
    of every checkpoint that is whole.
    """
    checkpoints, best = workdir / CHECKPOINTS, workdir / BEST
    if _steps(checkpoints):
        return
    log = read_log(workdir)
    proof = [record["step"] for record in log if record["of"] == CHECKPOINT]
    if not checkpoints.exists():
        proof += [record["step"] for record in log if record["step"] > 0]
    if proof or (_steps(best) and not checkpoints.exists()):
        told = f"{workdir / LOG} has step {max(proof):,}" if proof else f"there is {best}"
        raise UserError(
            f"{told}, but {checkpoints} has no checkpoint to go on from; bring that directory back "
            f"from a copy, or choose another --workdir, or remove {LOG} and {BEST}/ as well to "
            "begin again at step 1"
        )


def _check_steps(config: Config, workdir: Path) -> None:
    """Refuse fewer training steps than the run has taken."""
    done, asked = max(_steps(workdir / CHECKPOINTS)), config.training.num_train_steps
    if asked < done:
        raise UserError(
            f"training.num_train_steps={asked}, but {workdir} has already been trained for {done} "
            f"steps; give {done} to leave it as it is, more to train on, or another --workdir"
        )


def _steps(directory: Path) -> list[int]:
    names = (path.name for path in directory.iterdir()) if directory.is_dir() else ()
    return [int(name) for name in names if name.isdecimal()]


def _is_empty(directory: Path) -> bool:
    """Return whether a directory has nothing but hidden files and the job that trains its run.

    A start in a bucket that was killed at once leaves an empty directory of checkpoints.
    """
    return all(
        path.name.startswith(".")
        or path.name == LAUNCH
        or (path.name == CHECKPOINTS and _is_empty(path))
        for path in directory.iterdir()
    )


def run_vocabulary(config: Config, corpus: Corpus, workdir: Path) -> Vocabulary | None:
    """Return the vocabulary of a run that goes on; None if a kill came before it was written.

    Raises:
      UserError: the corpus is not the one that the run was started with.
    """
    stored, vocabulary = workdir / _CORPUS, workdir / VOCABULARY
    if not stored.exists() and not vocabulary.exists():
        return None
    fingerprint = _first_word(stored)
    if fingerprint is None:
        raise UserError(
            f"{stored} is missing, by which a run knows its training text; bring back a copy, or, "
            f"if {config.data.corpus} is certainly the same, write the line "
            f"{corpus.fingerprint('train')} into it"
        )
    if fingerprint != corpus.fingerprint("train"):
        raise UserError(
            f"the training text of {config.data.corpus} is not what {workdir} was started with "
            f"({_CORPUS} in there); restore the files, or the order and weights of a mixture, or "
            "choose another --workdir"
        )
    # A kill may have come between the two files. The same text gives the same vocabulary.
    return read_vocabulary(workdir) if vocabulary.exists() else None


def begin_run(workdir: Path, config: Config, corpus: Corpus, vocabulary: Vocabulary) -> None:
    """Make a directory a run's before anything else is written, so that a kill leaves a run.

    Other processes may have made files by now. The directory has a run only if it was started
    before, and a run with another config, which has no checkpoint, is replaced.
    """
    if is_main() and not (is_run(workdir) and check_workdir(config, workdir)):
        for name in (VOCABULARY, _VOCABULARY_HASH, _CORPUS):
            (workdir / name).unlink(missing_ok=True)
        claim(workdir, config, corpus, vocabulary)


def claim(workdir: Path, config: Config, corpus: Corpus, vocabulary: Vocabulary) -> None:
    """Write the files that make a directory this run's, in process 0.

    The vocabulary comes last, so a directory that has it has the other files, too.
    """
    if not is_main():
        return
    text = config.to_json().encode()
    if (workdir / CONFIG).is_file() and (workdir / CONFIG).read_bytes() != text:
        (workdir / SUMS).unlink(missing_ok=True)  # of a published run
    write_whole(workdir / CONFIG, text)
    _keep_registered(config, workdir)
    if not (workdir / VOCABULARY).exists():
        write_whole(workdir / _CORPUS, f"{corpus.fingerprint('train')}\n".encode())
        write_vocabulary(workdir, vocabulary)


def become_ordinary(workdir: Path) -> None:
    """Remove what a published run has besides its checkpoints, as its training goes on.

    The parameters that were published, their hashes and their card are not those of later steps.
    """
    if is_main() and (workdir / PARAMETERS).is_file():
        for name in (SUMS, CARD, PARAMETERS):  # the parameters last, so that a kill leaves a run
            (workdir / name).unlink(missing_ok=True)


def claim_for_import(workdir: Path, config: Config, vocabulary: Vocabulary, source: Record) -> None:
    """Write the files that make an empty directory that of an imported model.

    The record `source` says where the model came from.
    """
    write_whole(workdir / CONFIG, config.to_json().encode())
    _keep_registered(config, workdir)
    write_whole(workdir / IMPORTED, f"{json.dumps(source, indent=2)}\n".encode())
    write_vocabulary(workdir, vocabulary)


def write_vocabulary(workdir: Path, vocabulary: Vocabulary) -> None:
    """Write the vocabulary of a run, and its hash ahead of it."""
    line = f"{vocabulary.fingerprint}  {VOCABULARY}\n"
    write_whole(workdir / _VOCABULARY_HASH, line.encode())
    vocabulary.save(workdir / VOCABULARY)


def log_signature(workdir: Path) -> object:
    """Return a value that changes when a run's log is written to; None if there is no log yet."""
    try:
        status = (workdir / LOG).stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def read_log(workdir: Path) -> list[Record]:
    """Read the records of a run's log, the oldest first; return [] if there are none yet."""
    return read_records(workdir / LOG, LOG_SCHEMA)


def record_scores(workdir: Path, record: Record) -> None:
    """Add the figures of an evaluation to the run's own, if the directory can be written.

    Models are also scored in places where they are published, which may be read-only.
    """
    with suppress(OSError, UserError):
        append_line(workdir / _SCORES, record)


def read_scores(workdir: Path) -> list[Record]:
    """Read all evaluations that `record_scores` has added, the oldest first."""
    return read_records(workdir / _SCORES, _SCORES_SCHEMA)
