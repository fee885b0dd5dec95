"""The page beside graphs of ONNX, in a real browser: it finds what the model finds, by itself."""

import functools
import http.server
import shutil
import subprocess
import threading
from itertools import islice
from pathlib import Path

import jaxtyping
import numpy as np
import pytest

from t2t_jax import Batch, UserError
from t2t_jax.config import DataConfig
from t2t_jax.data.corpus import open_corpus
from t2t_jax.interchange.formats import write_model
from t2t_jax.interchange.onnx.page import VERSION
from tests.browser import addresses, complaints
from tests.interchange.models import OPTIONS, portable, translator_of
from tests.selection import thorough_after
from tests.serving.conftest import until

LINE = "Cancel <b>printing</b> & copy the 3 files."
_ALL = """
const [lines, done] = arguments;
(async () => {
  const found = [];
  for (const line of lines) found.push((await translated(line, state.turn)).found);
  done(found);
})();
"""


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format, *args):
        pass


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The package of npm, which a page is made with."""
    place, npm = tmp_path_factory.mktemp("npm"), shutil.which("npm")
    if npm is None:
        pytest.skip("there is no npm on this machine")
    command = [npm, "pack", "--silent", "--prefer-offline", f"onnxruntime-web@{VERSION}"]
    subprocess.run(command, cwd=place, check=True, capture_output=True)
    return place / f"onnxruntime-web-{VERSION}.tgz"


@pytest.fixture(scope="module")
def model():
    return portable(OPTIONS["modern"])


@pytest.fixture(scope="module")
def address(model, package, tmp_path_factory):
    directory = tmp_path_factory.mktemp("page") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # sizes are symbols
        write_model(model, "onnx", directory, page=package)
    handler = functools.partial(_Quiet, directory=directory)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture
def opened(browser, address):
    """The page with its model; it has no mistake, breaks no policy and asks no other host."""
    addresses(browser)
    browser.set_script_timeout(600)
    browser.get(address)
    until(lambda: browser.find_element("id", "text").is_enabled(), 120)
    yield browser
    assert [each for each in browser.get_log("browser") if "favicon" not in each["message"]] == []
    asked = addresses(browser)
    assert [url for url in asked if not url.startswith((address, "data:", "blob:", "chrome"))] == []


def _text(browser, name):
    return browser.execute_script(f"return document.getElementById('{name}').textContent")


def test_the_page_translates_as_one_types_and_shows_where_it_has_read(opened, model):
    translator = translator_of(model)
    [[best]] = translator.nbest([LINE], 1, beam_size=1)
    opened.find_element("id", "text").send_keys(LINE)
    until(lambda: _text(opened, "translation") == best.text, 60)
    assert complaints(opened) == []
    batch = Batch.of(model.vocabulary.encode([LINE]), [best.tokens])
    maps = translator.model.attention_weights(translator.params, batch)["cross"]
    cells = opened.execute_script(
        "return [...document.querySelectorAll('#map rect')].map((one) => one.dataset.value)"
    )
    shown = np.reshape(np.array(cells, float), (len(best.tokens), -1))
    np.testing.assert_allclose(shown, maps[-1, 0].mean(0), atol=1e-4)


@pytest.mark.parametrize("count", thorough_after(1, [10, 100]))
def test_the_page_finds_the_tokens_that_the_model_finds(opened, model, count):
    sources, _ = open_corpus(DataConfig()).lines("train")
    lines = [*islice(sources, count)]
    ours = translator_of(model).nbest(lines, 1, beam_size=1)
    assert opened.execute_async_script(_ALL, lines) == [list(best.tokens) for (best,) in ours]


def test_another_package_is_refused(model, tmp_path):
    (tmp_path / "other.tgz").write_bytes(b"another")
    for path in ("other.tgz", "none.tgz"):
        with pytest.raises(UserError, match=f"npm pack onnxruntime-web@{VERSION}"):
            write_model(model, "onnx", tmp_path / "out", page=tmp_path / path)
    with pytest.raises(UserError, match="written without a page; export --to onnx"):
        write_model(model, "safetensors", tmp_path / "out", page=Path("x.tgz"))
    assert not (tmp_path / "out").exists()
