"""A server over real HTTP: translations, batches of several requests, refusals, and its stop."""

import contextlib
import errno
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product

import httpx
import pytest

from t2t_jax.__main__ import main
from t2t_jax.decoding import programs
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError
from t2t_jax.extras.interchange.formats import read_model
from t2t_jax.extras.interchange.run import write_run
from t2t_jax.extras.serving import server
from t2t_jax.extras.serving.engine import Engine, split_sentences
from t2t_jax.extras.serving.server import Application
from tests.extras.interchange.models import portable, translator_of
from tests.programs import ROOT, wait_until

SENTENCES = ["Open the file.", "Close all windows now.", "No devices found.", "Cancel printing."]
NLLB = ROOT / "tests/goldens/seq2seq/nllb"


@pytest.fixture(scope="module")
def model():
    return portable({"model.num_encoder_layers": 1, "model.num_decoder_layers": 2})


@pytest.fixture(scope="module")
def translator(model):
    return translator_of(model)


@pytest.fixture(scope="module")
def engine(translator):
    decoding = replace(translator.config.decoding, beam_size=2, max_extra_length=5)
    return Engine(translator, decoding, rows=4, max_length=32, max_waiting=6)


@pytest.fixture
def expected(translator):
    """A function that translates sentences without a server."""
    return lambda lines: translator.translate(lines, beam_size=2, max_extra_length=5)


@pytest.fixture
def client(engine):
    with running(engine, max_body_bytes=1000) as client:
        yield client


@pytest.fixture
def held(monkeypatch):
    """An event for which searches wait, and the number of sentences of each search."""
    event, batches, search = threading.Event(), [], Translator.search

    def wait(translator, sentences, *arguments):
        event.wait(60)
        batches.append(sum(len(sentence.source) > 0 for sentence in sentences))
        return search(translator, sentences, *arguments)

    monkeypatch.setattr(Translator, "search", wait)
    yield event, batches
    event.set()


@contextlib.contextmanager
def running(engine, timeout=60.0, **bounds):
    """A client of a server in a thread."""
    bound = server.bind_socket("127.0.0.1", 0)
    listener = server.http_server(Application(engine, timeout=timeout, **bounds).app, timeout)
    thread = threading.Thread(target=listener.run, kwargs={"sockets": [bound]})
    thread.start()
    wait_until(lambda: listener.started)
    try:
        with httpx.Client(base_url=server.url_of(bound), timeout=60) as client:
            yield client
    finally:
        listener.should_exit = True
        thread.join()


def post(client, **fields):
    return client.post("/translate", json=fields)


def test_a_translation_is_the_translators(client, expected):
    first, second, third, _ = expected(SENTENCES)
    assert post(client, q=SENTENCES[0]).json() == {"translatedText": first}
    text = f"  {SENTENCES[0]} {SENTENCES[1]}\n\n{SENTENCES[2]}\n"
    fields = {"q": [text, "", SENTENCES[1]], "source": "EN", "target": "de"}
    answer = post(client, **fields)
    assert answer.status_code == 200
    assert answer.json()["translatedText"] == [f"  {first} {second}\n\n{third}\n", "", second]


def test_sentences_of_several_requests_are_translated_together(client, engine, expected, held):
    event, batches = held
    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(lambda text: post(client, q=text).json(), SENTENCES)
        # The sentences that come while the first batch is translated form the second.
        wait_until(lambda: engine.num_translating + engine.num_waiting == len(SENTENCES))
        event.set()
        translations = [answer["translatedText"] for answer in answers]
    assert sum(batches) == len(SENTENCES)
    assert len(batches) <= 2
    assert translations == expected(SENTENCES)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "the body is not JSON in UTF-8"),
        (b'{"q": "\xff"}', 400, "the body is not JSON in UTF-8"),
        (b'{"q": "\\ud800"}', 400, "the body is not JSON in UTF-8"),
        (b"[" * 900, 400, "the body is not"),
        (b'["q"]', 400, "the body is not JSON in UTF-8"),
        (b'{"q": 1}', 400, "Expected `str | array`, got `int` - at `$.q`"),
        (b'{"q": "a", "source": 1}', 400, "Expected `str | null`, got `int` - at `$.source`"),
        (b'{"q": "a", "format": "html"}', 400, "Object contains unknown field `format`"),
        (b'{"q": "a", "target": "fr"}', 400, "the model translates one pair of languages"),
        (b'{"q": "%s"}' % (b"a" * 1000), 413, "the body is larger than 1,000 bytes"),
        (b'{"q": "%s"}' % (b"a\\n" * 7), 413, "7 sentences are more than 6"),
        (b'{"q": "%s"}' % (b"a " * 400), 413, "13 sentences are more than 6"),
    ],
)
def test_a_bad_request_is_refused(client, body, status, message):
    for content in (body, iter([body])):  # the second declares no length
        answer = client.post("/translate", content=content)
        assert answer.status_code == status
        assert message in answer.json()["error"]


def test_other_paths_and_methods_are_refused(client):
    assert client.get("/nowhere").json() == {"error": "Not Found"}
    assert client.get("/translate").status_code == 405


def test_a_sentence_that_is_too_long_is_split_or_refused(translator):
    decoding = replace(translator.config.decoding, long_lines="refuse")
    engine = Engine(translator, decoding, rows=2, max_length=8)
    with running(engine) as client:
        answer = post(client, q=" ".join(SENTENCES).replace(".", ""))
    assert answer.status_code == 400
    assert "line 1 has" in answer.json()["error"]


def test_a_full_queue_and_a_late_answer(engine, held):
    event, _ = held
    with running(engine, timeout=1.0) as client, ThreadPoolExecutor(5) as pool:
        # A batch has 4 of 30 sentences, and at most 6 wait.
        answers = [*pool.map(lambda _: post(client, q=[SENTENCES[0]] * 6), range(5))]
        event.set()
        wait_until(lambda: not engine.num_translating + engine.num_waiting)
    late, full = ([one for one in answers if one.status_code == code] for code in (504, 429))
    assert len(late) + len(full) == 5
    assert late[0].json() == {"error": "the request took longer than 1 s"}
    assert full[0].headers["retry-after"] == "1"
    assert re.search("[26] sentences are already waiting; try again later", full[0].text)


def test_a_failure_is_logged_without_the_text(client, engine, monkeypatch, caplog):
    text = "a secret text"

    def fail(*_):
        raise ZeroDivisionError(text)

    monkeypatch.setattr(engine, "prepare", fail)
    answer = post(client, q=text)
    assert answer.status_code == 500
    assert answer.json() == {"error": "the server failed; its log says where"}
    assert "ZeroDivisionError" in caplog.text
    assert text not in caplog.text


def test_a_failed_search_is_reported_and_later_requests_are_answered(client, expected, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(Translator, "search", lambda *_: 1 // 0)
        assert post(client, q=SENTENCES).status_code == 500
    assert post(client, q=SENTENCES).json() == {"translatedText": expected(SENTENCES)}


def test_nothing_is_compiled_after_the_warm_up(client, engine):
    engine.warm_up()
    compiled = [program._cache_size() for program in (programs.begin_work, programs.proceed)]
    for count, length in product((1, 2, 4), (1, 9)):
        assert post(client, q=["file " * length] * count).status_code == 200
    assert compiled == [p._cache_size() for p in (programs.begin_work, programs.proceed)]


def test_health_metrics_and_the_page(client):
    assert client.get("/health").json() == {"status": "ok", "source": "en", "target": "de"}
    post(client, q=SENTENCES)
    post(client, q=0)
    metrics = client.get("/metrics").text
    for line in (
        't2t_requests_total{status="200"} 1.0',
        't2t_requests_total{status="400"} 1.0',
        "t2t_request_seconds_count 2.0",
        "t2t_sentences_total 4.0",
        "t2t_sentences_waiting 0.0",
        "t2t_rows_in_use 0.0",
        "t2t_rows 4.0",
    ):
        assert line in metrics.splitlines()
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert not re.search(r"https?://", page.text)


def test_a_name_listens_at_its_address_whichever_family_that_has(monkeypatch):
    address = socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [address])
    with server.bind_socket("six.example", 0) as bound:
        assert server.url_of(bound).startswith("http://[::1]:")


@pytest.mark.parametrize("host", ["", "<broadcast>", "a" * 70, "nobody.invalid"])
def test_a_host_that_names_no_address_is_refused(host):
    with pytest.raises(UserError, match=r"cannot listen at --host .*; give another address"):
        server.bind_socket(host, 0)


def test_a_machine_without_ipv6_says_so(monkeypatch):
    def refuse(*_):
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(UserError, match=r"--host ::1 .*Address family"):
        server.bind_socket("::1", 0)


def test_a_stop_answers_the_requests_that_wait(engine, expected, held):
    event, _ = held
    bound, answers = server.bind_socket("127.0.0.1", 0), []
    address = server.url_of(bound)

    def ask():
        with httpx.Client(base_url=address, timeout=60) as client:
            answers.append(post(client, q=SENTENCES).json())

    def stop():
        wait_until(lambda: engine.num_translating == 4)
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: bound.fileno() == -1)
        event.set()

    threads = [threading.Thread(target=work) for work in (ask, stop)]
    app = Application(engine).app
    code = server.serve(app, bound, 60.0, lambda: [thread.start() for thread in threads])
    for thread in threads:
        thread.join()
    assert code == 0
    assert answers == [{"translatedText": expected(SENTENCES)}]


@pytest.mark.thorough
def test_a_request_chooses_among_several_languages():
    translator = translator_of(read_model("m2m100", NLLB))
    decoding = replace(translator.config.decoding, beam_size=1, max_extra_length=5)
    engine = Engine(translator, decoding, rows=2, max_length=64)
    pairs = ("eng_Latn", "deu_Latn"), ("deu_Latn", "fra_Latn"), ("fra_Latn", "eng_Latn")
    with running(engine) as client:
        for source, target in pairs:
            other = translator.between(source, target)
            expected = other.translate(SENTENCES[:1], decoding=decoding)
            answer = post(client, q=SENTENCES[:1], source=source, target=target)
            assert answer.json()["translatedText"] == expected
        assert post(client, q="a", target="tlh").status_code == 400


@pytest.mark.thorough
def test_the_command_serves_a_run_until_a_signal(model, tmp_path):
    write_run(model, tmp_path / "run", {"kind": "test"})
    command = [sys.executable, "-m", "t2t_jax", "serve", str(tmp_path / "run"), "--port=0"]
    command += ["--rows=2", "--longest=16", "--beam-size=1"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        said = process.stdout.readline()
        assert said.startswith("translates en to de at http://127.0.0.1:")
        answer = httpx.post(f"{said.split()[-1]}/translate", json={"q": SENTENCES}, timeout=60)
        assert answer.status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        log = process.stderr.read()
    assert "POST /translate 200" in log
    assert not any(word in log for word in ("Traceback", SENTENCES[0]))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--port", "70000"], "--port 70000 is outside [0, 65,535]"),
        (["--timeout", "nan"], "--timeout nan is outside [0.001, 1,000,000,000]"),
        (["--max-body-bytes", "0"], "--max-body-bytes 0 is outside [1, 1,000,000,000]"),
        (["--host", "256.0.0.1"], "cannot listen at --host 256.0.0.1 --port 5000"),
    ],
)
def test_a_bad_flag_is_refused(flags, message):
    with pytest.raises(UserError, match=re.escape(message)):
        main(["serve", "run", *flags])


def test_sentences_and_the_white_space_around_them():
    text = "One. Two!  \n\n  Three?"
    assert split_sentences(text, "en") == ["", "One.", " ", "Two!", "  \n\n  ", "Three?", ""]
    assert split_sentences("", "en") == [""]
    long = "A sentence of some words. " * 300
    segments = split_sentences(long, "en")
    assert "".join(segments) == long
    assert set(segments[1::2]) == {"A sentence of some words."}
    endless = "a" * 5000
    assert "".join(split_sentences(endless, "en")) == endless
