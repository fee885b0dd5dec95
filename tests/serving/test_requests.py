"""What a server answers over HTTP: the API, and the refusals that docs/serving.md promises."""

import contextlib
import json
import math
import re
import shutil
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from libretranslatepy import LibreTranslateAPI

from t2t_jax.serving import answers, bodies, downloads, service
from t2t_jax.serving.settings import Bounds
from tests.interchange.models import real_pairs
from tests.serving.conftest import DECODING, Patient, Quick, running

DOCUMENT = Path(__file__).parents[2] / "docs" / "serving.md"
BOUNDS = Bounds(max_body_bytes=2000, max_characters=300, max_lines=5, timeout=0.3)
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


@pytest.fixture(scope="module")
def client(searches):
    with running({("en", "de"): searches}) as (client, _):
        yield client


def _ask(client, path="/v1/translations", **fields):
    answer = client.post(path, json={"target": "de", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_it_translates_as_the_command_line_does(client, translator):
    lines = [*real_pairs()[0][:30], "", " padded  line ", "Ünïcödé “quotes”"]
    expected = translator.translate(lines, max_source_length=32, **DECODING)
    answer = _ask(client, q=lines, split="lines")
    assert [one["hypotheses"][0]["text"] for one in answer["translations"]] == expected
    together = _ask(client, q="\n".join(lines), split="lines")["translations"]
    assert together[0]["hypotheses"][0]["text"] == "\n".join(expected)
    with ThreadPoolExecutor(8) as pool:
        each = pool.map(lambda line: _ask(client, q=line, split="lines"), lines)
        assert [one["translations"][0]["hypotheses"][0]["text"] for one in each] == expected


def test_the_best_translations_have_the_scores_of_the_command_line(client, translator):
    line = real_pairs()[0][3]
    expected = translator.nbest([line], 2, max_source_length=32, **DECODING)[0]
    [found] = _ask(client, q=line, num_best=2, split="lines")["translations"]
    for one, best in zip(found["hypotheses"], expected, strict=True):
        assert one["text"] == best.text
        assert one["score"] == pytest.approx(best.score, rel=1e-4)
        assert one["log_prob"] == pytest.approx(best.log_prob, rel=1e-4)
        assert 0 < one["confidence"] < 1
    plain = _ask(client, "/translate", q=line, alternatives=7)
    assert plain["translatedText"] == expected[0].text
    assert plain["alternatives"] == [expected[1].text]
    assert plain["detectedLanguage"] == {"language": "en", "confidence": 100.0}


def test_a_greedy_search_and_a_bound_on_tokens(client, translator):
    lines = real_pairs()[0][:5]
    greedy = {"beam_size": 1, "max_extra_length": 5, "max_source_length": 32}
    expected = [best for [best] in translator.nbest(lines, 1, **greedy)]
    found = _ask(client, q=lines, beam_size=1, split="lines")["translations"]
    assert [one["hypotheses"][0]["text"] for one in found] == [best.text for best in expected]
    [short] = _ask(client, q=lines[0], beam_size=1, max_tokens=2, split="lines")["translations"]
    [begin] = translator.vocabulary.decode([list(expected[0].tokens[:2])])
    assert short["hypotheses"][0]["text"] == begin


def test_a_stream_tells_what_was_chosen_so_far(client):
    lines = real_pairs()[0][:3]
    fields = {"q": lines, "target": "de", "stream": True, "split": "lines"}
    with client.stream("POST", "/v1/translations", json=fields) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        text = "".join(answer.iter_text())
    events = [
        (name, json.loads(data)) for name, data in re.findall(r"event: (\w+)\ndata: (.*)\n\n", text)
    ]
    assert [name for name, _ in events] == ["partial"] * (len(events) - 1) + ["done"]
    done = events[-1][1]["translations"]
    greedy = _ask(client, q=lines, beam_size=1, split="lines")["translations"]
    for one, other in zip(done, greedy, strict=True):
        [streamed], [asked] = one["hypotheses"], other["hypotheses"]
        assert streamed["text"] == asked["text"]
        assert streamed["log_prob"] == pytest.approx(asked["log_prob"], rel=1e-4)
    for _, data in events[:-1]:
        whole = done[data["text"]]["hypotheses"][0]["text"]
        assert whole.startswith(data["translation"].rstrip("\N{REPLACEMENT CHARACTER}"))


def test_words_are_linked_to_the_words_they_attend_to(client, translator):
    line = real_pairs()[0][5]
    [found] = _ask(client, q=line, alignments=True, split="lines")["translations"]
    [sentence] = found["sentences"]
    words = len(sentence["hypotheses"][0]["text"].split())
    assert [target for _, target in sentence["alignment"]] == [*range(words)]
    assert all(0 <= source < len(line.split()) for source, _ in sentence["alignment"])


def test_a_text_keeps_its_lines_and_what_is_between_sentences(client):
    text = "Open the file.  Close it!\n\n  Indented.\t\r\n"
    [found] = _ask(client, q=text)["translations"]
    assert [one["source"] for one in found["sentences"]] == [
        "Open the file.",
        "Close it!",
        "Indented.",
    ]
    first, second, third = (one["hypotheses"][0]["text"] for one in found["sentences"])
    assert found["hypotheses"][0]["text"] == f"{first}  {second}\n\n  {third}\t\r\n"


def test_forms_and_json_are_alike(client):
    fields = {"q": "Open the file & go", "source": "en", "target": "de"}
    expected = _ask(client, "/translate", **fields)
    for answer in (
        client.post("/translate", data=fields),
        client.post("/translate", files={name: (None, text) for name, text in fields.items()}),
    ):
        assert answer.json() == expected
    answer = client.post("/translate", data={**fields, "q": ["Open", "Close"]})
    assert len(answer.json()["translatedText"]) == 2


def test_a_client_that_nobody_here_wrote(client):
    other = LibreTranslateAPI(str(client.base_url))
    expected = _ask(client, "/translate", q="Open the file.")["translatedText"]
    assert other.translate("Open the file.", "en", "de") == expected
    assert other.languages() == [{"code": "en", "name": "English", "targets": ["de"]}]
    assert other.detect("Open") == [{"language": "en", "confidence": 100.0}]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("kind", [[], ["-H", f"Content-Type: {JSON}"]])
def test_curl_gets_a_string_for_each_that_it_sends(client, kind):
    expected = _ask(client, "/translate", q=["Open the file.", ""])["translatedText"]
    address = f"{client.base_url}/translate"
    data = ["-d", '{"q":["Open the file.",""],"source":"en","target":"de"}']
    if not kind:  # a form, which is what curl sends by itself
        data = [f"-d{field}" for field in ("q=Open the file.", "q=", "source=en", "target=de")]
    done = subprocess.run(
        ["curl", "-sS", address, *kind, *data], capture_output=True, check=True, timeout=60
    )
    assert json.loads(done.stdout) == {"translatedText": expected}


def test_the_metrics_count_and_the_description_names_every_route(client):
    def counted(name):
        return float(re.search(rf"^{re.escape(name)} (\S+)$", client.get("/metrics").text, re.M)[1])

    _ask(client, "/translate", q="Open")
    before = counted('t2t_requests_total{route="/translate",status="200"}')
    lines = counted('t2t_lines_total{pair="en-de"}')
    _ask(client, "/translate", q=["Open", "Close"])
    assert counted('t2t_requests_total{route="/translate",status="200"}') == before + 1
    assert counted('t2t_lines_total{pair="en-de"}') == lines + 2
    assert counted('t2t_rows_in_use{pair="en-de"}') == 0
    described = client.get("/openapi.json").json()["paths"]
    for path, methods in described.items():
        answer = client.request(next(iter(methods)).upper(), path, json={})
        assert answer.status_code in (200, 400) or path == "/download_file/{name}"
    for path in ("/", "/docs", "/page.js", "/page.css", "/docs.js", "/live", "/health"):
        assert client.get(path).status_code == 200


def test_a_confidence_is_the_mean_probability_of_subwords_as_the_page_says(client, translator):
    [best] = translator.nbest(["Open the file"], 1, max_source_length=32, **DECODING)[0]
    [found] = _ask(client, q="Open the file", split="lines")["translations"]
    mean = math.exp(best.log_prob / len(best.tokens))
    assert found["hypotheses"][0]["confidence"] == pytest.approx(mean, rel=1e-4)
    page = " ".join(client.get("/").text.split())
    assert "The confidence is the mean probability (the geometric mean)" in page
    assert "estimate" not in page


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("# of the tests\nsecret\n\nünï\n", "utf-8")
    engines = {("en", "de"): Quick(), ("fr", "de"): Quick()}
    with running(engines, keys=keys, bounds=replace(BOUNDS, timeout=60.0)) as (client, _):
        yield client


GOOD = {"q": "Open", "source": "en", "target": "de", "api_key": "secret"}


def _json(**fields):
    return json.dumps({**GOOD, **fields}).encode()


def _without(*names):
    return json.dumps({name: value for name, value in GOOD.items() if name not in names}).encode()


V1, PLAIN = "/v1/translations", "/translate"
BAD = {
    "not JSON": (PLAIN, JSON, b"{", 400, "the body is not JSON: Expecting property name"),
    "nothing": (PLAIN, JSON, b"", 400, "the body is not JSON: Expecting value"),
    "a list": (PLAIN, JSON, b"[1]", 400, "the body is not a JSON object"),
    "twice": (PLAIN, JSON, b'{"q": "a", "q": "b"}', 400, "a field is given twice"),
    "long number": (PLAIN, JSON, _json(q=10**1500), 400, "q is a number"),
    "not UTF-8": (PLAIN, JSON, b'{"q": "\xff"}', 400, "the body is not UTF-8: byte 8 is 0xff"),
    "no q": (PLAIN, JSON, _without("q"), 400, "q is missing"),
    "no target": (PLAIN, JSON, _without("target"), 400, "target is missing"),
    "number": (PLAIN, JSON, _json(q=3), 400, "q is a number; give a string"),
    "null": (PLAIN, JSON, _json(q=None), 400, "q is null; give a string"),
    "object": (PLAIN, JSON, _json(q={"a": 1}), 400, "q is an object; give a string"),
    "list of numbers": (PLAIN, JSON, _json(q=["a", 1.5]), 400, "q[1] is a number"),
    "list of lists": (PLAIN, JSON, _json(q=[["a"]]), 400, "q[0] is a list; give a string"),
    "control": (PLAIN, JSON, _json(q="a\x00"), 400, "the control character U+0000 at character 2"),
    "escape": (PLAIN, JSON, _json(q=["a", "\x1b["]), 400, "q[1] has the control character U+001B"),
    "surrogate": (PLAIN, JSON, _json(q="\ud800"), 400, "half of a surrogate pair, U+D800"),
    "unknown": (V1, JSON, _json(text="a"), 400, "unknown field 'text'; there are q, source"),
    "half a target": (PLAIN, JSON, _json(target="\udc00"), 400, "target has half of a surrogate"),
    "half a source": (V1, JSON, _json(source="a\ud800"), 400, "U+D800 at character 2; remove it"),
    "half a format": (PLAIN, JSON, _json(format="\ud83d"), 400, "format has half of a surrogate"),
    "half a name": (V1, JSON, _json(**{"\ud800": 1}), 400, "unknown field '\\ud800'; there are"),
    "long language": (PLAIN, JSON, _json(target="de" * 400), 400, "there is no language 'dede"),
    "nothing given": (PLAIN, JSON, _json(target=""), 400, "target is missing"),
    "infinity": (PLAIN, JSON, _json(alternatives=1e999), 400, "alternatives is a number; give a"),
    "many texts": (PLAIN, JSON, _json(q=[""] * 6), 400, "q has 6 texts, more than 5; send less"),
    "bytes of a query": (PLAIN + "?q=%ff", FORM, b"", 400, "the query is not UTF-8: byte 1 is 0x"),
    "fields of a query": (PLAIN + "?" + "a&" * 10_001, FORM, b"", 400, "the query is malformed:"),
    "no slash more": (PLAIN + "/", JSON, _json(), 404, "there is no /translate/; see /docs"),
    "escapes in a path": (
        "/%1b[31m%0a",
        JSON,
        _json(),
        404,
        r"there is no /\u001b[31m\n; see /docs",
    ),
    "form without an end": (
        PLAIN,
        "multipart/form-data; boundary=x",
        b'--x\r\nContent-Disposition: form-data; name="q"\r\n\r\nb\r\n--x\r\n'
        b'Content-Disposition: form-data; name="target"\r\n\r\nde',
        400,
        "the form is malformed: its last boundary is missing",
    ),
    "field without a name": (
        PLAIN,
        "multipart/form-data; boundary=x",
        b"--x\r\nContent-Disposition: form-data\r\n\r\nb\r\n--x--\r\n",
        400,
        "the form is malformed:",
    ),
    "empty form": (PLAIN, "multipart/form-data; boundary=x", b"", 400, "its last boundary is miss"),
    "language": (PLAIN, JSON, _json(target="xx"), 400, "no language 'xx' here; there are de"),
    "wrong way": (PLAIN, JSON, _json(source="de", target="en"), 400, "no language 'en' here"),
    "type of language": (PLAIN, JSON, _json(source=["en"]), 400, "source is a list; give a"),
    "format": (PLAIN, JSON, _json(format="pdf"), 400, "format='pdf' is none of text, html"),
    "alternatives": (PLAIN, JSON, _json(alternatives=-1), 400, "alternatives=-1 is outside [0,"),
    "half": (PLAIN, JSON, _json(alternatives=0.5), 400, "alternatives is a number; give a whole"),
    "truth": (PLAIN, JSON, _json(alternatives=True), 400, "alternatives is true or false; give"),
    "many lines": (PLAIN, JSON, _json(q="a\n" * 6), 400, "there are 6 sentences, more than 5"),
    "long text": (PLAIN, JSON, _json(q="a" * 301), 400, "q has 301 characters, more than 300"),
    "large body": (PLAIN, JSON, b" " * 2001, 413, "the body is larger than 2,000 bytes"),
    "type": (PLAIN, "text/plain", b"Open", 415, "content type 'text/plain': send application/js"),
    "no type": (PLAIN, None, b"Open", 415, "content type '': send application/json"),
    "bytes of a form": (PLAIN, FORM, b"q=%ff&target=de", 400, "the body is not UTF-8: byte 1"),
    "letters of a form": (PLAIN, FORM, "q=ü".encode(), 400, "the body is not UTF-8: byte 3"),
    "broken form": (
        PLAIN,
        "multipart/form-data; boundary=x",
        b"--y\r\n",
        400,
        "the form is malformed:",
    ),
    "no boundary": (PLAIN, "multipart/form-data", b"--y\r\n", 400, "the form is malformed:"),
    "file": (
        PLAIN,
        "multipart/form-data; boundary=x",
        b'--x\r\nContent-Disposition: form-data; name="api_key"\r\n\r\nsecret\r\n'
        b'--x\r\nContent-Disposition: form-data; name="q"; filename="a"\r\n\r\nb\r\n--x--\r\n',
        400,
        "q is a file; give a string",
    ),
    "no key": (PLAIN, JSON, _without("api_key"), 401, "an API key is needed"),
    "wrong key": (PLAIN, JSON, _json(api_key="Secret"), 403, "the API key is wrong"),
    "type of key": (PLAIN, JSON, _json(api_key=[1]), 400, "api_key is no string"),
    "no page": ("/translator", JSON, _json(), 404, "there is no /translator; see /docs"),
    "num_best": (V1, JSON, _json(num_best=0), 400, "num_best=0 is outside [1, 1]"),
    "beam": (V1, JSON, _json(beam_size=7), 400, "beam_size=7 is neither 1 nor this server's 1"),
    "tokens": (V1, JSON, _json(max_tokens=0), 400, "max_tokens=0 is outside [1, 100000]"),
    "split": (V1, JSON, _json(split="words"), 400, "split='words' is none of sentences, lines"),
    "stream": (V1, JSON, _json(stream="yes"), 400, "stream is a string; give true or false"),
    "explosion": (PLAIN, JSON, _json(q="explode"), 500, "the server has failed"),
}


def _promised():
    """The errors of the document's table: pairs of a status and a pattern."""
    rows = re.findall(r"^\| (\d{3}) \| `([^`]+)` \|", DOCUMENT.read_text("utf-8"), re.M)
    return [
        (int(status), ".*".join(map(re.escape, message.split("…")))) for status, message in rows
    ]


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET / HTTP/1.1\r\nx: " + b"x" * 200_000,
        b"GET /" + b"x" * 200_000,
        b"POST /translate HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nx\r\n",
    ],
)
def test_what_is_no_request_gets_the_answer_that_is_promised(pairs, sent):
    with socket.create_connection((pairs.base_url.host, pairs.base_url.port), timeout=30) as own:
        received = b""
        with contextlib.suppress(ConnectionError):  # it may be refused before all of it was sent
            own.sendall(sent)
        with contextlib.suppress(ConnectionError):
            while part := own.recv(4096):
                received += part
    head, body = received.decode().split("\r\n\r\n")
    assert head.startswith("HTTP/1.1 400 ")
    said = json.loads(body)["error"]
    assert said.startswith("this is no request of HTTP/1.1")
    assert any(re.fullmatch(like, said) for code, like in _promised() if code == 400)


@pytest.mark.parametrize("case", BAD)
def test_a_bad_request_gets_the_answer_that_is_promised(pairs, case):
    path, kind, body, status, message = BAD[case]
    headers = {} if kind is None else {"content-type": kind}
    answer = pairs.post(path, content=body, headers=headers)
    assert answer.headers["content-type"] == JSON
    said = answer.json()["error"]
    assert (answer.status_code, message in said) == (status, True), said
    assert any(status == code and re.fullmatch(like, said) for code, like in _promised()), said
    assert pairs.post(PLAIN, content=_json(), headers={"content-type": JSON}).json() == {
        "translatedText": "OPEN"
    }


DEEP = {
    "lists": b"[" * 1_000_000,
    "objects": b'{"q":' * 200_000,
    "a list that ends": b'{"q":' + b"[" * 400_000 + b"]" * 400_000 + b"}",
}


@pytest.mark.parametrize("body", DEEP.values(), ids=DEEP)
def test_what_is_nested_deeply_is_refused(body):
    with running({("en", "de"): Quick()}) as (client, _):
        answer = client.post(PLAIN, content=body, headers={"content-type": JSON})
    assert (answer.status_code, answer.json()) == (400, {"error": "the JSON is nested too deeply"})


def _raw(client, sent):
    """What a connection receives that sends these bytes and nothing more, until it is closed."""
    received = b""
    with socket.create_connection((client.base_url.host, client.base_url.port), timeout=30) as own:
        own.sendall(sent)
        with contextlib.suppress(ConnectionError):
            while part := own.recv(4096):
                received += part
    return received.decode()


_BODY = b'{"q":"a","source":"en","target":"de"}'


@pytest.mark.parametrize(
    ("line", "headers"),
    [
        ("POST /translate HTTP/1.1", "content-length: 37\r\ntransfer-encoding: chunked"),
        ("POST /translate HTTP/1.1", "transfer-encoding: chunked\r\ncontent-length: 4"),
        ("GET /live HTTP/1.1", "transfer-encoding: chunked\r\ncontent-length: 0"),
        ("POST /translate HTTP/1.0", "transfer-encoding: chunked"),
    ],
)
def test_a_request_of_two_lengths_is_refused_and_its_connection_closed(line, headers):
    """A proxy that goes by the other length would take what follows for another's request."""
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(_BODY), _BODY)
    head = f"{line}\r\nhost: a\r\ncontent-type: {JSON}\r\n{headers}\r\n\r\n".encode()
    next_one = b"GET /live HTTP/1.1\r\nhost: a\r\n\r\n"
    with running({("en", "de"): Quick()}) as (client, _):
        received = _raw(client, head + chunked + next_one)
    assert received.count("HTTP/1.1 ") == 1
    assert received.startswith("HTTP/1.1 400 ")
    said = json.loads(received.split("\r\n\r\n")[1])["error"]
    assert any(re.fullmatch(like, said) for code, like in _promised() if code == 400)


@pytest.mark.parametrize("host", ["evil.example", "[", "", "a:b:c", "\u00fc", "x" * 5000])
def test_no_address_is_made_of_the_header_host(host):
    with running({("en", "de"): Quick()}) as (client, _):
        for path in ("/translate/", "/docs/", "//evil.example/..", "/translate?target=de&q=a"):
            head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0\r\n"
            received = _raw(client, head.encode() + b"connection: close\r\n\r\n")
            status = int(received.split()[1])
            assert status == (200 if "?" in path else 404) or (
                status == 400 and "no req" in received
            )
            assert "location" not in received.lower()


def test_a_client_of_libretranslate_may_send_more_than_is_known(client):
    fields = {"q": "Open the file", "source": "en", "target": "de"}
    expected = _ask(client, "/translate", **fields)
    more = {"secret": "", "batch": 3, "glossary": None, "format": "", "alternatives": None}
    assert _ask(client, "/translate", **fields, **more) == expected
    assert client.post("/translate", params=fields).json() == expected
    assert client.post("/translate", params={**fields, "q": "No"}, data=fields).json() != expected
    part = {name: fields[name] for name in ("source", "target")}
    assert client.post("/translate", params=part, data={"q": fields["q"]}).json() == expected
    both = client.post("/translate", params=[*part.items(), ("q", "Open"), ("q", "")]).json()
    assert len(both["translatedText"]) == 2
    assert client.post("/detect", params={"q": "Open", "foo": "1"}).status_code == 200
    assert client.post("/detect", json={"q": "Open", "source": 3}).status_code == 200


@pytest.mark.parametrize(
    ("module", "name", "text"),
    [
        (answers, "html_document", "<a " * 700),
        (bodies, "_fields", ["<a <b <i "] * 1900),
        (service, "best_choices", "a" * 2001),
    ],
)
def test_what_is_large_is_prepared_off_the_loop_within_the_time_of_its_request(
    monkeypatch, module, name, text
):
    began, go_on = threading.Event(), threading.Event()

    def slowly(*given):
        began.set()
        assert go_on.wait(60)
        return real(*given)

    real = getattr(module, name)
    monkeypatch.setattr(module, name, slowly)
    bounds = Bounds(timeout=1.0)
    with running({("en", "de"): Quick()}, bounds=bounds) as (client, _):
        with ThreadPoolExecutor(1) as pool:
            fields = {"q": text, "target": "de", "format": "html"}
            late = pool.submit(client.post, PLAIN, json=fields)
            assert began.wait(60)
            assert httpx.get(f"{client.base_url}/live").status_code == 200  # meanwhile
            assert late.result().status_code == 504
        go_on.set()


@pytest.mark.parametrize("text", ["<p>&nbsp;</p>", "&#160;", "<i>&Tab;</i>", "&ensp;", "<![Open"])
def test_white_space_by_entity_fails_nothing_of_a_list(text):
    with running({("en", "de"): Quick()}) as (client, _):
        fields = {"q": [text, "<b>one</b>"], "target": "de", "format": "html"}
        answer = client.post(PLAIN, json=fields)
    assert answer.json()["translatedText"] == [text, "<b>ONE</b>"]


def test_a_file_in_the_place_of_a_text_is_refused_where_texts_are_logged():
    with running({("en", "de"): Quick()}, log_texts=True) as (client, _):
        answer = client.post(PLAIN, files={"q": b"\xff"}, data={"target": "de"})
    assert answer.status_code == 400
    assert answer.json()["error"] == "q is a file; give a string"


def test_methods_and_bearers(pairs):
    answer = pairs.get("/translate")
    assert answer.status_code == 405
    assert answer.json()["error"] == "/translate does not take GET; see /docs"
    for key, status in (("secret", 200), ("ünï", 200), ("other", 403)):
        headers = {"authorization": f"Bearer {key}".encode()}
        answer = pairs.post(PLAIN, json={"q": "a", "target": "de", "source": "en"}, headers=headers)
        assert answer.status_code == status


def test_the_language_is_detected_among_those_that_are_served(pairs):
    text = "Voulez-vous vraiment supprimer ce fichier ?"
    fields = {"q": text, "source": "auto", "target": "de", "api_key": "secret"}
    answer = pairs.post(PLAIN, json=fields).json()
    assert answer["detectedLanguage"]["language"] == "fr"
    assert answer["translatedText"] == text.upper()
    found = pairs.post("/detect", json={"q": text, "api_key": "secret"}).json()
    assert [one["language"] for one in found] == ["fr", "en"]
    assert found[0]["confidence"] > 90


def test_markup_stays_where_it_is():
    html = (
        '<!DOCTYPE html>\n<p class="a">One  &amp;\n two.<br/>Three &lt;four&gt;</P >'
        "<script>if (a < b) stay()</script><!-- stay --><pre> stay </pre>"
        '<span translate="no">Stay <b>all</b></span> — <i title="stay">five</i>\n<p>open'
    )
    with running({("en", "de"): Quick()}) as (client, _):
        fields = {"q": html, "target": "de", "format": "html"}
        found = client.post(PLAIN, json=fields).json()["translatedText"]
    assert found == (
        '<!DOCTYPE html>\n<p class="a">ONE &amp; TWO.<br/>THREE &lt;FOUR&gt;</P >'
        "<script>if (a < b) stay()</script><!-- stay --><pre> stay </pre>"
        '<span translate="no">Stay <b>all</b></span> — <i title="stay">FIVE</i>\n<p>OPEN'
    )


def test_terms_of_a_request_are_used_in_text_and_markup(client):
    fields = {"glossary": {"file": "Datei", "The page": "die Seite"}, "format": "html"}
    texts = ["Open the <b>file</b>", "Go on", "the  PAGE of a file"]
    found = _ask(client, "/translate", q=texts, **fields)["translatedText"]
    shown = [re.sub("<[^>]*>", "", one) for one in found]
    assert "Datei" in shown[0]
    assert all(term in shown[2].lower() for term in ("datei", "die seite"))
    assert found[0].count("<b>") == found[0].count("</b>") == 1
    assert found[1] == _ask(client, "/translate", q="Go on", format="html")["translatedText"]
    own = _ask(client, q=texts[0], split="lines", **fields | {"format": "text"})
    assert "Datei" in own["translations"][0]["hypotheses"][0]["text"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"glossary": {"a": "b"}, "alternatives": 1}, "glossary is for one translation of a text"),
        ({"glossary": {"a": ""}}, "glossary has an empty term; leave it out"),
        ({"glossary": {"a": "b", "A ": "c"}}, "glossary has 'a' twice; leave one of them"),
        ({"glossary": "a=b"}, "glossary is a string; give an object of terms and their transl"),
        ({"glossary": {"a": 1}}, "glossary['a'] is a number; give a string"),
        ({"glossary": {"a": "漢"}}, "the model's vocabulary cannot spell '漢', which is wanted"),
    ],
)
def test_terms_that_cannot_be_used_are_refused(client, fields, message):
    answer = client.post("/translate", json={"q": "Open", "target": "de", **fields})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(message)


def test_a_server_without_a_search_for_terms_says_so():
    with running({("en", "de"): Quick()}) as (client, _):
        fields = {"q": "Open", "target": "de", "glossary": {"open": "öffnen"}}
        answer = client.post("/translate", json=fields)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("this server has no glossaries; start it with --glos")


def test_a_file_is_translated_and_fetched():
    page = b"<p>One <b>two</b>. Three</p>"
    with running({("en", "de"): Quick(), ("fr", "de"): Quick()}) as (client, server):
        fields = {"source": "en", "target": "de"}
        sent = client.post("/translate_file", data=fields, files={"file": ("a.html", page)})
        url = sent.json()["translatedFileUrl"]
        assert url.startswith(f"{client.base_url.join('/download_file/')}")
        found = client.get(url)
        assert found.content == b"<p>ONE <b>TWO</b>. THREE</p>"
        assert found.headers["content-disposition"] == "attachment"
        assert url.endswith(".html")
        refusals = {
            "a.pdf": (b"", "a file with the suffix .pdf cannot be translated; there are .txt"),
            "a.docx": (b"PK", "the .docx file is damaged, or no such file"),
            "a.txt": (b"x. " * 20_000, "the file has 59,979 characters, more than 30,000; send"),
        }
        server.answers = replace(server.answers, bounds=replace(Bounds(), max_characters=30_000))
        for name, (content, message) in refusals.items():
            answer = client.post("/translate_file", data=fields, files={"file": (name, content)})
            assert answer.status_code == 400
            assert answer.json()["error"].startswith(message)
        answer = client.post("/translate_file", data=fields | {"file": "text"})
        assert answer.json()["error"] == "file is a string; give a file, as multipart/form-data"
        answer = client.post("/translate_file", data=fields)
        assert answer.json()["error"] == "file is missing: the file to translate, in a form"
        gone = client.get("/download_file/other.html")
        assert gone.status_code == 404
        assert gone.json()["error"] == "there is no such file any more; translate it again"


def test_the_language_of_a_file_is_detected():
    pytest.importorskip("lingua")
    text = "Voulez-vous vraiment supprimer ce fichier ? Oui, certainement."
    with running({("en", "de"): Quick(), ("fr", "de"): Quick()}) as (client, _):
        fields = {"source": "auto", "target": "de"}
        sent = client.post("/translate_file", data=fields, files={"file": ("a.txt", text.encode())})
        found = client.get(sent.json()["translatedFileUrl"])
        metrics = client.get("/metrics").text
    assert found.text == text.upper()
    assert re.search(r'^t2t_lines_total{pair="fr-de"} 2', metrics, re.MULTILINE)


def test_files_are_kept_for_a_while_and_as_far_as_there_is_room(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(downloads.time, "monotonic", lambda: now[0])
    kept = downloads.Downloads(most_bytes=10, seconds=60)
    names = []
    for content in (b"1234", b"5678", b"90"):
        names.append(kept.put(content, ".txt"))
        now[0] += 10
    assert [kept.get(name) for name in names] == [b"1234", b"5678", b"90"]
    last = kept.put(b"abc", ".txt")
    assert [kept.get(name) for name in (*names, last)] == [None, b"5678", b"90", b"abc"]
    now[0] = 75
    assert [kept.get(name) for name in (*names, last)] == [None, None, b"90", b"abc"]
    large = kept.put(b"x" * 11, "")
    assert kept.get(large) is None
    assert len({*names, last, large}) == 5


def test_other_pages_may_not_call_it_unless_they_are_named():
    origin = {"origin": "https://example.org"}
    for cors, allowed in (((), None), (("https://example.org",), "https://example.org")):
        with running({("en", "de"): Quick()}, cors=cors) as (client, _):
            answer = client.post(PLAIN, json={"q": "a", "target": "de"}, headers=origin)
            assert answer.headers.get("access-control-allow-origin") == allowed


@pytest.mark.parametrize(
    ("origin", "method", "status"),
    [
        ("https://example.org", "POST", 200),
        ("https://example.org", "DELETE", 400),
        ("https://evil.example", "POST", 400),
        ("null", "POST", 400),
    ],
)
def test_what_a_browser_asks_before_is_refused_in_json(origin, method, status):
    headers = {"origin": origin, "access-control-request-method": method}
    with running({("en", "de"): Quick()}, cors=("https://example.org",)) as (client, _):
        answer = client.options(PLAIN, headers=headers)
    assert answer.status_code == status
    allowed = answer.headers.get("access-control-allow-origin")
    assert allowed == ("https://example.org" if "example.org" in origin else None)
    if status == 400:
        said = answer.json()["error"]
        assert any(re.fullmatch(like, said) for code, like in _promised() if code == 400)


@pytest.mark.parametrize(
    ("sources", "status", "expected"),
    [
        (("eng", "fra"), 200, "fra"),
        (("en-us", "fr_ca"), 200, "fr_ca"),
        (("en", "xyz"), 501, "the detector does not know two of en, xyz: name the source language"),
    ],
)
def test_languages_with_other_codes_are_detected(sources, status, expected):
    engines = {(source, "de"): Quick() for source in sources}
    with running(engines) as (client, _):
        answer = client.post("/detect", json={"q": "Voulez-vous vraiment supprimer ce fichier ?"})
        assert answer.status_code == status
        assert (
            answer.json()[0]["language"] if status == 200 else answer.json()["error"]
        ) == expected


def test_a_full_queue_says_when_to_try_again():
    engine = Patient(room=2)
    with running({("en", "de"): engine}) as (client, _):
        answer = client.post(PLAIN, json={"q": ["a", "b", "c"], "target": "de"})
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        assert all(future.cancelled() for _, future in engine.asked)  # none of it goes on


def test_a_request_that_takes_too_long_is_given_up():
    engine = Patient()
    bounds = replace(BOUNDS, max_lines=1000)
    with running({("en", "de"): engine}, bounds=bounds) as (client, _):
        answer = client.post(PLAIN, json={"q": ["a", "b"], "target": "de"})
        assert answer.status_code == 504
        assert [future.cancelled() for _, future in engine.asked] == [True, True]
        fields = {"q": "a", "target": "de", "stream": True}
        assert client.post(V1, json=fields).text.startswith('event: error\ndata: {"status": 504')


def test_the_rate_of_each_address_is_bounded():
    bounds = Bounds(requests_per_minute=3)
    with running({("en", "de"): Quick()}, bounds=bounds) as (client, _):
        answers = [client.post(PLAIN, json={"q": "a", "target": "de"}) for _ in range(4)]
        assert [one.status_code for one in answers] == [200, 200, 200, 429]
        assert 1 <= int(answers[3].headers["retry-after"]) <= 20
        assert client.get("/languages").status_code == 200


def test_a_body_that_does_not_arrive_is_given_up():
    def slowly():
        yield b'{"q":'
        import time

        time.sleep(1)
        yield b'"a"}'

    with running({("en", "de"): Quick()}, bounds=BOUNDS) as (client, _):
        try:
            answer = client.post(PLAIN, content=slowly(), headers={"content-type": JSON})
            assert answer.status_code == 408
        except httpx.TransportError:  # closed while the client still wrote
            pass
        assert client.get("/live").status_code == 200
