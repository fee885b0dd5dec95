"""The server as a program: its socket, its signals, its clients that go away, its reloads."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path

import httpx
import pytest

import t2t_jax
from t2t_jax.__main__ import main
from t2t_jax.decoding.open_search import OpenSearch
from t2t_jax.errors import UserError
from t2t_jax.interchange.runs import write_run
from t2t_jax.serving import server
from t2t_jax.serving.access import Access
from t2t_jax.serving.answers import Answers
from t2t_jax.serving.connections import Connection
from t2t_jax.serving.languages import Languages
from t2t_jax.serving.metrics import ServerMetrics
from t2t_jax.serving.server import Entrance, address_of, bound_socket
from t2t_jax.serving.service import ServedModel
from t2t_jax.serving.settings import Bounds, RefusedError
from tests.interchange.models import OPTIONS, portable
from tests.serving.conftest import Patient, Quick, running, until

_LOCAL = "127.0.0.1", "[::1]"
GOLDEN = Path(__file__).parents[1] / "goldens/runs/0.2.0/run"
LINES = ["Open the file", "Close all windows now", "No devices found"]


@pytest.fixture
def program(tmp_path):
    """A server in a process of its own, a client, the run that it serves, a later one, its log."""
    for name in ("run", "later"):
        model = portable(OPTIONS["paper"])
        if name == "later":
            model = replace(model, arrays={name: -x for name, x in model.arrays.items()})
        write_run(model, tmp_path / name, {"kind": "test"})
    run = tmp_path / "run"
    command = [sys.executable, "-m", "t2t_jax", "serve", str(run), "--port=0", "--rows=2"]
    command += ["--longest=16", "--warm-up=none", "--split=lines"]
    log = tmp_path / "log"  # a file: a pipe that nobody reads stops a server after 64 KiB
    with (
        log.open("w") as written,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=written, text=True) as process,
    ):
        try:
            said = process.stdout.readline()
            assert said.startswith("translates en to de at http://127.0.0.1:"), log.read_text()
            with httpx.Client(base_url=said.split()[-1], timeout=120) as client:
                yield process, client, run, tmp_path / "later", log
        finally:
            process.kill()


def _translated(client, lines=LINES):
    answer = client.post("/translate", json={"q": lines, "source": "en", "target": "de"})
    assert answer.status_code == 200, answer.text
    return answer.json()["translatedText"]


@pytest.mark.thorough
def test_a_server_reloads_without_a_lost_request_and_ends_in_order(program):
    process, client, run, later, log = program
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
    log = log.read_text()
    assert "POST /translate 200" in log
    assert "en-de stays as it is" in log
    assert not any(line in log for line in LINES)
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "t2t-jax serve takes a run, as in t2t-jax serve runs/base"),
        (["nowhere"], "nowhere is not a run directory"),
        (["RUN", "RUN"], "both translate en to de; name one of them"),
        (["RUN", "--port", "PORT"], "Address already in use; give another address, or another"),
        (["RUN", "--host", "256.0.0.1"], "cannot listen at --host 256.0.0.1 --port 5000"),
        (["RUN", "--api-keys", "EMPTY"], "empty has no API keys; write one in each line"),
        (["RUN", "--max-line", "3"], "unknown flag --max-line; did you mean --max-lines?"),
        (["RUN", "--host", "x" * 70], "cannot listen at --host xxx"),
        (["RUN", "--rows", "0"], "--rows 0 is outside [1, 1,000,000,000]; choose another"),
        (["RUN", "--rows", "-3"], "--rows -3 is outside [1, "),
        (["RUN", "--most-steps", "0"], "--most-steps 0 is outside [1, "),
        (["RUN", "--longest", "0"], "--longest 0 is outside [1, "),
        (["RUN", "--beam-size", "0"], "--beam-size 0 is outside [1, "),
        (["RUN", "--timeout", "nan"], "--timeout nan is outside [0.001, "),
        (["RUN", "--timeout", "-1"], "--timeout -1.0 is outside [0.001, "),
        (["RUN", "--timeout", "inf"], "--timeout inf is outside [0.001, "),
        (["RUN", "--port", "99999"], "--port 99999 is outside [0, 65,535]; choose another"),
        (["RUN", "--port", "-1"], "--port -1 is outside [0, 65,535]"),
        (["RUN", "--max-connections", "0"], "--max-connections 0 is outside [1, "),
        (["RUN", "--max-waiting", "-5"], "--max-waiting -5 is outside [1, "),
        (["RUN", "--max-body-bytes", "-1"], "--max-body-bytes -1 is outside [1, "),
        (["RUN", "--requests-per-minute", "-1"], "--requests-per-minute -1 is outside [0, "),
        (
            ["RUN", "--trusted-proxies", "10.0.0.1/8"],
            "--trusted-proxies 10.0.0.1/8: 10.0.0.1/8 has",
        ),
        (["RUN", "--trusted-proxies", "nginx"], "give an address, or a network as 10.0.0.0/8"),
    ],
)
def test_a_server_that_cannot_begin_says_why(tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").write_text("# none\n")
    with bound_socket("127.0.0.1", 0) as taken:
        places = {"RUN": str(GOLDEN), "PORT": str(taken.getsockname()[1]), "EMPTY": "empty"}
        arguments = ["serve", *(places.get(flag, flag) for flag in flags)]
        with pytest.raises(UserError) as refused:
            main(arguments)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def _started(*flags):
    """A server that loads, whose standard output tells when it is ready."""
    command = [sys.executable, "-m", "t2t_jax", "serve", str(GOLDEN), "--rows=2", "--longest=16"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*command, "--warm-up=none", *flags], env=environment, **streams)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_server_that_starts_says_so_and_a_hangup_does_not_end_it(number):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with _started(f"--port={port}") as process, httpx.Client(timeout=60) as client:
        try:
            address, codes = f"http://127.0.0.1:{port}", set()

            def live():
                with contextlib.suppress(httpx.ConnectError):
                    return client.get(f"{address}/live").status_code == 200

            until(live, 120)
            answer = client.get(f"{address}/health")
            codes.add(answer.status_code)
            if answer.status_code == 503:
                assert answer.json()["error"] == "the server is starting; try again"
                assert answer.headers["retry-after"] == "5"
            process.send_signal(number)
            if number != signal.SIGHUP:
                assert process.wait(60) == -number
                return
            assert process.stdout.readline().startswith("translates en to de at http://127.0.0.1:")
            assert client.get(f"{address}/health").status_code == 200
        finally:
            process.kill()


def test_two_servers_do_not_get_one_port():
    with (
        bound_socket("127.0.0.1", 0) as first,  # which is about to load its models
        pytest.raises(UserError, match="Address already in use; give another address"),
    ):
        bound_socket("127.0.0.1", first.getsockname()[1])


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
    from t2t_jax.decoding.open_search import ClosedError

    class Replaced(Patient):
        """An engine whose place another takes while a request is prepared."""

        def submit(self, *given, **options):
            assert model.engine is self
            model.engine = Quick()
            raise ClosedError

    with running({("en", "de"): Replaced()}) as (client, server):
        [model] = server.answers.languages.models
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
    now[0] = 30.6  # 29.4 seconds before the next: after 29, it would be refused again
    with pytest.raises(RefusedError, match="try again in 30 s") as refused:
        access.admit("one", "::1")
    assert refused.value.headers["Retry-After"] == "30"
    keys.write_bytes(b"\xff")
    with pytest.raises(UserError, match="is not UTF-8"):
        Access(keys)


def test_addresses_are_those_that_a_browser_takes():
    with bound_socket("localhost", 0) as bound:
        address = address_of(bound)
        assert address in (f"http://{host}:{bound.getsockname()[1]}" for host in _LOCAL)
    if socket.has_ipv6:
        with contextlib.suppress(UserError), bound_socket("::1", 0) as bound:
            assert address_of(bound) == f"http://[::1]:{bound.getsockname()[1]}"

    class Bound(socket.socket):
        """One that there is without IPv6 too."""

        def getsockname(self):
            return "::1", 5805, 0, 0

    with Bound() as bound:
        assert address_of(bound) == "http://[::1]:5805"


def test_a_server_that_starts_keeps_no_connection():
    """What it answers meanwhile does not look at what else a request holds, as two lengths."""

    async def asked():
        transport = httpx.ASGITransport(Entrance())
        async with httpx.AsyncClient(transport=transport, base_url="http://a") as client:
            return [await client.get(path) for path in ("/live", "/health", "/translate")]

    answers = asyncio.run(asked())
    assert [one.status_code for one in answers] == [200, 503, 503]
    assert [one.headers["connection"] for one in answers] == ["close"] * 3


def test_memory_that_requests_have_freed_is_given_back_again_and_again(monkeypatch):
    given = []
    monkeypatch.setattr(server, "_TRIM", 0.01)
    monkeypatch.setattr(server, "trim_heap", lambda: given.append(True))

    def make():
        models = [ServedModel("en", "de", Quick(), Bounds())]
        return server.Server(Answers(Languages(models), Bounds(), ServerMetrics()), Access())

    def end():
        try:
            until(lambda: len(given) > 2)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    ready = threading.Thread(target=end).start
    with bound_socket("127.0.0.1", 0) as bound:
        assert server.run_server(make, bound, Bounds(), lambda one: one.engine, ready) == 0


def test_a_search_is_told_whose_a_sentence_is(searches, tmp_path, monkeypatch):
    told, submit = [], OpenSearch.submit

    def tell(self, tokens, **given):
        told.append((given["client"], given["request"]))
        return submit(self, tokens, **given)

    monkeypatch.setattr(OpenSearch, "submit", tell)
    keys = tmp_path / "keys"
    keys.write_text("one\ntwo\n", "utf-8")
    with running({("en", "de"): searches}, keys=keys) as (client, _):
        for key, path in product(("one", "two"), ("/translate", "/v1/translations")):
            fields = {"q": ["Open", "Close"], "target": "de", "api_key": key}
            assert client.post(path, json=fields).status_code == 200
    clients, requests = zip(*told, strict=True)
    assert [clients.index(one) for one in clients] == [0] * 4 + [4] * 4
    assert [requests.index(one) for one in requests] == [0, 0, 2, 2, 4, 4, 6, 6]


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


def _connected(client):
    return socket.create_connection((client.base_url.host, client.base_url.port), timeout=60)


def _is_closed(own, send=b""):
    """Whether a connection is closed; what it has received is read, and a byte is sent."""
    own.settimeout(0.05)
    try:
        own.sendall(send)
        return not own.recv(2**16)
    except TimeoutError:
        return False
    except ConnectionError:
        return True


@pytest.mark.parametrize(
    "head",
    [
        b"GET /live HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n",
        b"GET /live HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1000000\r\n",
        b"POST /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n",
        b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999\r\n\r\n",
        b"GET /live HTTP/1.1\r\nHost: a\r\n\r\n",
        b"",
    ],
)
def test_a_byte_now_and_then_after_an_answer_does_not_keep_a_connection(monkeypatch, head):
    monkeypatch.setattr("t2t_jax.serving.connections.SECONDS_FOR_HEADERS", 0.5)
    with running({("en", "de"): Quick()}) as (client, _), _connected(client) as own:
        own.sendall(head)
        until(lambda: _is_closed(own, b"x"))


def test_a_client_that_does_not_read_is_left_within_a_total_time(monkeypatch):
    """It reads a little now and then, so that there is always something that goes on."""
    monkeypatch.setattr("t2t_jax.serving.connections.SECONDS_FOR_ANSWER", 0.5)
    monkeypatch.setattr("t2t_jax.serving.connections.SECONDS_FOR_HEADERS", 0.5)
    large = Bounds(max_body_bytes=10**8, max_characters=10**8)
    gone, real = [], Connection.connection_lost
    monkeypatch.setattr(Connection, "connection_lost", lambda *of: gone.append(True) or real(*of))
    body = json.dumps({"q": "x" * 20_000_000, "target": "de"}).encode()
    head = b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    with running({("en", "de"): Quick()}, bounds=large, split="lines") as (client, _):
        with _connected(client) as own:
            own.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            received = 0
            with contextlib.suppress(ConnectionError):
                until(lambda: own.recv(100) and gone)
                while part := own.recv(2**20):
                    received += len(part)
        assert received < len(body) // 2
        assert client.get("/live").status_code == 200


@pytest.mark.parametrize(
    ("proxies", "header", "seen"),
    [
        ((), "198.51.100.7", "127.0.0.1"),
        ((), "\\x1b[31m", "127.0.0.1"),
        (("127.0.0.1",), "198.51.100.7", "198.51.100.7"),
        (("127.0.0.0/8",), "203.0.113.9, 198.51.100.7", "198.51.100.7"),
        (("127.0.0.1",), "203.0.113.9, \x9b31m", "\\u009b31m"),
        (("10.0.0.0/8", "::1"), "198.51.100.7", "127.0.0.1"),
    ],
)
def test_a_client_is_who_connects_unless_a_trusted_proxy_says_another(
    caplog, proxies, header, seen
):
    bounds = Bounds(requests_per_minute=1)
    with (
        caplog.at_level("INFO", "t2t_jax.serving"),
        running({("en", "de"): Quick()}, bounds=bounds, proxies=proxies) as (client, _),
    ):
        fields = {"q": "a", "target": "de"}
        statuses = []
        for other in (header, header.replace("198.51.100.7", "198.51.100.8")):
            headers = {"x-forwarded-for": other.encode("latin-1")}
            answer = client.post("/translate", json=fields, headers=headers)
            statuses.append(answer.status_code)
    lines = [one.getMessage() for one in caplog.records if "POST" in one.getMessage()]
    assert lines[0].startswith(f"{seen} POST /translate 200")
    assert statuses == [200, 200 if seen == "198.51.100.7" else 429]


def test_a_stream_that_is_left_is_logged_and_counted_as_abandoned(caplog):
    engine = Patient()
    with (
        caplog.at_level("INFO", "t2t_jax.serving"),
        running({("en", "de"): engine}) as (client, server),
    ):
        fields = {"q": "a", "target": "de", "stream": True}
        with client.stream("POST", "/v1/translations", json=fields) as answer:
            assert answer.status_code == 200
        until(lambda: server.under_way == 0)
        page = client.get("/metrics").text
    assert "t2t_abandoned_requests_total 1.0" in page
    assert 't2t_requests_total{route="/v1/translations",status="499"} 1.0' in page
    assert 't2t_requests_total{route="/v1/translations",status="200"}' not in page
    assert "POST /v1/translations 499" in caplog.text


@pytest.mark.parametrize(("text", "status"), [("a", 504), ("explode", 500)])
def test_a_stream_that_fails_ends_with_its_error_and_is_counted_as_what_it_is(caplog, text, status):
    with (
        caplog.at_level("INFO", "t2t_jax.serving"),
        running({("en", "de"): Patient()}, bounds=Bounds(timeout=0.3)) as (client, server),
    ):
        answer = client.post("/v1/translations", json={"q": text, "target": "de", "stream": True})
        until(lambda: server.under_way == 0)
        page = client.get("/metrics").text
    assert answer.status_code == 200
    assert answer.text.startswith(f'event: error\ndata: {{"status": {status}, ')
    assert f't2t_requests_total{{route="/v1/translations",status="{status}"}} 1.0' in page
    assert 't2t_requests_total{route="/v1/translations",status="200"}' not in page
    assert f"POST /v1/translations {status}" in caplog.text
    assert ("ZeroDivisionError in /v1/translations" in caplog.text) == (status == 500)


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


def test_wrong_keys_are_bounded_and_right_ones_of_the_same_address_go_on(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("one\ntwo\n", "utf-8")
    now = [0.0]
    access = Access(keys, clock=lambda: now[0])

    def status(key, address="::1"):
        try:
            access.admit(key, address)
        except RefusedError as error:
            return error.status

    assert status("one") is None
    assert [status(f"wrong {number}") for number in range(32)] == [403] * 30 + [429] * 2
    assert status("two") == 429  # nothing is learnt of a key that has not come from there
    assert status("one") is None
    assert status("two", "::2") is None
    assert status(None) == 401
    with pytest.raises(RefusedError, match="more than 30 wrong API keys a minute; try again in 2"):
        access.check_guesses("::1")
    access.check_guesses("::2")
    now[0] = 2.0
    access.check_guesses("::1")
    assert [status("wrong"), status("wrong")] == [403, 429]
    now[0] = 3600.0
    assert status("two") is None


def test_a_key_in_a_header_is_looked_at_before_the_body_is_read(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("one\n", "utf-8")
    head = "POST /translate HTTP/1.1\r\nHost: a\r\nContent-Length: 999999\r\n{}\r\n"
    with running({("en", "de"): Quick()}, keys=keys) as (client, _):
        for number in range(32):  # none of them sends a byte of its body
            with _connected(client) as own:
                own.sendall(head.format("Authorization: Bearer two\r\n").encode())
                said = own.recv(100)
            assert said.startswith(b"HTTP/1.1 403 " if number < 30 else b"HTTP/1.1 429 ")
        with _connected(client) as own:
            own.sendall(head.format("").encode())  # its key would be in the body
            assert own.recv(100).startswith(b"HTTP/1.1 429 ")


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
