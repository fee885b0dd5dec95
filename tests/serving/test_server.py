"""The server as a program: its socket, its signals, its clients that go away, its reloads."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

import t2t_jax
from t2t_jax.errors import UserError
from t2t_jax.interchange.runs import write_run
from t2t_jax.serving.access import Access
from t2t_jax.serving.server import bound_socket
from t2t_jax.serving.settings import Bounds, RefusedError
from tests.interchange.models import OPTIONS, portable
from tests.serving.conftest import Patient, Quick, running, until

GOLDEN = Path(__file__).parents[1] / "goldens/runs/0.1.0/run"
LINES = ["Open the file", "Close all windows now", "No devices found"]


@pytest.fixture
def program(tmp_path):
    """A server in a process of its own, with a client, the run that it serves, and a later one."""
    for name in ("run", "later"):
        model = portable(OPTIONS["paper"])
        if name == "later":
            model = replace(model, arrays={name: -x for name, x in model.arrays.items()})
        write_run(model, tmp_path / name, {"kind": "test"})
    run = tmp_path / "run"
    command = [sys.executable, "-m", "t2t_jax", "serve", str(run), "--port=0", "--rows=2"]
    command += ["--longest=16", "--warm-up=none", "--split=lines"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            said = process.stdout.readline()
            assert said.startswith("translates en to de at http://127.0.0.1:"), process.stderr
            with httpx.Client(base_url=said.split()[-1], timeout=120) as client:
                yield process, client, run, tmp_path / "later"
        finally:
            process.kill()


def _translated(client, lines=LINES):
    answer = client.post("/translate", json={"q": lines, "source": "en", "target": "de"})
    assert answer.status_code == 200, answer.text
    return answer.json()["translatedText"]


def test_a_server_reloads_without_a_lost_request_and_ends_in_order(program):
    process, client, run, later = program
    older, newer = (t2t_jax.load(one).translate(LINES) for one in (run, later))
    assert older != newer
    assert _translated(client) == older
    (run / "checkpoints").rename(run / "before")
    shutil.copytree(later / "checkpoints", run / "checkpoints")
    stop, found = threading.Event(), []

    def ask():
        while not stop.is_set():
            found.append(_translated(client))

    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(ask) for _ in range(3)]
        for _ in range(3):  # the second and third come while the first is obeyed
            process.send_signal(signal.SIGHUP)
        until(lambda: 't2t_reloads_total{outcome="done"}' in client.get("/metrics").text, 120)
        stop.set()
        for one in asking:
            one.result()
    assert _translated(client) == newer
    assert all(one in (older, newer) for one in found)
    shutil.rmtree(run / "checkpoints")
    process.send_signal(signal.SIGHUP)
    until(lambda: 't2t_reloads_total{outcome="failed"} 1.0' in client.get("/metrics").text, 120)
    assert _translated(client) == newer
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    log = process.stderr.read()
    assert "POST /translate 200" in log
    assert "en-de stays as it is" in log
    assert not any(line in log for line in LINES)
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "no run is given; name one"),
        (["nowhere"], "nowhere is not a run directory"),
        (["RUN", "RUN"], "both translate en to de; name one of them"),
        (["RUN", "--port", "PORT"], "Address already in use; give another address, or another"),
        (["RUN", "--host", "256.0.0.1"], "cannot listen at --host 256.0.0.1 --port 5000"),
        (["RUN", "--api-keys", "EMPTY"], "empty has no API keys; write one in each line"),
        (["RUN", "--max-line", "3"], "unknown flag --max-line; did you mean --max-lines?"),
    ],
)
def test_a_server_that_cannot_begin_says_why(tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").write_text("# none\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        places = {"RUN": str(GOLDEN), "PORT": str(taken.getsockname()[1]), "EMPTY": "empty"}
        command = [sys.executable, "-m", "t2t_jax", "serve"]
        command += [places.get(flag, flag) for flag in flags]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_client_that_goes_away_frees_its_rows():
    engine = Patient()
    with running({("en", "de"): engine}) as (client, server):
        for path, fields in (("/translate", {}), ("/v1/translations", {"stream": True})):
            before = len(engine.asked)
            with pytest.raises(httpx.ReadTimeout):
                client.post(path, json={"q": ["a", "b"], "target": "de", **fields}, timeout=0.5)
            asked = engine.asked[before:]
            assert len(asked) == 2
            until(lambda asked=asked: all(future.cancelled() for _, future in asked))
        until(lambda: server.under_way == 0)


def test_a_server_that_stops_refuses_what_is_new_and_finishes_the_rest():
    engine = Patient()
    with running({("en", "de"): engine}) as (client, server), ThreadPoolExecutor(1) as pool:
        answer = pool.submit(
            client.post, "/translate", json={"q": "a b", "source": "en", "target": "de"}
        )
        until(lambda: engine.asked)
        server.is_ready = False
        for path in ("/translate", "/v1/translations"):
            refused = httpx.post(f"{client.base_url}{path}", json={"q": "c", "target": "de"})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert httpx.get(f"{client.base_url}/health").status_code == 503
        assert httpx.get(f"{client.base_url}/live").status_code == 200
        engine.answer()
        assert answer.result().json() == {"translatedText": "A B"}


def test_a_request_that_meets_a_reload_is_translated_by_the_new_engine():
    from t2t_jax.serving.engine import EngineClosedError

    class Replaced(Patient):
        """An engine whose place another takes while a request is prepared."""

        def submit(self, *given, **options):
            assert service.replace(Quick()) is self
            raise EngineClosedError

    with running({("en", "de"): Replaced()}) as (client, server):
        [service] = server.answers.languages.services.values()
        assert _translated(client, "a b") == "A B"


def test_keys_and_rates(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# ours\n\n one \ntwo\n", "utf-8")
    now = [0.0]
    access = Access(keys, requests_per_minute=2, clock=lambda: now[0])
    with pytest.raises(RefusedError) as refused:
        access.admit(None, "::1")
    assert (refused.value.status, refused.value.headers) == (401, {"WWW-Authenticate": "Bearer"})
    for wrong in ("", "on", "one ", "# ours", "three"):
        with pytest.raises(RefusedError) as refused:
            access.admit(wrong, "::1")
        assert refused.value.status == 403
    access.admit("one", "::1")
    access.admit("one", "::2")
    with pytest.raises(RefusedError) as refused:
        access.admit("one", "::3")
    assert (refused.value.status, refused.value.headers["Retry-After"]) == (429, "30")
    access.admit("two", "::1")
    now[0] = 30.0  # a second half of a minute brings one more
    access.admit("one", "::1")
    with pytest.raises(RefusedError):
        access.admit("one", "::1")
    keys.write_bytes(b"\xff")
    with pytest.raises(UserError, match="is not UTF-8"):
        Access(keys)


def test_a_bound_socket_is_where_it_is_asked_to_be():
    with bound_socket("localhost", 0) as bound:
        assert bound.getsockname()[1] > 0
        with pytest.raises(ConnectionRefusedError):  # it does not listen before models are loaded
            socket.create_connection(bound.getsockname()[:2], timeout=5)


@pytest.mark.parametrize("before", [b"", b"GET /live HTTP/1.1\r\nHost: a\r\n\r\n"])
def test_a_connection_that_asks_too_slowly_is_closed(monkeypatch, before):
    monkeypatch.setattr("t2t_jax.serving.connections.SECONDS_FOR_HEADERS", 0.3)
    with running({("en", "de"): Quick()}) as (client, _):
        address = client.base_url.host, client.base_url.port
        with socket.create_connection(address, timeout=30) as slow:
            slow.sendall(before + b"POST /translate HTTP/1.1\r\n")
            slow.settimeout(0.05)
            received, number = [b"x"], 0
            while received[-1]:  # bytes that come one by one do not keep it open
                assert (number := number + 1) < 600
                try:
                    received.append(slow.recv(4096))
                except TimeoutError:
                    slow.sendall(b"X")
                except ConnectionError:
                    break
        assert (b" 200 OK" in b"".join(received)) == bool(before)
        assert client.get("/live").status_code == 200


def test_more_connections_than_are_allowed_are_told_so():
    with running({("en", "de"): Quick()}, bounds=Bounds(max_connections=3)) as (client, _):
        assert client.get("/live").status_code == 200
        address = client.base_url.host, client.base_url.port
        with socket.create_connection(address), socket.create_connection(address):
            until(lambda: httpx.get(f"{client.base_url}/live").status_code == 503)
            refused = httpx.get(f"{client.base_url}/live")
            assert refused.headers["retry-after"] == "1"
            assert refused.json()["error"] == "more than 3 connections are open; try again later"
            assert client.get("/live").status_code == 200
        until(lambda: httpx.get(f"{client.base_url}/live").status_code == 200)


def test_a_client_that_goes_away_within_its_request_is_no_failure():
    with running({("en", "de"): Quick()}) as (client, server):
        with socket.create_connection((client.base_url.host, client.base_url.port)) as leaving:
            head = b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n"
            leaving.sendall(head + b'Content-Type: application/json\r\n\r\n{"q": ')
            until(lambda: server.under_way == 1)
        until(lambda: server.under_way == 0)
        page = client.get("/metrics").text
        assert "t2t_abandoned_requests_total 1.0" in page
        assert 'status="500"' not in page


def test_keys_are_read_again_on_a_reload(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("one\n", "utf-8")
    access = Access(keys)
    keys.write_text("two\n", "utf-8")
    access.admit("one", "::1")
    access.read_keys()
    access.admit("two", "::1")
    with pytest.raises(RefusedError):
        access.admit("one", "::1")
    keys.write_text("", "utf-8")
    with pytest.raises(UserError, match="has no API keys"):
        access.read_keys()
    access.admit("two", "::1")  # what was read before is kept
