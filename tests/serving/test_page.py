"""The pages of the server, in a real browser: what a reader sees, points at and hears."""

import json
import re

import httpx
import pytest

from t2t_jax.decoding.translations import Hypothesis
from t2t_jax.serving.settings import Bounds
from tests.browser import addresses, complaints
from tests.interchange.models import real_pairs
from tests.serving.conftest import Patient, Quick, running, until

TEXT = "Open the file. Close it!\n\nThe <b>settings</b> have been saved."
KNOWN = "Open the file. Cancel printing.\n\nOpen"  # every letter has a subword


@pytest.fixture(scope="module")
def served(searches):
    with running({("en", "de"): searches}) as (client, _):
        yield client


@pytest.fixture(scope="module")
def quick():
    engine = Quick()
    pairs = [("en", "de"), ("fr", "de"), ("de", "en")]
    with running(dict.fromkeys(pairs, engine)) as (client, _):
        yield client


@pytest.fixture(autouse=True)
def _undisturbed(browser):
    """No page has a mistake, breaks its policy, or asks another host."""
    _size(browser, 1280, 900)
    yield
    messages = [one["message"] for one in browser.get_log("browser") if one["level"] != "INFO"]
    assert [one for one in messages if "Failed to load resource" not in one] == []
    asked = [url for url in addresses(browser) if not url.startswith(("chrome", "data", "about"))]
    assert [url for url in asked if not url.startswith("http://127.0.0.1:")] == []


def _size(browser, width, height):
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def _open(browser, client, path="/"):
    browser.get(f"{client.base_url}".rstrip("/") + path)
    if path == "/":
        until(lambda: browser.find_elements("css selector", "#target option"))


def _text(browser, name):
    return browser.execute_script(f"return document.getElementById('{name}').textContent")


def _type(browser, text):
    """Replace what is written, and wait for what comes of it."""
    box = browser.find_element("id", "text")
    box.clear()
    box.send_keys(text)
    return _settled(browser)


def _settled(browser):
    result = browser.find_element("id", "result")
    until(lambda: result.get_attribute("aria-busy") == "false")
    return _text(browser, "output")


def _words(browser, *selectors):
    """For each selector, the places of these words among all words of their side."""
    return browser.execute_script(
        "return [...arguments].map((selector) => "
        "[...document.querySelectorAll(selector)].map((one) => +one.dataset.place))",
        *selectors,
    )


def _focused(browser):
    return browser.switch_to.active_element


def _ask(client, **fields):
    answer = client.post("/v1/translations", json={"target": "de", **fields})
    assert answer.status_code == 200
    return answer.json()["translations"][0]


def test_what_is_typed_is_translated_line_by_line(browser, served):
    _open(browser, served)
    shown = _type(browser, TEXT)
    expected = _ask(served, q=TEXT)
    first, second, third = (one["hypotheses"][0]["text"] for one in expected["sentences"])
    assert shown == expected["hypotheses"][0]["text"] == f"{first} {second}\n\n{third}"
    assert _text(browser, "status") == "Translated to German, 3 sentences."
    assert _text(browser, "count").startswith(f"{len(TEXT)} ")
    assert browser.find_element("id", "text").get_attribute("lang") == "en"
    assert browser.find_element("id", "output").get_attribute("lang") == "de"
    browser.find_element("id", "clear").click()
    assert _text(browser, "output") == _text(browser, "status") == ""
    assert not browser.find_element("id", "copy").is_displayed()
    assert not browser.find_element("id", "others").is_displayed()


def test_alternatives_have_their_scores(browser, served):
    line = real_pairs()[0][3]
    _open(browser, served)
    _type(browser, line)
    best, other = _ask(served, q=line, num_best=2)["hypotheses"]
    [text] = browser.find_elements("css selector", "#alternatives .other")
    assert text.get_attribute("textContent") == other["text"]
    for place, one in (("#alternatives .scores", other), ("#sureness", best)):
        said = browser.find_element("css selector", place).text.replace("\N{MINUS SIGN}", "-")
        sure, score = map(float, re.fullmatch(r"Confidence (\d+)%, score (\S+)", said).groups())
        assert sure == pytest.approx(100 * one["confidence"], abs=0.51)
        assert score == pytest.approx(one["score"], abs=0.0051)
    differs = browser.find_element("css selector", ".differs")
    before = browser.execute_script(
        "const range = document.createRange(); range.setStart(arguments[0], 0);"
        "range.setEndBefore(arguments[1]); return range.toString()",
        text,
        differs,
    )
    after = other["text"].removeprefix(before).removeprefix(differs.get_attribute("textContent"))
    assert best["text"].startswith(before)
    assert best["text"].endswith(after)
    browser.find_element("css selector", "#number option[value='1']").click()
    assert _settled(browser) == best["text"]
    assert browser.find_elements("css selector", "#alternatives li") == []


def _links(sentences):
    """The links of a text, with words counted over all its sentences."""
    links, before = [], [0, 0]
    for one in sentences:
        links += [(before[0] + source, before[1] + target) for source, target in one["alignment"]]
        before[0] += len(one["source"].split())
        before[1] += len(one["hypotheses"][0]["text"].split())
    return links


@pytest.mark.thorough
def test_a_word_that_is_pointed_at_shows_what_it_attends_to(browser, served):
    from selenium.webdriver import ActionChains

    _open(browser, served)
    _type(browser, KNOWN)
    links = _links(_ask(served, q=KNOWN, alignments=True)["sentences"])
    words = browser.find_elements("css selector", "#output .word")
    assert len(words) == len(links)
    pointer = ActionChains(browser, duration=0)
    sources = [word for line in KNOWN.split("\n") for word in line.split()]
    for target, word in enumerate(words):
        pointer.move_to_element(word).perform()
        linked = [source for source, other in links if other == target]
        assert _words(browser, "#output .chosen", "#behind .linked") == [[target], linked]
        assert _text(browser, "linked") == f"“{word.text}” attends to “{sources[linked[0]]}”"

    # The words of the source lie under the text area, where its own text is.
    for source, word in enumerate(browser.find_elements("css selector", "#behind .word")):
        pointer.move_to_element(word).perform()
        linked = [target for other, target in links if other == source]
        assert _words(browser, "#behind .chosen", "#output .linked") == [[source], linked]

    browser.find_element("id", "text").send_keys(" More")
    assert browser.find_elements("css selector", ".linked, .chosen") == []  # of another text
    _settled(browser)


def test_words_are_reached_with_the_arrow_keys(browser, served):
    from selenium.webdriver import Keys

    _open(browser, served)
    _type(browser, "Open the file.")
    links = _links(_ask(served, q="Open the file.", alignments=True)["sentences"])
    [first] = browser.find_elements("css selector", "#output [tabindex='0']")  # one stop of Tab
    browser.find_element("id", "clear").send_keys(Keys.TAB)
    assert _focused(browser) == first
    last = len(links) - 1
    steps = ((Keys.ARROW_RIGHT, 1), (Keys.END, last), (Keys.ARROW_RIGHT, last), (Keys.HOME, 0))
    for key, target in steps:
        _focused(browser).send_keys(key)
        found = _words(browser, "#output .word:focus", "#behind .linked")
        assert found == [[target], [links[target][0]]]
        assert len(browser.find_elements("css selector", "#output [tabindex='0']")) == 1

    # In the source the caret does the same.
    browser.find_element("id", "text").send_keys(Keys.HOME)
    expected = [target for source, target in links if source == 0]
    assert _words(browser, "#behind .chosen", "#output .linked") == [[0], expected]


def test_one_key_translates_at_once(browser, quick):
    from selenium.webdriver import Keys

    _open(browser, quick)
    browser.execute_script("window.setTimeout = () => 0")  # no pause ever ends
    browser.find_element("id", "text").send_keys("now", Keys.CONTROL, Keys.ENTER)
    assert _settled(browser) == "NOW"


def test_an_older_request_is_given_up_and_its_answer_is_not_shown(browser):
    engine = Patient()
    with running({("en", "de"): engine}) as (client, _):
        _open(browser, client)
        box = browser.find_element("id", "text")
        box.send_keys("old")
        until(lambda: len(engine.asked) == 1)
        box.send_keys(" new")
        until(lambda: len(engine.asked) == 2 and engine.asked[0][1].cancelled())
        engine.answer()
        assert _settled(browser) == "OLD NEW"
        assert not browser.find_element("id", "others").is_displayed()  # it has no alternatives
        assert not browser.find_element("id", "linked").is_displayed()  # nor attention

        # Even one that comes after that of the newer request.
        browser.execute_script(
            "const real = fetch; window.read = 0;"
            "window.fetch = async (path, options) => {"
            "  const answer = await real(path, { ...options, signal: undefined });"
            "  const text = await answer.text();"
            "  window.read += 1;"
            "  return new Response(text, answer);"
            "};"
        )
        box.send_keys(" er")
        until(lambda: len(engine.asked) == 3)
        box.send_keys("!")
        until(lambda: len(engine.asked) == 4)
        engine.asked[3][1].set_result([Hypothesis("NEWEST", -1.0, -2.0, (1,))])
        assert _settled(browser) == "NEWEST"
        engine.answer()
        until(lambda: browser.execute_script("return window.read") == 2)
        assert _settled(browser) == "NEWEST"


def test_a_refusal_is_shown_in_words_and_the_text_stays(browser):
    bounds = Bounds(max_characters=10)
    with running({("en", "de"): Quick()}, bounds=bounds) as (client, _):
        _open(browser, client)
        _type(browser, "short")
        assert _type(browser, "much too long") == "SHORT"
        said = "Not translated: q has 13 characters, more than 10; send less at once (status 400)."
        assert _text(browser, "status") == said
        assert browser.find_element("id", "again").is_displayed()
        assert browser.find_element("id", "text").get_property("value") == "much too long"
        assert _type(browser, "shorter") == "SHORTER"
        assert not browser.find_element("id", "again").is_displayed()


def test_a_busy_server_is_asked_again(browser):
    engine = Quick(room=0)
    with running({("en", "de"): engine}) as (client, _):
        _open(browser, client)
        browser.find_element("id", "text").send_keys("patience")
        said = "try again later (status 429). Trying again in 1 second."
        until(lambda: said in _text(browser, "status"))
        engine.room = 10**9
        until(lambda: _text(browser, "output") == "PATIENCE")


def test_without_a_network_the_text_is_kept(browser, quick):
    _open(browser, quick)
    network = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd("Network.emulateNetworkConditions", {"offline": True, **network})
    try:
        assert _type(browser, "kept") == ""
        assert "The server cannot be reached. Your text is kept" in _text(browser, "status")
    finally:
        browser.execute_cdp_cmd("Network.emulateNetworkConditions", {"offline": False, **network})
    until(lambda: _text(browser, "output") == "KEPT")  # by itself, once there is a network


@pytest.mark.thorough
def test_a_key_is_asked_for_and_kept_for_the_tab(browser, tmp_path):
    (tmp_path / "keys").write_text("sécret\n", "utf-8")
    with running({("en", "de"): Quick()}, keys=tmp_path / "keys") as (client, _):
        _open(browser, client)
        key = browser.find_element("id", "key")
        assert key.is_displayed()
        assert _type(browser, "text") == ""
        assert _text(browser, "status").startswith("Enter an API key")
        key.send_keys("wrong")
        _settled(browser)
        assert _text(browser, "status") == "Not translated: the API key is wrong (status 403)."
        assert key.get_attribute("aria-invalid") == "true"
        key.clear()
        key.send_keys("sécret")
        assert _settled(browser) == "TEXT"
        assert browser.execute_script("return JSON.stringify(localStorage)") == "{}"
        _open(browser, client)
        assert browser.find_element("id", "key").get_property("value") == "sécret"
        assert _type(browser, "again") == "AGAIN"


def test_markup_is_shown_as_text(browser, quick):
    markup = "<script>window.run = 1</script> & <img src=x onerror=run=1> </textarea>"
    _open(browser, quick)
    assert _type(browser, markup) == markup.upper()
    assert browser.find_elements("css selector", "main script, main img") == []
    assert browser.execute_script("return window.run") is None
    assert not browser.find_element("id", "key").is_displayed()  # this server needs none


def test_languages_are_chosen_detected_and_swapped(browser, quick):
    def options(name):
        return [one.text for one in browser.find_elements("css selector", f"#{name} option")]

    _open(browser, quick)
    assert options("source") == ["Detect language", "English", "French", "German"]
    assert options("target") == ["German"]
    swap = browser.find_element("id", "swap")
    assert swap.is_displayed()
    browser.find_element("css selector", "#source option[value='fr']").click()
    assert not swap.is_displayed()  # there is no German to French
    browser.find_element("css selector", "#source option[value='auto']").click()
    assert options("target") == ["German", "English"]
    browser.find_element("css selector", "#target option[value='en']").click()
    assert _type(browser, "ja") == "JA"
    assert _text(browser, "detected") == "Detected: German"
    assert browser.find_element("id", "text").get_attribute("lang") == "de"
    browser.find_element("css selector", "#source option[value='en']").click()
    _settled(browser)
    swap.click()
    assert _settled(browser) == "JA"
    assert browser.find_element("id", "source").get_property("value") == "de"
    assert browser.find_element("id", "target").get_property("value") == "en"


def test_the_translation_is_copied(browser, quick):
    from selenium.webdriver import Keys

    for number, hide in enumerate(("", "Object.defineProperty(navigator, 'clipboard', {})")):
        _open(browser, quick)
        browser.execute_script(hide)
        shown = _type(browser, f"line {number}\nnext")
        browser.find_element("id", "copy").click()
        until(lambda: _text(browser, "copy") == "Copied")
        box = browser.find_element("id", "text")
        box.clear()
        box.send_keys(Keys.CONTROL, "v")
        assert box.get_property("value") == shown


def _background(browser):
    color = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    return sum(map(int, re.findall(r"\d+", color)[:3])) / 3


def test_the_theme_is_that_of_the_system_until_another_is_chosen(browser, quick):
    def prefer(scheme):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    prefer("dark")
    try:
        _open(browser, quick)
        button = browser.find_element("id", "theme")
        assert _background(browser) < 50
        assert button.get_attribute("aria-pressed") == "true"
        button.click()
        assert _background(browser) > 200
        _open(browser, quick)
        assert _background(browser) > 200
        _open(browser, quick, "/docs")
        assert _background(browser) > 200
        assert browser.find_element("id", "theme").get_attribute("aria-pressed") == "false"
    finally:
        prefer("light")
        browser.execute_script("localStorage.clear()")


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_a_narrow_window_needs_no_scrolling_to_the_side(browser, quick, path):
    _size(browser, 320, 600)
    _open(browser, quick, path)
    if path == "/":
        _type(browser, "short " + "x" * 200)
    else:
        until(lambda: browser.find_elements("css selector", ".route"))
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 320
    wide = (
        "return [...document.querySelectorAll('body *')].filter((one) => one.checkVisibility() && "
        "one.getBoundingClientRect().right > innerWidth + 1).map((one) => one.outerHTML)"
    )
    assert browser.execute_script(wide) == []


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_the_pages_are_accessible_in_both_themes(browser, served, path):
    from selenium.webdriver import ActionChains

    _open(browser, served, path)
    # Colours change at once, so that none is measured on its way.
    reduced = [{"name": "prefers-reduced-motion", "value": "reduce"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": reduced})
    if path == "/":
        _type(browser, "Open the file.")
        word = browser.find_element("css selector", "#output .word")
        ActionChains(browser, duration=0).move_to_element(word).perform()
        assert browser.find_elements("css selector", "#behind .linked")
        browser.execute_script("for (const id of ['access', 'again', 'swap']) $(id).hidden = false")
        browser.execute_script("say('It is wrong.', { wrong: true, again: true })")
    else:
        until(lambda: browser.find_elements("css selector", ".route"))
    for theme in ("light", "dark"):
        browser.execute_script("document.documentElement.dataset.theme = arguments[0]", theme)
        assert complaints(browser) == []


def test_the_description_shows_every_route_and_examples_that_work(browser, served):
    _open(browser, served, "/docs")
    until(lambda: browser.find_elements("css selector", ".route"))
    described = served.get("/openapi.json").json()["paths"]
    shown = {}
    for section in browser.find_elements("css selector", ".route"):
        heading = section.find_element("tag name", "h2").text
        shown[tuple(heading.split())] = section.get_property("textContent")
        [example] = section.find_elements("css selector", "pre")
        _check_example(served, example.text)
    expected = {
        (method.upper(), path): route
        for path, methods in described.items()
        for method, route in methods.items()
    }
    assert shown.keys() == expected.keys()
    for name, route in expected.items():
        content = route.get("requestBody", {}).get("content", {})
        fields = content.get("application/json", {}).get("schema", {}).get("properties", {})
        said = [*content, *fields, *route["responses"], route["summary"]]
        said += [one["description"] for one in route["responses"].values()]
        said += [
            one["description"].replace("`", "") for one in fields.values() if "description" in one
        ]
        said += [
            f"by default {one['default']}".lower() for one in fields.values() if "default" in one
        ]
        assert [one for one in said if one not in shown[name]] == []
    links = browser.find_elements("css selector", "#contents a")
    assert [tuple(one.text.split()) for one in links] == list(expected)


def _check_example(client, example):
    """Send what an example of curl says."""
    address = re.match(r"curl (\S+)", example)[1]
    path = httpx.URL(address).path
    assert str(client.base_url.join(path)) == address
    body = re.search(r"-d '(.*)'$", example)
    if body is None and "-F file=@" in example:
        fields = dict(re.findall(r"-F (\w+)=(\w+)", example))
        sent = client.post(path, data=fields, files={"file": ("a.txt", b"Open")})
        assert sent.status_code == 200
    elif body is None:
        assert client.get(path).status_code == (404 if path.endswith("/NAME") else 200)
    else:
        assert client.post(path, json=json.loads(body[1])).status_code == 200
