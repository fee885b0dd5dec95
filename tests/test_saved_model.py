"""What `save` writes is a run: it opens as the model that it was, or nothing is written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import t2t_jax
from t2t_jax import Batch, TrainedRun, saved_model
from t2t_jax.__main__ import main
from t2t_jax.data.vocabularies.learning import train_vocabulary
from t2t_jax.run.history import History
from tests.refusals import refused
from tests.run.test_loading import CONFIG, LINES, make_run


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    """A model of two checkpoints, whose config asks for a moving average that it is not."""
    vocabulary = train_vocabulary([(LINES, LINES)], 50)
    folder = tmp_path_factory.mktemp("saved") / "run"
    make_run(folder, vocabulary, (1, 2), {"training.ema_decay": 0.75})
    return t2t_jax.load(folder, average=2)


def test_a_saved_model_opens_as_it_was(translator, tmp_path, capsys):
    params = jax.tree.map(lambda x: 2 * x, translator.params)
    tuned, saved = translator.with_params(params), tmp_path / "saved"
    tuned.save(saved)
    loaded = t2t_jax.load(saved)
    jax.tree.map(np.testing.assert_array_equal, loaded.params, params)
    assert loaded.nbest(LINES, 2) == tuned.nbest(LINES, 2)
    assert (loaded.steps, loaded.ema_decays) == ((), ())
    assert loaded.config == translator.config.replace({"training.ema_decay": None})
    translator.save(tmp_path / "steps")
    assert t2t_jax.load(tmp_path / "steps").steps == (1, 2)
    (tmp_path / "lines").write_text("the dog\n")
    assert main(["translate", "--workdir", str(saved), "--input", str(tmp_path / "lines")]) == 0
    assert capsys.readouterr().out == loaded.translate(["the dog"])[0] + "\n"


def test_a_moving_average_stays_one(translator, tmp_path):
    parts, steps = (translator.config, translator.vocabulary, translator.params), [jnp.int32(3)]
    t2t_jax.save(*parts, tmp_path / "ema", steps=steps)
    loaded = t2t_jax.load(tmp_path / "ema")
    assert loaded.steps == (3,)
    loaded.save(tmp_path / "again")
    assert loaded.ema_decays == t2t_jax.load(tmp_path / "again").ema_decays == (0.75,)


_NARROW = CONFIG.replace({"model.d_ff": 5})
_APART = CONFIG.replace({"model.share_embeddings": False, "model.source_vocab_size": 9})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("config", _NARROW, r"params has float32\[1, 16\] at .*bias_1, and the model .*\[1, 5\]"),
        ("config", _APART, "50 entries for sources, and the model of the config 9; give the voca"),
        ("vocabulary", train_vocabulary([(LINES, LINES)], 40), "vocabulary of 40 subwords float"),
        ("params", {"extra": jnp.ones(3)}, "params has no array at"),
        ("directory", "s3://bucket/run", "is in a bucket; name a directory on this machine"),
        ("directory", "hf://name/model", "on the hub, where runs are read-only"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_written(
    name, value, message, translator, tmp_path
):
    names = "config", "vocabulary", "params"
    arguments = {name: getattr(translator, name) for name in names} | {"directory": tmp_path / "x"}
    with refused(match=message):
        t2t_jax.save(**(arguments | {name: value}))
    assert list(tmp_path.iterdir()) == []


def test_a_directory_with_files_stays_as_it_is(translator, tmp_path):
    (tmp_path / "notes").write_text("mine")
    with refused(match="exists and is not empty"):
        translator.save(tmp_path)
    with pytest.raises(TypeError, match="vocabulary is a str; give a Vocabulary"):
        t2t_jax.save(CONFIG, "vocabulary.model", translator.params, tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_a_save_that_is_stopped_or_of_another_process_leaves_no_run(
    translator, tmp_path, monkeypatch
):
    monkeypatch.setattr(saved_model, "write_sums", lambda directory: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        translator.save(tmp_path / "run")
    monkeypatch.setattr(saved_model, "is_main", lambda: False)
    translator.save(tmp_path / "run")
    monkeypatch.setattr(saved_model, "failing_process", lambda holds: 0)
    with refused(match="process 0 could not write"):
        translator.save(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_the_module_has_the_losses_of_scoring_and_an_ensemble_has_none(translator, tmp_path):
    batch = Batch.of(translator.encode(LINES), translator.encode_targets(LINES))
    variables, method = {"params": translator.params}, {"method": "losses", "label_smoothing": 0.0}
    _, nll = translator.module.apply(variables, batch, **method)
    scores = [score.log_prob for score in t2t_jax.score(translator, LINES, LINES)]
    totals = (nll * (batch.targets.segments > 0)).sum(axis=1)
    np.testing.assert_allclose(totals, -np.array(scores), rtol=1e-5)
    translator.save(tmp_path / "one")
    ensemble = t2t_jax.load([tmp_path / "one"] * 2)
    for use in (lambda: ensemble.module, lambda: ensemble.save(tmp_path / "two")):
        with refused(match="an ensemble of 2 models is not one module"):
            use()


def test_notebooks_show_escaped_tables(translator, tmp_path):
    table = translator.replaced(_score=lambda: ", BLEU <3> on dev")._repr_html_()
    assert "<td>layers</td><td>1 encoder + 1 decoder, d_model 8, 2 heads</td>" in table
    assert "<td>languages</td><td>en → de</td>" in table
    assert "<td>BLEU &lt;3&gt; on dev</td>" in table
    run = TrainedRun(tmp_path, 0, History.of([{"of": "dev", "step": 1200, "bleu": 3, "score": 3}]))
    assert "<tr><td>1,200</td><td>3.00</td></tr>" in run._repr_html_()
    assert "<p>&lt;TrainedRun: " in run._repr_html_()
