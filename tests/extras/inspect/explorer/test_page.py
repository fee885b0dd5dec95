"""The page of `explore`: its data, and what a real browser shows of them."""

import json
import re
import time
from pathlib import Path

import numpy as np
import pytest

import t2t_jax
from t2t_jax import Translator, UserError, attention_maps
from t2t_jax.batch import EOS_ID
from t2t_jax.extras.inspect.beam_record import record_search
from tests.browser import addresses
from tests.extras.interchange.models import OPTIONS, portable, translator_of
from tests.selection import thorough_after

TEXT = "Cancel </script><b>printing</b> & copy the 3 files."
_BYTE = 0.5 / 255 + 1e-6


@pytest.fixture(scope="module")
def translator() -> Translator:
    return translator_of(portable(OPTIONS["paper"]))


@pytest.fixture(scope="module")
def explored(translator):
    return t2t_jax.explore(translator, TEXT)


@pytest.fixture(scope="module")
def data(explored):
    [text] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', explored.page)
    return json.loads(text)


@pytest.mark.parametrize("beam_size", thorough_after(1, [3, 1]))
def test_a_recorded_search_is_the_search(translator, beam_size):
    options = {"beam_size": beam_size, "length_penalty": 0.6, "max_extra_length": 5}
    record = record_search(translator, "Open the file.", **options)
    [[best]] = translator.nbest(["Open the file."], 1, **options)
    assert record.winner == best.tokens
    winner = record.nodes[record.winner]
    assert winner.fate == "ended"
    assert winner.log_prob == pytest.approx(best.log_prob, rel=1e-5)
    penalty = ((5 + len(best.tokens)) / 6) ** 0.6
    assert winner.score == pytest.approx(best.log_prob / penalty, rel=1e-5)
    for step in range(1, len(max(record.nodes, key=len)) + 1):
        live = [key for key in record.nodes if len(key) == step and key[-1] != EOS_ID]
        assert 1 <= len(live) <= beam_size
    for key, node in record.nodes.items():
        parent = record.nodes.get(key[:-1])
        assert len(key) == 1 or (parent.fate == "kept" and parent.log_prob >= node.log_prob)
        children = [other for other in record.nodes if other[:-1] == key]
        assert bool(children) == (node.fate == "kept")
        assert (node.score is None) == (node.fate == "kept" or len(key) < len(record.winner)) or (
            node.fate == "ended"
        )


def test_what_keeps_no_beam_is_refused(translator):
    with pytest.raises(UserError, match="sampling keeps no beam"):
        record_search(translator, "Open", beam_size=1, temperature=1.0)
    learned = translator_of(portable(OPTIONS["learned-positions"]))
    with pytest.raises(UserError, match="positions of the model allow 128; shorten"):
        record_search(learned, "Open the file. " * 40)
    with pytest.raises(UserError, match="the sentence is blank"):
        t2t_jax.explore(translator, "  ")


def test_the_page_has_the_weights_to_a_byte(translator, explored, data):
    import base64

    maps = attention_maps(translator, TEXT)
    for name, one in data["attention"].items():
        flat = np.frombuffer(base64.b64decode(one["weights"]), np.uint8)
        weights = flat.reshape(one["shape"]) / 255
        np.testing.assert_allclose(weights, getattr(maps, name), atol=_BYTE)
        assert np.shape(one["kinds"]) == np.shape(one["entropy"]) == tuple(one["shape"][:2])
    assert data["source"] == maps.source
    assert data["sourceWords"] == maps.source_words
    assert data["input"]["embedding"]["shape"] == [len(maps.source), 16]
    np.testing.assert_allclose(data["input"]["products"][0], 8, rtol=1e-3)  # d_model / 2
    assert explored.maps.source == maps.source


def test_the_page_is_whole_and_names_nobody_else(explored, data):
    assert explored.page.count("</script>") == 2  # the text has none of its own
    assert "<b>printing" not in explored.page
    addresses = set(re.findall(r"https?://[^\s\"'`]+", explored.page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, which nothing is fetched from
    assert 'srcdoc="&lt;!doctype html' in explored._repr_html_()
    assert data["search"]["nodes"][data["search"]["winner"]]["fate"] == "ended"


def test_a_translation_can_be_given(translator):
    page = t2t_jax.explore(translator, "Open", references="Öffnen Sie").page
    assert '"translation": "Öffnen Sie"' in page


def test_a_page_of_the_base_model_is_small(translator, explored):
    weights = 3 * 6 * 8 * 40 * 40 * 4 / 3  # in base64
    values = 2 * 40 * 512 * 4 / 3
    assert len(explored.page) + weights + values < 2_000_000


def _cells(browser) -> np.ndarray:
    cells = browser.execute_script(
        "return [...document.querySelectorAll('#map rect')]"
        ".map((cell) => [cell.dataset.query, cell.dataset.key, cell.dataset.value].map(Number))"
    )
    places = np.array([cell[:2] for cell in cells], int)
    table = np.zeros(places.max(0) + 1)
    table[tuple(places.T)] = [cell[2] for cell in cells]
    return table


def test_a_browser_shows_the_weights_of_attention_maps(browser, translator, explored, tmp_path):
    from selenium.webdriver import ActionChains, Keys

    maps, path = explored.maps, tmp_path / "view.html"
    explored.save(path)
    browser.get(path.as_uri())
    head = "button.map[data-attention='cross'][data-layer='1'][data-head='2']"
    browser.find_element("css selector", head).click()
    assert "cross-attention, layer 2, head 3" in browser.find_element("id", "detail-title").text
    np.testing.assert_allclose(_cells(browser), maps.cross[1, 2], atol=_BYTE + 5e-5)
    assert "<b>printing</b>" in browser.find_element("id", "sentence").text

    # A word that the pointer is on tells what it looks at most.
    word = browser.find_element("css selector", "#lines .query[data-query='1']")
    ActionChains(browser).move_to_element(word).perform()
    told = browser.find_element("id", "value").text
    best = int(np.rint(maps.cross[1, 2, 1] * 255).argmax())
    assert f"{maps.cross[1, 2, 1, best]:.2f}"[:4] in told or f"{maps.source[best]}"[-2:] in told

    # The arrow keys and Enter choose another head.
    browser.find_element("css selector", head).send_keys(Keys.ARROW_LEFT)
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    np.testing.assert_allclose(_cells(browser), maps.cross[1, 1], atol=_BYTE + 5e-5)

    # Whole words: the sum over the subwords of a word, and the mean over those that attend.
    browser.find_element("id", "words").click()
    table = _cells(browser)
    expected = _by_words(maps.cross[1, 1], maps.target_words, maps.source_words)
    np.testing.assert_allclose(table, expected, atol=20 * _BYTE)
    assert len(table) < len(maps.target)

    choice = browser.find_element("id", "heads")
    choice.find_element("css selector", "option[value='max']").click()
    largest = np.max([_by_words(m, maps.target_words, maps.source_words) for m in maps.cross[1]], 0)
    np.testing.assert_allclose(_cells(browser), largest, atol=20 * _BYTE)

    # A word of the translation, in every layer of cross-attention.
    browser.find_element("css selector", "#target button[data-target='1']").click()
    rows = browser.find_elements("css selector", "#layers tr")[1:]
    assert len(rows) == len(maps.cross)
    shown = [float(cell.text) for cell in rows[2].find_elements("tag name", "td")]
    mean = np.mean(
        [_by_words(m, maps.target_words, maps.source_words)[1] for m in maps.cross[2]], 0
    )
    np.testing.assert_allclose(shown, mean, atol=0.005 + 20 * _BYTE)

    winner = browser.find_element("css selector", "#ended tr.winner").text
    assert translator.translate([TEXT])[0][:20] in winner
    assert browser.find_elements("css selector", "#input canvas")
    time.sleep(0.2)
    assert [entry for entry in browser.get_log("browser") if entry["level"] != "INFO"] == []
    # The browser's own pages aside, it has asked for the file alone.
    asked = {url for url in addresses(browser) if url.startswith(("http", "ws", "file"))}
    assert asked == {path.as_uri()}


_DRAW_MORE_HEADS = """
for (const one of Object.values(data.attention)) {
  one.shape[1] *= arguments[0];
  for (const name of ["matrices", "kinds"])
    one[name] = one[name].map((heads) => Array(arguments[0]).fill(heads).flat());
}
drawGrids();
return [...document.querySelectorAll(".grid")].map((grid) => [grid.scrollWidth, grid.clientWidth,
  grid.querySelectorAll("th[scope=col]").length]);
"""


@pytest.mark.parametrize("num_heads", [8, 16])
def test_all_heads_are_seen_without_scrolling(browser, explored, tmp_path, num_heads):
    path = tmp_path / "view.html"
    explored.save(path)
    browser.get(path.as_uri())
    for needed, width, count in browser.execute_script(_DRAW_MORE_HEADS, num_heads // 4):
        assert (count, needed) == (num_heads, width)
    assert browser.execute_script("return document.body.scrollWidth <= innerWidth")


def _by_words(weights, queries, keys) -> np.ndarray:
    """Weights of words, by hand: each end of a sentence is a word of its own."""

    def members(words):
        groups = []
        for at, word in enumerate(words):
            if groups and word >= 0 and words[groups[-1][-1]] == word:
                groups[-1].append(at)
            else:
                groups.append([at])
        return groups

    return np.array(
        [
            [np.mean([weights[i, k].sum() for i in query]) for k in members(keys)]
            for query in members(queries)
        ]
    )


def test_the_command_writes_the_page(translator, monkeypatch, tmp_path, capsys):
    from t2t_jax.__main__ import main

    monkeypatch.setattr("t2t_jax.extras.inspect.explore_command.load_for", lambda *_: translator)
    path = tmp_path / "view.html"
    assert main(["explore", "run", "--text", TEXT, "--output", str(path)]) == 0
    assert path.read_text("utf-8").startswith("<!doctype html>")
    assert f"wrote {path}; open it" in capsys.readouterr().out.replace("\n", "")
    assert Path(path).stat().st_size < 2_000_000
