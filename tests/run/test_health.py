"""What makes a run fail is said while it trains, once."""

import math

import numpy as np
import pytest

from t2t_jax import Config, UserError
from t2t_jax.data.batching import Batches
from t2t_jax.data.rows import Examples
from t2t_jax.run.health import RULES, CorpusFigures, Health, corpus_figures, unigram_nll
from t2t_jax.run.history import History
from t2t_jax.run.log import RunLog
from tests.trained import records_of

CONFIG = Config().replace({"training.warmup_steps": 100})
SOUND = CorpusFigures(1000, {"too_long": 50, "empty_source": 0}, 0.4, 5.0)


def _line(step, **figures):
    return {"step": step, "of": "train", "loss": 4.0, "nll": 4.0, "gradient_norm": 1.0} | figures


def _warning(rule, records, corpus=SOUND, **changes):
    fields = {name.replace("__", "."): value for name, value in changes.items()}
    return RULES[rule](CONFIG.replace(fields), corpus, History.of(records))


def _norms(*norms, start=110):
    return [_line(start + 10 * n, gradient_norm=norm) for n, norm in enumerate(norms)]


def _waits(*shares, seconds=60):
    figures = {"target_tokens": 1000 * seconds, "target_tokens_per_second": 1000.0}
    return [_line(10 * n, data_wait=share, **figures) for n, share in enumerate(shares, 1)]


def _scores(*scores):
    return [{"step": 10 * n, "of": "dev", "score": score} for n, score in enumerate(scores, 1)]


HEALTHY = [
    ("loss_above_unigram", []),
    ("loss_above_unigram", [_line(80, nll=9.0), _line(90, nll=8.0)]),  # in the warmup
    ("loss_above_unigram", [_line(90, nll=9.0), _line(110, nll=8.0)]),  # partly in the warmup
    ("loss_above_unigram", [_line(100, nll=9.0), _line(110, nll=4.9)]),
    ("loss_above_unigram", [_line(100), _line(110, nll=None)]),
    ("gradient_norm_grows", _norms(*[1.0] * 10, *[9.0] * 4)),  # too few lines
    ("gradient_norm_grows", _norms(*[1.0] * 10, *[2.9] * 5)),
    ("gradient_norm_grows", _norms(*[1.0] * 12, 50.0, 1.0, 60.0)),  # peaks are no growth
    ("gradient_norm_grows", _norms(*[0.1] * 10, *[1.0] * 5, start=20)),  # from the warmup on
    ("gradient_norm_grows", _norms(*[None] * 10, *[9.0] * 5)),
    ("devices_wait_for_data", _waits(0.9)),  # the first line has what happens at the start
    ("devices_wait_for_data", _waits(0.9, 0.1, 0.9, 0.0)),
    ("devices_wait_for_data", _waits(0.9, 0.9, seconds=1)),  # too short to tell
    ("devices_wait_for_data", [_line(10), _line(20)]),  # a release that did not measure it
    ("dev_score_falls", _scores(1.0, 5.0, 4.0, 4.0)),
    ("dev_score_falls", _scores(1.0, 5.0, 4.0, 4.0, 6.0)),
    ("dev_score_not_finite", []),
    ("dev_score_not_finite", _scores(None, 5.0)),  # an old record has no loss
    ("many_pairs_skipped", []),
    ("much_padding", []),
    ("many_empty_rows", []),
]


@pytest.mark.parametrize(("rule", "records"), HEALTHY)
def test_a_sound_run_is_not_warned_of(rule, records):
    assert _warning(rule, records) is None


UNSOUND = [
    (
        "loss_above_unigram",
        [_line(100), _line(110, nll=6.0)],
        ["is 6.000 nats", "above the 5.000", "training.learning_rate_factor=1 ", "warmup_steps=1"],
    ),
    (
        "gradient_norm_grows",
        _norms(*[1.0] * 10, *[3.5] * 5),
        ["from 1 to 3.5 between steps 110 and 250", "clip_gradient_norm to about 1", "lower train"],
    ),
    (
        "devices_wait_for_data",
        _waits(0.9, 0.25),
        ["at step 20", "spent 25% of the time", "CPU cores", "data.prefetch=4", "data.cache_dir"],
    ),
    (
        "dev_score_falls",
        _scores(1.0, 5.0, 4.0, 4.5, 3.0),
        ["5.00 at step 20", "3 evaluation", "3.00 at step 50", "dropout_rate=0.1", "--step best"],
    ),
    (
        "dev_score_not_finite",
        [{"step": 10, "of": "dev", "loss": None, "perplexity": None, "score": 0.0}],
        ["loss and perplexity at step 10", "diverged", "--step", "lower training.learning_rate"],
    ),
    ("dev_score_not_finite", _scores(5.0, None), ["score at step 20"]),
]


@pytest.mark.parametrize(("rule", "records", "words"), UNSOUND)
def test_what_makes_a_run_fail_is_said_with_figures_and_a_way_out(rule, records, words):
    text = _warning(rule, records)
    assert [one for one in words if one not in text] == []
    assert "\n" not in text


def test_the_learning_rate_that_is_named_is_the_one_that_the_run_has():
    text = _warning("loss_above_unigram", UNSOUND[0][1], training__peak_learning_rate=0.01)
    assert "lower training.peak_learning_rate=0.01 or" in text


def test_a_corpus_of_which_much_is_left_out_or_padding_is_warned_of():
    skipped = SOUND._replace(skipped={"too_long": 60, "empty_source": 1})
    text = _warning("many_pairs_skipped", [], skipped)
    assert "61 of 1,000 pairs (6.1%)" in text
    assert "raise data.max_length=256" in text
    skipped = SOUND._replace(skipped={"too_long": 1, "empty_source": 60})
    assert "as empty source" in _warning("many_pairs_skipped", [], skipped)
    padded = SOUND._replace(padding=0.41)
    assert "41%" in (text := _warning("much_padding", [], padded))
    assert "data.batching=pack" in text
    assert "data.max_length" in _warning("much_padding", [], padded, data__batching="pack")


def test_rows_that_only_fill_the_devices_are_warned_of_with_a_batch_size_that_fits():
    empty = SOUND._replace(empty_rows=0.25)
    assert "25% of the positions" in (text := _warning("many_empty_rows", [], empty))
    assert text.endswith("train on fewer devices along parallel.data and parallel.fsdp")
    text = _warning("many_empty_rows", [], empty._replace(bounds=(32768, 16384)))
    assert "data.source_tokens_per_step=32768 and data.target_tokens_per_step=16384" in text


def test_the_unigram_model_has_the_entropy_of_the_tokens():
    tokens = np.array([3, 3, 3, 7], np.uint16)
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert unigram_nll(np.bincount(tokens)) == pytest.approx(entropy)
    assert unigram_nll(np.array([5])) == 0


def test_the_figures_of_a_corpus():
    """Three pairs of 4 and 8 tokens in rows of 8 and 8 positions: 12 of 48 hold padding."""
    source, target = np.arange(0, 13, 4), np.arange(0, 25, 8)
    split = Examples(
        np.ones(12, np.uint16), source, np.ones(24, np.uint16), target, {"too_long": 1}, 4
    )
    bounds = {"data.max_length": 8, "data.source_tokens_per_step": 24}
    config = Config().replace(bounds | {"data.target_tokens_per_step": 24})
    figures = corpus_figures(Batches(split, config.data, 0))
    assert figures == (4, {"too_long": 1}, pytest.approx(12 / 48), 0, 0, None)
    on_four = corpus_figures(Batches(split, config.data, 0, lambda shape: -(-shape.rows // 4) * 4))
    assert on_four == (4, {"too_long": 1}, pytest.approx(12 / 48), 0, 0.25, (32, 32))


FIGURES = {"loss": 7.0, "nll": 6.0, "learning_rate": 1.0, "data_wait": 0.0}
FIGURES |= {"target_tokens": 100.0, "target_tokens_per_second": 10.0}


def _log(workdir, start_step):
    return RunLog(workdir, start_step, 1000, Health(CONFIG, SOUND._replace(padding=0.5)))


def _warnings(workdir):
    return [(record["step"], record["rule"]) for record in records_of(workdir, "warning")]


def test_a_warning_is_said_once_by_a_process_and_recorded_once_in_a_run(tmp_path, capsys):
    with _log(tmp_path, 0) as log:
        log.look(0)
        for step in (100, 110, 120, 130):
            log.training(step, FIGURES, seconds_left=1.0)
    printed = capsys.readouterr().out
    assert printed.count("warning: ") == 2
    assert printed.count("warning: 50% of the batch positions") == 1
    both = [(0, "much_padding"), (110, "loss_above_unigram")]
    assert _warnings(tmp_path) == both

    with _log(tmp_path, 120) as log:  # goes on after both
        log.look(120)
        for step in (130, 140):
            log.training(step, FIGURES, seconds_left=1.0)
    assert capsys.readouterr().out.count("warning: ") == 2
    assert _warnings(tmp_path) == both

    with _log(tmp_path, 105) as log:  # goes on before the second, which is taken again
        log.look(105)
        log.training(110, FIGURES | {"nll": 1.0}, seconds_left=1.0)
    assert _warnings(tmp_path) == both[:1]


def test_the_reason_of_the_end_is_recorded_until_the_run_goes_on(tmp_path, capsys):
    with _log(tmp_path, 0) as log:
        log.end(5, "5 steps are done", "score them")
    assert capsys.readouterr().out == "5 steps are done; score them\n"
    content = (tmp_path / "log.jsonl").read_text()
    with _log(tmp_path, 5) as log:
        assert log.history.end is None
        assert (tmp_path / "log.jsonl").read_text() == ""
        log.end(5, "5 steps are done", "score them")
    assert (tmp_path / "log.jsonl").read_text() == content  # time included


def test_what_refused_to_go_on_is_recorded_as_the_end(tmp_path):
    def diverge():
        with _log(tmp_path, 3) as log:
            log.step(4)
            raise UserError("the loss was not finite")

    with pytest.raises(UserError, match="not finite"):
        diverge()
    (record,) = records_of(tmp_path, "end")
    assert (record["step"], record["text"]) == (4, "error: the loss was not finite")
