"""The page about an encoder alone shows the weights and the labels of the model."""

import base64
import json
from functools import partial

import flax.linen as nn
import jax
import numpy as np
import pytest

import t2t_jax
from t2t_jax import UserError
from t2t_jax.__main__ import main
from t2t_jax.config import Config
from t2t_jax.data.vocabularies.labelled import labelled_vocabulary
from t2t_jax.data.vocabularies.learning import train_vocabulary
from t2t_jax.decoding.translator import Translator
from t2t_jax.interchange.runs import write_run
from t2t_jax.modules.models import make_model
from t2t_jax.modules.network import init_parameters
from t2t_jax.tasks import task_of
from tests.interchange.models import image_classifier, masked_language_model, translator_of


def data_of(exploration):
    page = exploration.page
    begin = page.index('id="data">') + len('id="data">')
    return json.loads(page[begin : page.index("</script>", begin)])


@pytest.fixture(scope="module")
def tagger():
    lines = ["the small house", "a long street"] * 4
    source = train_vocabulary([(lines, lines)], 36)
    vocabulary = labelled_vocabulary(source, ["DT", "JJ", "NN"])
    config = Config().replace(
        {
            "model.architecture": "encoder_only",
            "model.d_model": 16,
            "model.num_heads": 2,
            "model.d_ff": 16,
            "model.num_encoder_layers": 3,
            "model.share_embeddings": False,
            "model.source_vocab_size": 36,
            "data.task": "tagging",
            "data.max_length": 32,
        }
    )
    model = make_model(config, 3, None)
    params = nn.unbox(jax.jit(partial(init_parameters, model))(jax.random.key(0)))
    return Translator(config, vocabulary, params)


@pytest.fixture(scope="module")
def images():
    return translator_of(image_classifier())


@pytest.fixture(scope="module")
def pixels():
    return list(np.random.default_rng(0).integers(0, 256, (3, 12, 12, 3)).astype(np.uint8))


def test_words_have_their_tags_and_every_position_its_attention(tagger):
    found = t2t_jax.explore(tagger, "the small <house")
    maps, data = found.maps, data_of(found)
    assert maps.units[0] == "<s>"
    assert maps.units[-1] == "</s>"
    size = len(maps.units)
    assert maps.encoder.shape == (3, 2, size, size)
    np.testing.assert_allclose(maps.encoder.sum(-1), 1, rtol=1e-5)
    weights = np.frombuffer(base64.b64decode(data["attention"]), np.uint8) / 255
    np.testing.assert_allclose(weights.reshape(maps.encoder.shape), maps.encoder, atol=1 / 500)
    [labels] = task_of("", "tagging").predicted(tagger, ["the small <house"])
    shown = [unit["label"].split()[0] for unit in data["units"] if unit["label"]]
    assert shown == [label.name for label in labels]
    assert [unit["name"] for unit in data["units"]] == maps.units
    assert data["image"] is None


def test_an_image_has_a_label_and_its_pixels(images, pixels):
    found = t2t_jax.explore(images, pixels[1])
    maps, data = found.maps, data_of(found)
    assert maps.units[:3] == ["class token", "patch 1, 1", "patch 1, 2"]
    assert maps.encoder.shape == (2, 4, 10, 10)
    values = np.frombuffer(base64.b64decode(data["image"]["values"]), np.uint8)
    np.testing.assert_array_equal(values.reshape(pixels[1].shape), pixels[1])
    [[label]] = task_of("", "image_classification").predicted(images, [pixels[1]])
    assert data["answer"] == f"{label.name} {label.probability:.2f}"


def test_hidden_words_are_shown_filled_in():
    model = translator_of(masked_language_model())
    hidden = data_of(t2t_jax.explore(model, "the <mask> file"))["units"]
    assert [bool(unit["label"]) for unit in hidden if unit["name"] == "<mask>"] == [True]
    assert sum(bool(unit["label"]) for unit in hidden) == 1
    plain = data_of(t2t_jax.explore(model, "the file"))["units"]
    assert sum(bool(unit["label"]) for unit in plain) == len(plain) - 2


def test_what_cannot_be_shown_is_refused(tagger, images, pixels):
    for model, given, said in (
        (tagger, "  ", "blank"),
        (tagger, pixels[0], "reads text"),
        (images, "a cat", "reads images"),
        (images, pixels[0][:5], "image 1 is an array"),
    ):
        with pytest.raises(UserError, match=said):
            t2t_jax.explore(model, given)
    with pytest.raises(UserError, match="translates nothing"):
        t2t_jax.explore(tagger, "the house", "das Haus")


def test_the_command_takes_a_file_of_images(pixels, tmp_path):
    write_run(image_classifier(), tmp_path / "run", {"format": "safetensors"})
    np.savez(tmp_path / "images.npz", images=np.stack(pixels))
    arguments = ["explore", str(tmp_path / "run"), "--output", str(tmp_path / "view.html")]
    given = ["--images", str(tmp_path / "images.npz"), "--number"]
    assert main([*arguments, *given, "2"]) == 0
    assert "Inside an encoder" in (tmp_path / "view.html").read_text()
    with pytest.raises(UserError, match="has 3 images"):
        main([*arguments, *given, "4"])
    with pytest.raises(UserError, match="--text, or"):
        main(arguments)


def test_a_browser_shows_what_is_chosen(browser, tagger, images, pixels, tmp_path):
    from selenium.webdriver.common.by import By

    t2t_jax.explore(tagger, "the house").save(tmp_path / "text.html")
    browser.get((tmp_path / "text.html").as_uri())
    units = browser.find_elements(By.CSS_SELECTOR, "#units button")
    assert units[0].text.startswith("<s>")
    units[-1].click()
    assert browser.find_element(By.ID, "chosen").text == "\u201c</s>\u201d"
    assert len(browser.find_elements(By.CSS_SELECTOR, "#heads canvas")) == 3 * (2 + 1)
    t2t_jax.explore(images, pixels[0]).save(tmp_path / "image.html")
    browser.get((tmp_path / "image.html").as_uri())
    browser.find_element(By.ID, "picture").click()  # its middle
    assert browser.find_element(By.ID, "chosen").text == "\u201cpatch 2, 2\u201d"
    assert browser.get_log("browser") == []
