"""How well confidences tell the quality of translations."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from sacrebleu import sentence_chrf

from t2t_jax.data.corpus import Corpus
from t2t_jax.decoding.translations import Hypothesis
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError
from t2t_jax.run import calibration
from t2t_jax.run.calibration import confidence, fit, read_calibration, save_calibration
from t2t_jax.workdir import CALIBRATION

BLANK = Hypothesis("", 0.0, 0.0, ())


class Model(Translator):
    """A translator that says of each line what a table says."""

    def __init__(self, found):
        self.found, self.steps, self.ema_decays = found, (3, 6), ()
        self.vocabulary = SimpleNamespace(fingerprint="abc")

    def nbest(self, lines, num_best):
        assert num_best == 1
        return [[self.found[line]] for line in lines]


class Text(Corpus):
    """A corpus of a dev split alone."""

    def __init__(self, sources, references, name="text:DIR"):
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "lines", lambda split: {"dev": (sources, references)}[split])


def hypothesis(text, mean, length):
    return Hypothesis(text, 0.0, mean * length, tuple(range(length)))


def test_it_is_the_chrf_of_the_dev_split_by_mean_log_probability():
    sources = ["a", "b", "", "c", "d"]
    references = ["ein Haus", "der Hund", "", "zwei Hunde", "das Haus"]
    means = {"a": -0.5, "b": -2.0, "": 0.0, "c": -1.0, "d": -4.0}
    texts = {"a": "ein Haus", "b": "das rot", "": "", "c": "zwei Hund", "d": "q"}
    found = {line: hypothesis(texts[line], means[line], 1 + len(texts[line])) for line in sources}
    found[""] = BLANK
    curve = calibration.calibrate(Model(found), Text(sources, references)).curve
    for line, reference in zip(sources, references, strict=True):
        if line:
            chrf = sentence_chrf(texts[line], [reference]).score / 100
            assert confidence(found[line], None) == pytest.approx(math.exp(means[line]))
            [value] = curve(np.array([means[line]]))
            assert value == pytest.approx(chrf)  # in these, it rises from line to line
    with pytest.raises(
        UserError, match="has 3 sentences that are not blank; at least 4 are needed"
    ):
        calibration.calibrate(Model(found), Text(sources[:4], references[:4]))
    trees = Text(sources, references, "trees:DIR")
    with pytest.raises(UserError, match="trees:DIR is no parallel text"):
        calibration.calibrate(Model(found), trees)


def test_half_of_the_sentences_measure_it():
    x = np.array([-4.0, -4.0, -3.0, -3.0, -2.0, -2.0])
    y = np.array([0.1, 0.2, 0.3, 0.3, 0.8, 0.7])
    found = fit(x, y)
    assert found.mean_absolute_error == pytest.approx((0.1 + 0.0 + 0.1) / 3)
    assert found.constant_error == pytest.approx((0.2 + 0.1 + 0.3) / 3)
    assert found.correlation == pytest.approx(np.corrcoef([0.1, 0.3, 0.8], [0.2, 0.3, 0.7])[0, 1])
    assert found.curve(x).tolist() == pytest.approx([0.15, 0.15, 0.3, 0.3, 0.75, 0.75])
    assert fit(x, np.full(6, 0.5)).correlation == 0


def test_a_blank_line_is_certain():
    found = fit(np.array([-4.0, -3.0, -2.0, -1.0]), np.array([0.1, 0.2, 0.3, 0.4]))
    assert confidence(BLANK, None) == confidence(BLANK, found) == 1
    assert confidence(hypothesis("a", -2.5, 4), found) == pytest.approx(0.25)


def test_it_is_read_as_it_was_written_and_only_for_the_model_that_it_is_of(tmp_path):
    found = fit(np.array([-4.0, -3.0, -2.0, -1.0]), np.array([0.1, 0.2, 0.3, 0.4]))
    model, other = Model({}), Model({})
    assert read_calibration([tmp_path], model) is None
    save_calibration(found, model, tmp_path)
    assert read_calibration([tmp_path], model) == found
    assert read_calibration([tmp_path, tmp_path], model) is None
    other.steps = (6,)
    assert read_calibration([tmp_path], other) is None


@pytest.mark.parametrize("change", [{"x": []}, {"y": ["q"]}, {"steps": ...}, None])
def test_a_damaged_file_is_refused(change, tmp_path):
    found = fit(np.array([-4.0, -3.0, -2.0, -1.0]), np.array([0.1, 0.2, 0.3, 0.4]))
    save_calibration(found, Model({}), tmp_path)
    path = tmp_path / CALIBRATION
    fields = json.loads(path.read_text())
    for name, value in (change or {}).items():
        fields[name] = value
        if value is ...:
            del fields[name]
    path.write_text(json.dumps(fields) if change else "{")
    with pytest.raises(UserError, match=r"calibration\.json is damaged; write it again by t2t-jax"):
        read_calibration([tmp_path], Model({}))
