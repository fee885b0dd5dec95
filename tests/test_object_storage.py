"""Runs, corpora and caches in a bucket, on the servers of `tests.object_stores`."""

import gzip
import signal
import sys
import time
from itertools import count
from pathlib import Path
from unittest.mock import Mock

import jax
import numpy as np
import pytest
from rich.console import Console

from t2t_jax import UserError, load, run_grid, train
from t2t_jax.commands.entry import entry_command
from t2t_jax.commands.train import train_command
from t2t_jax.config import DataConfig
from t2t_jax.data import cache
from t2t_jax.data.batching import Batches
from t2t_jax.data.corpus import open_corpus
from t2t_jax.data.tokenized import prepare_pairs, prepare_vocabulary
from t2t_jax.extras.shards import pieces as shard_pieces
from t2t_jax.run.dry_run import dry_run
from t2t_jax.run.job import JobRecord
from t2t_jax.run.log import RunLog
from t2t_jax.run.preparing import make_plan
from t2t_jax.sweep.launchers import Cluster
from t2t_jax.system import bucket, lock, mirror
from t2t_jax.system.atomic_file import open_atomic, write_whole
from t2t_jax.system.bucket import BucketPath, as_path, on_this_machine
from t2t_jax.system.exit_codes import IO_ERROR, exit_code_of
from t2t_jax.system.mirror import mirror_of, mirrored
from t2t_jax.system.records import append_line, read_records
from t2t_jax.system.signals import StopSignal
from t2t_jax.tasks import task_of
from t2t_jax.training.checkpoint_files import steps_in
from tests.object_stores import *  # noqa: F403
from tests.object_stores import FAILURES, forget_connections, in_bucket, on_gs, on_s3
from tests.programs import run_python
from tests.refusals import refused
from tests.trained import account, bits
from tests.training.test_checkpoint import _checkpoints, _state

pytestmark = pytest.mark.thorough

STEPS = 4


class Killed(BaseException):
    """Stands for the end of the process: nothing of the run may catch it."""


@pytest.fixture(scope="session")
def config(tiny_run):
    fields = {"training.num_train_steps": STEPS, "evaluation.every_steps": 2}
    return tiny_run.config.replace(fields)


@pytest.fixture(scope="session")  # for both stores
def local(config, tmp_path_factory):
    """The run in a directory."""
    local = tmp_path_factory.mktemp("trained") / "run"
    assert train(config, local).exit_code == 0
    return local


@pytest.fixture(scope="module")
def trained(store, config):
    """The same run after kills and failures, in a bucket."""
    there = in_bucket(store, "trained")
    with pytest.MonkeyPatch.context() as patch:
        # The best is in the store, its record is not.
        patch.setattr(RunLog, "evaluation", Mock(side_effect=Killed))
        with pytest.raises(Killed):
            train(config, there)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "delay", 0.01)
        assert train(config, there).exit_code == 0
    return there


def _put(local: Path, target: Path) -> None:
    files = [path for path in local.rglob("*") if path.is_file()]
    bucket.send_files({path: target / path.relative_to(local) for path in files})


# Paths.


def test_a_name_becomes_a_path_of_its_own_kind(tmp_path):
    assert type(as_path(str(tmp_path))) is type(tmp_path)
    there = as_path("s3://bucket/runs/base")
    assert [str(path) for path in (there, there / "best" / "4", there.parent)] == [
        "s3://bucket/runs/base",
        "s3://bucket/runs/base/best/4",
        "s3://bucket/runs",
    ]
    assert isinstance(there.with_suffix(".log"), BucketPath)
    assert on_this_machine(tmp_path) == tmp_path
    assert not isinstance(on_this_machine(there), BucketPath)


def test_objects_answer_as_files_do(place):
    assert not place.exists()
    with pytest.raises(FileNotFoundError):
        list(place.iterdir())
    (place / "empty").mkdir(parents=True)
    with pytest.raises(FileExistsError):
        (place / "empty").mkdir()
    write_whole(place / "text", "one\ntwö\n".encode())
    assert place.is_dir()
    assert (place / "empty").is_dir()
    assert (place / "text").is_file()
    assert (place / "text").stat().st_size == 9
    assert sorted(path.name for path in place.iterdir()) == ["empty", "text"]
    assert [*place.glob("t*")] == [place / "text"]
    with (place / "text").open(encoding="utf-8") as file:
        assert file.readlines() == ["one\n", "twö\n"]
    with pytest.raises(OSError, match="call write_bytes"):
        (place / "text").open("w")
    with pytest.raises(ZeroDivisionError), open_atomic(place / "text") as file:
        file.write(bytes(1 // 0))
    (place / "log").write_bytes(b'{"a": 1}\n{"a"')
    append_line(place / "log", {"a": 2})  # on a line of its own
    assert read_records(place / "log", dict[str, int]) == [{"a": 1}, {"a": 2}]
    (place / "log").unlink()
    renamed = place.rename(place.with_name("renamed"))
    assert not place.exists()
    assert (renamed / "text").read_text() == "one\ntwö\n"
    (renamed / "text").unlink()
    (renamed / "text").unlink(missing_ok=True)


# What the store does.


@pytest.mark.usefixtures("impatient")
def test_answers_of_500_are_asked_for_again_and_end_in_one_line(store, place, monkeypatch):
    store.failures = 2
    (place / "file").write_bytes(b"x")
    store.failures = 1
    assert (place / "file").read_bytes() == b"x"
    monkeypatch.setattr(store, "failures", 10**6)
    with pytest.raises(UserError, match=r"s3?://bucket/.*It failed") as refusal:
        write_whole(place / "file", b"x")
    assert exit_code_of(refusal.value) == IO_ERROR


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("size", [1, 6 << 20, 51 << 20], ids=["whole", "file in parts", "in parts"])
def test_a_bucket_that_is_not_there_is_told_whatever_is_sent(store, size, tmp_path):
    (tmp_path / "file").write_bytes(bytes(size))
    there = as_path(f"{store.scheme}://none/file")
    with pytest.raises(UserError, match=r"there is no bucket .*none; make it"):
        bucket.send_files({tmp_path / "file": there})
    with pytest.raises(UserError, match=r"there is no bucket .*none; make it"):
        there.write_bytes(bytes(size))
    with (
        pytest.raises(UserError, match=r"there is no bucket .*none; make it"),
        mirrored(there, StopSignal()),
    ):
        pass


@pytest.mark.usefixtures("impatient")
def test_what_may_not_be_read_is_an_error_of_permissions(store, place, monkeypatch):
    monkeypatch.setattr(store, "failures", 10**6)
    monkeypatch.setattr(store, "status", "403 Forbidden")
    denied = b"<Error><Code>AccessDenied</Code><Message>Denied.</Message></Error>"
    monkeypatch.setitem(FAILURES, "s3", (denied, "application/xml"))
    for request in (place.stat, place.read_bytes, place.objects, lambda: place.write_bytes(b"x")):
        with pytest.raises(PermissionError, match=f"{store.scheme}://bucket/"):
            request()
    if store.scheme == "gs":  # S3 has no such answer
        monkeypatch.setattr(store, "status", "401 Unauthorized")
        with pytest.raises(UserError, match=r"It failed.*GOOGLE_APPLICATION_CREDENTIALS"):
            place.read_bytes()


@pytest.fixture
def fresh_connection():
    """Another connection than other tests have, with the settings of the moment."""
    forget_connections()
    yield
    forget_connections()


REFUSALS = {
    "no credentials": (
        dict.fromkeys(["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]),
        "credentials.*AWS_ACCESS_KEY_ID",
    ),
    "no network": (
        dict.fromkeys(["AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST"], "http://127.0.0.1:1"),
        "127.0.0.1:1.*check the network",
    ),
}


@pytest.mark.usefixtures("impatient", "fresh_connection")
@pytest.mark.parametrize(("settings", "told"), REFUSALS.values(), ids=REFUSALS.keys())
def test_a_store_that_cannot_be_reached_is_one_line(store, settings, told, monkeypatch, tmp_path):
    if store.scheme == "gs" and None in settings.values():
        pytest.skip("the server of Google's protocol asks for no credentials")
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable, value in settings.items():
        monkeypatch.setenv(variable, value) if value else monkeypatch.delenv(variable)
    with refused(match=told):
        load(f"{store.scheme}://bucket/run")


@pytest.mark.usefixtures("fresh_connection")
@pytest.mark.parametrize(
    ("scheme", "package", "extra"), [("s3", "s3fs", "s3"), ("gs", "gcsfs", "gcs")]
)
def test_a_missing_package_is_named_with_its_extra(scheme, package, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, scheme, raising=False)
    with pytest.raises(UserError, match=rf"{package}, .*: pip install -e '.*\[{extra}\]'"):
        load(f"{scheme}://bucket/run")


# The lock.


def test_a_lock_keeps_others_out_and_goes_with_its_owner(place):
    with lock.holding(place / "lock", "7"):
        assert (place / "lock").read_text().split()[0] == "7"
        with pytest.raises(BlockingIOError), lock.holding(place / "lock", "8"):
            pass
    assert not (place / "lock").exists()


def test_the_lock_of_a_process_that_was_killed_here_is_taken_over(place):
    program = """
import os, sys
from t2t_jax.system import bucket, lock

with lock.holding(bucket.as_path(sys.argv[1]), "7"):
    os.kill(os.getpid(), 9)
"""
    run_python("-c", program, place / "lock", code=-9)
    assert (place / "lock").exists()
    with lock.holding(place / "lock", "8"):
        assert (place / "lock").read_text().split()[0] == "8"


def test_the_lock_of_another_machine_is_taken_over_once_it_is_silent(place, monkeypatch):
    monkeypatch.setattr(lock, "_TIMEOUT_SECONDS", 0.2)
    (place / "lock").write_bytes(b"7 elsewhere/1-1 0")
    beats = (f"7 elsewhere/1-1 {beat}" for beat in count())
    with monkeypatch.context() as patch:
        patch.setattr(lock, "_content_of", lambda path: next(beats))
        with pytest.raises(BlockingIOError), lock.holding(place / "lock", "8"):
            pass
    with lock.holding(place / "lock", "8"):
        assert (place / "lock").read_text().startswith("8 ")


# Corpora and caches.


def test_a_corpus_in_a_bucket_is_that_of_the_directory(place, tiny_run):
    _put(tiny_run.folder / "corpus", place)
    (place / "train.en").rename(place / "was")
    (place / "train.en.gz").write_bytes(gzip.compress((place / "was").read_bytes()))
    here, there = (
        open_corpus(DataConfig(corpus=f"text:{folder}"))
        for folder in (tiny_run.folder / "corpus", place)
    )
    assert here.splits == there.splits
    assert here.fingerprint("train") == there.fingerprint("train")
    assert here.lines("dev") == there.lines("dev")
    with pytest.raises(UserError, match=r"corpus directory .*://bucket/nothing does not exist"):
        open_corpus(DataConfig(corpus=f"text:{place.with_name('nothing')}"))


def test_machines_share_a_cache_in_a_bucket(place, config, tmp_path, monkeypatch, capsys):
    shared = config.replace({"data.cache_dir": str(place)}).data
    corpus, made = open_corpus(shared), []
    monkeypatch.setattr(
        cache, "send_tree", lambda *a, **o: (made.append(1), bucket.send_tree(*a, **o))
    )
    splits = []
    for machine in ("one", "two"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / machine))
        splits.append(prepare_pairs(shared, corpus, prepare_vocabulary(shared, corpus), "dev"))
    assert len(made) == 2  # the vocabulary and the tokens, by the first machine
    np.testing.assert_array_equal(splits[0].source_tokens, splits[1].source_tokens)
    tokens = next(place.glob("tokens-*/source_tokens.npy"))
    tokens.write_bytes(tokens.read_bytes()[:-1] + b"\xff")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "three"))
    prepare_pairs(shared, corpus, prepare_vocabulary(shared, corpus), "dev")
    assert "source_tokens.npy is not what was written" in capsys.readouterr().err
    assert len(made) == 3


@pytest.mark.usefixtures("impatient")
def test_shards_and_their_pieces_may_be_in_a_bucket(
    store, tiny_run, place, config, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(shard_pieces, "_RETRY_SECONDS", 0.01)
    found = []
    tiny_run.in_shards(tmp_path / "text")
    _put(tmp_path / "text", place / "text")
    for folder in (tmp_path, place):
        changes = {
            "data.corpus": f"shards:{folder}/text/{{split}}-*.{{language}}",
            "data.cache_dir": str(folder / "cache"),
            "data.window": 2,
        }
        data = config.replace(changes).data
        corpus = open_corpus(data)
        vocabulary = prepare_vocabulary(data, corpus)
        text = task_of(corpus.name).train_text(config, vocabulary)
        pieces = corpus.parts["train"].pieces(data, vocabulary, text)
        batches = Batches(pieces, data, 0)
        if folder is place:
            monkeypatch.setattr(store, "failures", {"s3": 5, "gs": 99}[store.scheme])
        found.append([jax.tree.leaves(batches(step)) for step in range(6)])
    for here, there in zip(*found, strict=True):
        for one, other in zip(here, there, strict=True):
            np.testing.assert_array_equal(one, other)
    assert "); retrying for up to ten minutes" in capsys.readouterr().err
    piece = next((place / "cache").glob("pieces-*/00001-0.npy"))
    piece.write_bytes(piece.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"00001-0.npy is damaged"):
        pieces.open(1)
    piece.unlink()
    with pytest.raises(UserError, match=r"00001-0.npy is missing"):
        pieces.open(1)


# Runs.


def test_kills_failures_and_a_slow_store_change_nothing(trained, local):
    assert account(trained) == account(local)
    assert not (trained / ".lock").exists()
    assert [*trained.glob("events*")]


def test_a_run_is_published_in_a_bucket_and_opens_there(trained, local, place, capsys):
    published = ["publish", str(trained), str(place), "--licence", "mit", "--with-state"]
    assert entry_command(published).run() == 0
    assert capsys.readouterr().out.startswith(f"{place} contains the run;")
    assert bits(place) == bits(local)
    assert steps_in(place / "checkpoints") == [STEPS]
    with pytest.raises(UserError, match="exists; choose another destination, or remove"):
        entry_command(published).run()


@on_s3
def test_commands_take_a_run_in_a_bucket(trained, capsys, tmp_path):
    there = trained
    assert entry_command(["report", "--workdir", str(there)]).run() == 0
    assert (there / "report.md").read_text().startswith(f"# Report on {there}")
    assert "Productive steps: 4." in capsys.readouterr().out
    assert entry_command(["watch", str(there)]).run() == 0
    assert "4 / 4" in capsys.readouterr().out
    (tmp_path / "lines").write_text("Hello\nWorld\n")
    target = there.with_name("translated")
    flags = ["--workdir", str(there), "--input", str(tmp_path / "lines"), "--output", str(target)]
    assert entry_command(["translate", *flags]).run() == 0
    assert target.read_bytes().count(b"\n") == 2
    assert train_command(["--workdir", str(there)]).workdir == there
    with pytest.raises(UserError, match="copy it into the bucket afterwards"):
        entry_command(["data", "multi30k-en-de", str(there.with_name("corpus"))]).run()


def test_a_dry_run_tries_the_bucket_and_leaves_no_object(config, place):
    assert "all checks have passed" in [*dry_run(config, place)][-1]
    assert place.objects() == []


@on_s3
def test_a_damaged_checkpoint_is_set_aside(local, config, place, capsys):
    _put(local, place)  # as a run that is copied into a bucket
    (place / "checkpoints/4/origin/metadata").write_bytes(b"{}")
    with pytest.raises(UserError, match=r"4 cannot be read.*the one before it is step=2"):
        load(place, average=1)
    capsys.readouterr()
    assert train(config, place).exit_code == 0
    assert f"it is now {mirror_of(place)}/damaged" in capsys.readouterr().err
    assert (place / "damaged/4/_CHECKPOINT_METADATA").exists()
    assert steps_in(place / "checkpoints") == [2, 4]


@on_s3
def test_checkpoints_for_averages_keep_only_their_parameters(config, place):
    counts = {"checkpoint.keep": 3, "checkpoint.average": 3, "checkpoint.every_steps": 1}
    assert train(config.replace(counts), place, until=3).exit_code == 0
    assert train(config.replace(counts), place).exit_code == 0
    assert steps_in(place / "checkpoints") == [2, 3, 4]
    whole = [n for n in (2, 3, 4) if (place / f"checkpoints/{n}/progress").is_dir()]
    assert whole == [3, 4]
    assert load(place).steps == (2, 3, 4)


# A store that is away; `tests/system/test_mirror.py` has the mirror itself.


@pytest.fixture
def steady(config, tiny_run):
    return config.replace({**tiny_run.without_dev, "training.num_train_steps": 6})


@on_s3
@pytest.mark.usefixtures("impatient")
def test_a_signal_ends_a_run_whose_store_is_away_with_its_own_code(
    store, steady, place, monkeypatch, capsys
):
    monkeypatch.setattr(mirror, "_PATIENCE_SECONDS", 3600.0)
    monkeypatch.setattr(mirror, "_PATIENCE_SECONDS_STOPPED", 0.1)
    monkeypatch.setattr(mirror, "_LEAST_SECONDS", 0.1)
    monkeypatch.setattr(lock, "_RELEASE_SECONDS", 0.1)
    with monkeypatch.context() as patch:

        def stopped(self, step):
            if step == 3:
                store.failures = 10**6
                signal.raise_signal(signal.SIGTERM)
            note(self, step)

        note = JobRecord.step
        patch.setattr(JobRecord, "step", stopped)
        assert train(steady, place).exit_code == 128 + signal.SIGTERM
    store.failures = 0
    assert "lacks the end of the run" in capsys.readouterr().err
    assert 3 in steps_in(mirror_of(place) / "checkpoints")  # for the next start
    assert 3 not in steps_in(place / "checkpoints")
    assert train(steady, place).exit_code == 0
    assert f"resumes from {mirror_of(place)}" in capsys.readouterr().err
    assert steps_in(place / "checkpoints") == [4, 6]


def test_several_processes_are_refused_in_s3(steady, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(UserError, match=r"s3://bucket/run is in S3, .* or gs://BUCKET/NAME"):
        make_plan(steady, as_path("s3://bucket/run"))


@on_gs
@pytest.mark.usefixtures("impatient")
def test_a_lost_save_is_one_warning_and_an_error_if_it_is_the_last(
    store, place, monkeypatch, capsys
):
    checkpoints = _checkpoints(place)
    checkpoints.save(_state(1, 1))
    assert checkpoints.wait() == 1
    monkeypatch.setattr(store, "failures", 10**6)
    for step in (2, 3):
        assert checkpoints.save(_state(step, step)) is None
    assert capsys.readouterr().err.count("the training continues without it") == 1
    with pytest.raises(UserError, match="cannot be written") as refusal:
        checkpoints.close()
    assert exit_code_of(refusal.value) == IO_ERROR
    store.failures = 0
    checkpoints.save(_state(4, 4))
    checkpoints.close()
    assert steps_in(place / "checkpoints") == [1, 4]


@on_gs
@pytest.mark.faults
def test_two_processes_of_a_run_share_a_bucket(tiny_run, place, tmp_path):
    corpus = tiny_run.without_dev["data.corpus"]
    common = ["--checkpoint.every_steps", "2", f"--data.corpus={corpus}", "--parallel.fsdp", "2"]
    # As `finish` of one process, whose run the two go on with.
    tiny_run.finish(place, "--training.num_train_steps", "2", *common[:3])
    tiny_run.finish(place, "--training.num_train_steps", "6", *common, processes=2)
    tiny_run.finish(tmp_path / "one", "--training.num_train_steps", "6", *common[:3])
    there, here = tiny_run.losses(place), tiny_run.losses(tmp_path / "one")
    np.testing.assert_allclose([*there.values()], [*here.values()], rtol=1e-5)
    assert (place / "checkpoints/6/commit_success.txt").exists()  # Orbax has written it
    bucket.fetch_tree(place, tmp_path / "copy")
    assert bits(place, average=1) == bits(tmp_path / "copy", average=1)
    tiny_run.finish(place, "--training.num_train_steps", "8", *common[:3])
    assert load(place, average=1).steps == (8,)


@pytest.mark.faults
@pytest.mark.parametrize("when", ["while one is sent", "with the store away"])
def test_a_program_that_is_killed_goes_on_in_a_bucket(tiny_run, store, place, tmp_path, when):
    place /= when.replace(" ", "_")
    here = mirror_of(place)

    def is_time():
        if when == "while one is sent":
            store.delay = 0.02
            return any(True for _ in place.glob("checkpoints/*/*/*"))
        if not store.failures and (log := place / "log.jsonl").exists() and log.read_bytes():
            store.failures = 10**6
        return len([*here.glob("checkpoints/*[0-9]")]) > 1

    (program,) = tiny_run.start(place)
    try:
        while not is_time():
            assert program.poll() is None
            time.sleep(0.02)
    finally:
        program.kill()
        program.communicate()
        store.failures, store.delay = 0, 0.0
    assert here.exists()
    tiny_run.finish(place)
    tiny_run.finish(tmp_path / "undisturbed")
    assert tiny_run.losses(place) == tiny_run.losses(tmp_path / "undisturbed")
    assert bits(place) == bits(tmp_path / "undisturbed")
    assert not here.exists()


@pytest.mark.faults
def test_the_processes_of_a_grid_train_in_a_bucket(config, place, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    outcome = run_grid({"base": config}, place, console=Console(quiet=True))
    assert [row.variant for row in outcome.rows] == ["base"]
    assert (place / "table.md").is_file()
    assert (place / "table.png").is_file()
    assert (place / "base/seed0/result.json").is_file()
    assert (tmp_path / f"t2t_jax/buckets/{str(place).replace('://', '/')}/base").is_dir()
    with pytest.raises(UserError, match="choose a directory that the nodes share"):
        Cluster(place, ["timeout_min=1"])
