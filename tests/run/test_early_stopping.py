"""The end of a run whose score on dev no longer rises."""

import shutil

import pytest

from t2t_jax import UserError, load, train
from t2t_jax.config import TrainingConfig
from t2t_jax.run.evaluation import CorpusLoss, Evaluation
from t2t_jax.run.history import plateau, reason_to_stop
from t2t_jax.run.meter import StepMeter
from t2t_jax.training.checkpoint_files import steps_in
from tests.scores import Score
from tests.trained import records_of, timeless_log

FIELD = "training.stop_after_evaluations_without_gain"


def _evaluations(*scores, **fields):
    return [
        {"step": 10 * n, "of": "dev", "score": score, **fields} for n, score in enumerate(scores, 1)
    ]


def _stops(evaluations, patience):
    config = TrainingConfig(stop_after_evaluations_without_gain=patience)
    return reason_to_stop(config, evaluations) is not None


def test_a_plateau_counts_the_evaluations_since_the_first_best():
    assert plateau(_evaluations(1.0, 3.0, 2.0, 3.0)) == (3.0, 20, 3.0, 40, 2)
    assert plateau(_evaluations(1.0)).evaluations == 0
    assert plateau([]) is None


def test_a_score_that_was_not_finite_is_no_gain():
    assert plateau(_evaluations(None, 2.0, None)).evaluations == 1
    assert plateau(_evaluations(None, None)).evaluations == 1


def test_scores_by_another_measure_are_not_compared():
    greedy = _evaluations(9.0, 9.0, measure={"beam_size": 1})
    beam = _evaluations(5.0, measure={"beam_size": 4})
    assert plateau(greedy + beam).evaluations == 0


def test_a_run_ends_once_the_patience_is_used_up_and_never_without_the_field():
    evaluations = _evaluations(1.0, 3.0, 2.0, 3.0)
    assert [_stops(evaluations[:n], 2) for n in range(5)] == [False] * 4 + [True]
    assert not _stops(evaluations, 3)
    assert not _stops(evaluations, None)


SCORES = {2: 1.0, 4: 3.0, 6: 2.0, 8: 3.0, 10: 1.0, 12: 5.0}


@pytest.fixture
def scripted(tiny_run, monkeypatch):
    """A config of 12 steps whose evaluations, after every second one, find `SCORES`."""
    taken = {}
    add = StepMeter.add

    def adding(meter, step, metrics):
        taken["step"] = step
        add(meter, step, metrics)

    def evaluate(*_, **__):
        score = Score(SCORES[taken["step"]])
        return Evaluation("dev", CorpusLoss(1.0, 1.0, 1), score, [], [], [], 0, 0.0)

    monkeypatch.setattr(StepMeter, "add", adding)
    monkeypatch.setattr("t2t_jax.run.trainer.evaluate_split", evaluate)
    config = tiny_run.config
    return config.replace({"evaluation.every_steps": 2, "checkpoint.every_steps": 3, FIELD: 2})


def _told(workdir):
    """All of a log that does not depend on the clock, and the checkpoints."""
    return timeless_log(workdir), steps_in(workdir / "checkpoints")


def _evaluated(workdir):
    return [record["step"] for record in records_of(workdir, "dev")]


@pytest.mark.thorough
def test_a_run_ends_before_its_last_step_and_goes_on_when_asked_for_more(
    scripted, tmp_path, capsys
):
    run, killed = tmp_path / "run", tmp_path / "killed"
    reason = "dev scored 3.00 at step 4, and no better in the 2 evaluation(s) since"
    assert train(scripted, run).exit_code == 0
    printed = capsys.readouterr().out
    assert f"{reason} (3.00 at step 8), which ends the run ({FIELD}=2) after step 8" in printed
    assert f"evaluate --workdir {run} --split dev --step best" in printed
    assert _evaluated(run) == [2, 4, 6, 8]
    assert len(records_of(run, "end")) == 1
    assert len(records_of(run, "train")) == 8

    told = _told(run)
    assert told[1] == [3, 6, 8]  # the last one for safety, beside the two that are kept by steps
    assert load(run, average=2).steps == (3, 6)
    assert train(scripted, run).exit_code == 0
    printed = capsys.readouterr().out
    assert reason in printed
    assert "begins" not in printed
    assert _told(run) == told

    shutil.copytree(run, killed)
    shutil.rmtree(killed / "checkpoints" / "8")  # as a kill before that was written leaves it
    assert train(scripted, killed).exit_code == 0
    assert "step 7 of 12 begins" in capsys.readouterr().out
    assert _told(killed) == told

    assert train(scripted.replace({FIELD: None}), run).exit_code == 0
    assert _evaluated(run) == [2, 4, 6, 8, 10, 12]
    assert len(records_of(run, "end")) == 1
    assert _told(run)[1] == [9, 12]


def test_the_field_is_refused_where_there_is_no_dev_split(scripted, tiny_run, tmp_path):
    with pytest.raises(UserError, match=rf"{FIELD}=2 has no effect.*has no dev split; add one"):
        train(scripted.replace(tiny_run.without_dev), tmp_path / "run")
    assert not (tmp_path / "run").exists()
