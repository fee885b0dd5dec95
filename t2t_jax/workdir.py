"""Read and write the files of a run directory, and check which run it holds.

W/config.json          the config, as resolved from file and flags
W/vocabulary.model     the vocabulary
W/vocabulary.sha256    the hash of the vocabulary, for `sha256sum --check`
W/corpus.sha256        the fingerprint of the training text
W/registered/          copies of the files that registered parts of the config; the program
                       never runs these copies: see `config.tables`
W/imported.json        the source of an imported model, instead of corpus.sha256
W/checkpoints, W/best  see `training.checkpoint`
W/log.jsonl, events    see `run.log`
W/provenance.json      the software that trained the run; see `run.provenance`
W/jobs/NUMBER.json     how each job of the run spent its time; see `run.job`
W/trackers, W/profile  see `extras.trackers` and `run.profile`
W/launch/              the job that trains the run, and scheduler logs: see `extras.launch`
W/scores.jsonl         scores of commands such as `t2t-jax evaluate`, one evaluation per line
W/model.safetensors    parameters of a saved or exported run; see `saved_model`
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from t2t_jax.config import Config, differences, format_differences
from t2t_jax.config.checks import reading_stored_config
from t2t_jax.config.config import check_recipe
from t2t_jax.config.corpus_name import OWN
from t2t_jax.config.registered import registered_parts
from t2t_jax.config.registry import FILES, UnregisteredError
from t2t_jax.data.corpus import Corpus
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.errors import UserError, did_you_mean
from t2t_jax.parallel.processes import is_main
from t2t_jax.system.atomic_file import check_writable, write_whole
from t2t_jax.system.opening import DEMO
from t2t_jax.system.records import COUNT, NUMBER, TIME, Record, append_line, read_records, schema
from t2t_jax.system.regular_file import regular
from t2t_jax.system.sums import SUMS, digest_of
from t2t_jax.version import RENAMED

CHECKPOINTS, BEST = "checkpoints", "best"
"""The two checkpoint directories of a run; each checkpoint is a subdirectory named by its step."""
PARAMETERS = "model.safetensors"
"""The parameter file of a saved or exported run, which replaces the checkpoints."""
CARD = "README.md"
"""The description of an exported run; in a published run, the model card."""
TRACKERS_FOLDER = "trackers"
"""The directory that records how much of the run each tracker has received."""
LAUNCH = "launch"
"""The directory of the job that trains the run; it exists before the run starts."""

CONFIG, VOCABULARY = "config.json", "vocabulary.model"
_CORPUS, _VOCABULARY_HASH = "corpus.sha256", "vocabulary.sha256"
IMPORTED = "imported.json"
"""The file that records the source of an imported model."""
REGISTERED, PARTS = "registered", "registered/parts.json"
"""Copies of files that registered parts of the config, and the record of these parts."""
LOG, _SCORES = "log.jsonl", "scores.jsonl"
"""The log of a run, which `run.log` writes, and the scores that commands write."""
PROVENANCE = "provenance.json"
"""The file that records the software that trained the run; see `run.provenance`."""
RECORDS = _CORPUS, IMPORTED, PROVENANCE, _SCORES
"""The files that record the origin and the scores of a run's model."""

_FIGURES = ("loss", "nll", "perplexity", "learning_rate", "gradient_norm", "data_wait", "score")
LOG_SCHEMA = schema(
    {"step": COUNT, "of": str},
    dict.fromkeys((*_FIGURES, "target_tokens", "target_tokens_per_second"), NUMBER)
    | dict.fromkeys(("step_seconds", "host_memory_bytes", "device_memory_bytes"), NUMBER)
    | {"time": TIME | None, "measure": dict, "rule": str, "text": str},
)
"""The fields of `log.jsonl` records that readers rely on."""
LOG_FIGURES = {*LOG_SCHEMA.__annotations__, "devices", "nonfinite_steps"}
"""The names in training records; all others are metrics of the user."""
_SCORES_SCHEMA = schema(
    {},
    dict.fromkeys(("corpus", "split", "date", "hardware"), str)
    | dict.fromkeys(("decoding", "provenance"), Record)
    | {"num_sentences": COUNT, "checkpoints": list[int], "ema_decays": list[float]},
)
CHECKPOINT = "checkpoint"
"""Value of `of` in a log record: the checkpoint of the record's step is on disk."""
WARNING = "warning"
"""Value of `of` in a log record: a rule of `run.health` found a sign of failure."""
END = "end"
"""Value of `of` in a log record: the training ended for the reason in `text`. Resuming the run
removes the record."""


class StoredRun(NamedTuple):
    """The config, vocabulary and fingerprints of a run directory."""

    workdir: Path
    config: Config
    vocabulary: Vocabulary
    fingerprints: Mapping[str, str]
    """The result of `read_fingerprints`."""


def read_run(workdir: Path) -> StoredRun:
    """Read the config, the vocabulary and the hashes of a run.

    Raises:
      UserError: the directory holds no run, or a file is damaged.
    """
    config, vocabulary = read_config(workdir), read_vocabulary(workdir)
    return StoredRun(workdir, config, vocabulary, read_fingerprints(workdir))


def is_run(workdir: Path) -> bool:
    """Return whether a directory holds a run."""
    return (workdir / CONFIG).is_file()


def read_config(workdir: Path) -> Config:
    """Read the config of a run; refuse a directory without a run, and a damaged config."""
    path = workdir / CONFIG
    if not path.is_file():
        raise _no_run(workdir)
    try:
        with reading_stored_config():
            return Config.from_json(path.read_text(encoding="utf-8"))
    except UnregisteredError as error:
        raise UserError(f"{path}: {error}{_kept_file(workdir)}") from error
    except ValueError as error:  # includes UserError and UnicodeDecodeError
        raise UserError(f"{path}: {error}") from error


def _no_run(workdir: Path) -> UserError:
    if workdir.exists():
        problem = f"{workdir} is not a run directory: it has no {CONFIG}"
        if workdir == Path(DEMO):
            problem += (
                "; it hides the translator of the package, whose name it has; give it another"
            )
        return UserError(problem)
    if workdir == Path(DEMO):  # the user passed ./demo or demo/
        return UserError(
            f"{workdir} does not exist; the translator of the package is {DEMO}, without /"
        )
    names = [DEMO] if workdir == Path(workdir.name) else []
    with suppress(OSError):
        names += [path.name for path in workdir.parent.iterdir()]
    hint = did_you_mean(workdir.name, names, "check the path")
    return UserError(f"{workdir} does not exist; {hint}")


def _kept_file(workdir: Path) -> str:
    """Describe how to register functions from the copies in the run directory; "" if none exist."""
    copies = sorted((workdir / REGISTERED).glob("*.py"))
    if not copies:
        return ""
    path_of_content = {copy.read_bytes(): str(copy) for copy in reversed(copies)}
    return (
        f"; the run keeps what registered its functions, which nothing runs by itself: read "
        f"{' and '.join(reversed(path_of_content.values()))}, and name it in {FILES} or in "
        "t2t_jax.load(..., register=...)"
    )


def _file_of(workdir: Path, field: str) -> Path:
    old_names = (old for old, row in RENAMED.items() if row.name == f"model.{field}")
    names = (field, *(old.removeprefix("model.") for old in old_names))
    copies = [workdir / REGISTERED / f"{name}.py" for name in names]
    return next(filter(Path.is_file, copies), copies[0])


def check_registered(config: Config, workdir: Path) -> None:
    """Refuse registered functions whose source file has changed since the run started."""
    for field, part in registered_parts(config).items():
        copy = _file_of(workdir, field)
        if not (part.source and copy.is_file()):
            continue
        if not part.source.is_alike(copy.read_text(encoding="utf-8", errors="replace")):
            raise UserError(
                f"{part.title} is registered by {part.source.path}, which is not as it was when "
                f"{workdir} was started ({copy}); bring it back, or choose another --workdir, or "
                f"remove {copy} if the function is the same"
            )


def keep_registered(config: Config, workdir: Path) -> None:
    """Copy the source files that registered a config's functions into the run directory.

    Once the run has checkpoints, existing copies stay.
    """
    for field, part in registered_parts(config).items():
        copy = _file_of(workdir, field)
        if part.source and not (copy.is_file() and _steps(workdir / CHECKPOINTS)):
            copy.parent.mkdir(exist_ok=True)
            write_whole(copy, part.source.text.encode())


def read_vocabulary(workdir: Path) -> Vocabulary:
    """Read the vocabulary of a run, and check it against the stored hash.

    Raises:
      UserError: the vocabulary is missing or damaged, or has changed since the run started.
    """
    path, hash_file = workdir / VOCABULARY, workdir / _VOCABULARY_HASH
    vocabulary = Vocabulary.load(path)
    expected_hash = _first_word(hash_file)
    if expected_hash is not None and expected_hash != vocabulary.fingerprint:
        raise UserError(
            f"{path} is damaged, or not the one that the run was started with: its hash is not "
            f"that in {hash_file.name}; bring back a copy, or remove it: a training makes the same "
            "again from the same training text"
        )
    return vocabulary


def fingerprints(corpus: Corpus, vocabulary: Vocabulary) -> dict[str, str]:
    """Return the hashes of a run's vocabulary and training text, by name."""
    hashes = {"vocabulary": vocabulary.fingerprint, "corpus": corpus.fingerprint("train")}
    # Nothing but its rows identifies a dev split that a program gives.
    is_own = corpus.name == OWN and "dev" in corpus.splits
    return hashes | ({"dev split": corpus.fingerprint("dev")} if is_own else {})


def read_fingerprints(workdir: Path) -> dict[str, str]:
    """Read the hashes of a run's vocabulary and training text, by name, without missing ones."""
    hashes = {"corpus": _first_word(workdir / _CORPUS)}
    with suppress(FileNotFoundError):
        # Equal to `Vocabulary.fingerprint`, without loading the vocabulary.
        hashes["vocabulary"] = digest_of(workdir / VOCABULARY)
    return {name: fingerprint for name, fingerprint in hashes.items() if fingerprint is not None}


def _first_word(path: Path) -> str | None:
    """Read the hash at the start of a file; return None if the file does not exist."""
    try:
        return next(iter(regular(path).read_text(encoding="utf-8", errors="replace").split()), "")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def check_workdir(config: Config, workdir: Path) -> Config | None:
    """Check, without writing, that a run with this config can start or resume in a directory.

    Returns:
      The stored config if the run resumes; None for a new run.

    Raises:
      UserError: the directory is not writable or not a run directory, or it holds an imported model
        or a run with another config, lost checkpoints or too many steps.
    """
    stored_config = None
    if is_run(workdir):
        _check_was_trained(workdir)
        _check_nothing_lost(workdir)
        stored_config = read_config(workdir)
        changes = differences(stored_config, config, only_binding=True)
        if _steps(workdir / CHECKPOINTS):
            check_recipe((workdir / CONFIG).read_text(encoding="utf-8"))
            if changes:
                raise UserError(
                    f"{workdir} holds a run with another config ({format_differences(changes)}); "
                    "choose another --workdir, or leave these fields as they are to go on with it"
                )
            check_registered(config, workdir)
            _check_steps(config, workdir)
        # A run without a checkpoint has nothing to lose, so a run with another config may replace
        # it, for example after the old config needed too much memory.
        elif changes:
            stored_config = None
    elif workdir.exists() and (not workdir.is_dir() or not _is_empty(workdir)):
        raise UserError(f"{workdir} exists and is not a run directory; choose another --workdir")
    check_writable(workdir)
    return stored_config


def _check_was_trained(workdir: Path) -> None:
    is_imported = (workdir / IMPORTED).exists()
    if is_imported or ((workdir / PARAMETERS).exists() and not _steps(workdir / CHECKPOINTS)):
        origin = "imported" if is_imported else "saved or exported"
        raise UserError(
            f"{workdir} holds a model that was {origin}, and no training to go on with; choose "
            f"another --workdir, and start there with --training.init-from {workdir}"
        )


def _check_nothing_lost(workdir: Path) -> None:
    # A run creates the checkpoint directory before it writes any other file of a step, and it logs
    # every complete checkpoint.
    checkpoints, best_dir = workdir / CHECKPOINTS, workdir / BEST
    if _steps(checkpoints):
        return
    log = read_log(workdir)
    steps = [record["step"] for record in log if record["of"] == CHECKPOINT]
    if not checkpoints.exists():
        steps += [record["step"] for record in log if record["step"] > 0]
    if steps or (_steps(best_dir) and not checkpoints.exists()):
        clue = f"{workdir / LOG} has step {max(steps):,}" if steps else f"there is {best_dir}"
        raise UserError(
            f"{clue}, but {checkpoints} has no checkpoint to resume from; bring that directory "
            f"back from a copy, or choose another --workdir, or remove {LOG} and {BEST}/ as well "
            "to begin again at step 1"
        )


def _check_steps(config: Config, workdir: Path) -> None:
    last, steps = max(_steps(workdir / CHECKPOINTS)), config.training.num_train_steps
    if steps < last:
        raise UserError(
            f"training.num_train_steps={steps}, but {workdir} has already been trained for {last} "
            f"steps; give {last} to keep it unchanged, more to train on, or another --workdir"
        )


def _steps(directory: Path) -> list[int]:
    names = (path.name for path in directory.iterdir()) if directory.is_dir() else ()
    return [int(name) for name in names if name.isdecimal()]


def _is_empty(directory: Path) -> bool:
    # A run in a storage bucket that is killed at once leaves an empty checkpoint directory.
    return all(
        path.name.startswith(".")
        or path.name == LAUNCH
        or (path.name == CHECKPOINTS and _is_empty(path))
        for path in directory.iterdir()
    )


def run_vocabulary(config: Config, corpus: Corpus, workdir: Path) -> Vocabulary | None:
    """Return the vocabulary of a resumed run; None if the run was killed before it wrote one.

    Raises:
      UserError: the training text has changed since the run started.
    """
    sha256_file, vocabulary_file = workdir / _CORPUS, workdir / VOCABULARY
    if not sha256_file.exists() and not vocabulary_file.exists():
        return None
    fingerprint = _first_word(sha256_file)
    if fingerprint is None:
        raise UserError(
            f"{sha256_file} is missing, by which a run knows its training text; bring back a copy, "
            f"or, if {config.data.corpus} is certainly the same, write the line "
            f"{corpus.fingerprint('train')} into it"
        )
    if fingerprint != corpus.fingerprint("train"):
        remedy = "restore the files, or the order and weights of a mixture"
        if OWN in (config.data.corpus, read_config(workdir).data.corpus):
            remedy = "give as `data` the same rows in the same order"
        raise UserError(
            f"the training text of {config.data.corpus} is not what {workdir} was started with "
            f"({_CORPUS} in there); {remedy}, or choose another --workdir"
        )
    # The run may have been killed between the two files. The same text gives the same vocabulary.
    return read_vocabulary(workdir) if vocabulary_file.exists() else None


def begin_run(workdir: Path, config: Config, corpus: Corpus, vocabulary: Vocabulary) -> None:
    """Write the files of a new run before any other file, so that a killed run can resume.

    A run that resumes keeps its files. A run with another config and no checkpoint is replaced.
    """
    # Other processes may have written files already.
    if is_main() and not (is_run(workdir) and check_workdir(config, workdir)):
        for name in (VOCABULARY, _VOCABULARY_HASH, _CORPUS):
            (workdir / name).unlink(missing_ok=True)
        claim(workdir, config, corpus, vocabulary)


def claim(workdir: Path, config: Config, corpus: Corpus, vocabulary: Vocabulary) -> None:
    """Write the config, the registered files, the hashes and the vocabulary, in process 0."""
    if not is_main():
        return
    # The vocabulary is written last: if it exists, all files do.
    text = config.to_json().encode()
    if (workdir / CONFIG).is_file() and (workdir / CONFIG).read_bytes() != text:
        (workdir / SUMS).unlink(missing_ok=True)  # the hashes of a published run are outdated
    write_whole(workdir / CONFIG, text)
    keep_registered(config, workdir)
    if not (workdir / VOCABULARY).exists():
        write_whole(workdir / _CORPUS, f"{corpus.fingerprint('train')}\n".encode())
        write_vocabulary(workdir, vocabulary)


def become_ordinary(workdir: Path) -> None:
    """Remove the parameter file, hashes and card of a published run whose training resumes."""
    # These files describe the published step, not later steps.
    if is_main() and (workdir / PARAMETERS).is_file():
        for name in (SUMS, CARD, PARAMETERS):  # parameters last: a killed process can repeat this
            (workdir / name).unlink(missing_ok=True)


def write_vocabulary(workdir: Path, vocabulary: Vocabulary) -> None:
    """Write the hash of a run's vocabulary, then the vocabulary."""
    line = f"{vocabulary.fingerprint}  {VOCABULARY}\n"
    write_whole(workdir / _VOCABULARY_HASH, line.encode())
    vocabulary.save(workdir / VOCABULARY)


def log_signature(workdir: Path) -> object:
    """Return a value that changes with each write to a run's log; None if there is no log."""
    with suppress(OSError):
        stat = (workdir / LOG).stat()
        return stat.st_ino, stat.st_size, stat.st_mtime_ns
    return None


def read_log(workdir: Path) -> list[Record]:
    """Read the records of a run's log, oldest first; [] without a log."""
    return read_records(workdir / LOG, LOG_SCHEMA)


def record_scores(workdir: Path, record: Record) -> None:
    """Append the record of an evaluation to the run's scores, if the directory is writable."""
    # Published models may be in read-only directories.
    with suppress(OSError, UserError):
        append_line(workdir / _SCORES, record)


def read_scores(workdir: Path) -> list[Record]:
    """Read the records of evaluations in the run's file of scores, oldest first."""
    return read_records(workdir / _SCORES, _SCORES_SCHEMA)
