"""The account of a job: it is kept while nothing happens, and says how the job ended."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from t2t_jax import Config, UserError
from t2t_jax.config.cost import model_flops_per_step
from t2t_jax.data.rows import Content, Lengths
from t2t_jax.run import job
from t2t_jax.run.job import JobRecord, read_goodput, read_jobs
from t2t_jax.run.progress import PHASES, PhaseTimer


@pytest.fixture
def begin(monkeypatch, tmp_path):
    """A function that begins a job after a step, whose account is soon up to date."""
    monkeypatch.setattr(job, "_work_per_step", lambda *_: {"flops": 5.0})
    monkeypatch.setattr(job, "_INTERVAL", 0.01)
    return lambda first: JobRecord(tmp_path, PhaseTimer(), None, None, first)


def test_an_account_is_kept_in_the_background_and_has_the_error_at_the_end(begin, tmp_path):
    def fail_after(step):
        with begin(3) as one:
            assert read_jobs(tmp_path)[0]["step"] == 3
            one.step(step)
            while read_jobs(tmp_path)[0]["step"] == 3:
                pass
            raise UserError("the disk\nis full")

    with pytest.raises(UserError):
        fail_after(7)
    [account] = read_jobs(tmp_path)
    assert (account["ended"], account["exit_code"]) == ("error: the disk is full", 2)
    assert (account["first_step"], account["step"], account["flops"]) == (3, 7, 5.0)
    assert account["seconds"].keys() == set(PHASES)


def test_an_account_has_the_tokens_and_operations_of_a_step(monkeypatch, tmp_path):
    monkeypatch.setattr(job, "_INTERVAL", 0.01)
    content = Content(2, {}, 2, *(Lengths.of(np.array(x)) for x in ([3, 5], [4, 8])))
    batches = SimpleNamespace(parts=SimpleNamespace(content=content), steps_per_epoch=2)
    config = Config()
    with JobRecord(tmp_path, PhaseTimer(), config, batches, 0) as one:
        one.end("1 steps are done", 0)
    [account] = read_jobs(tmp_path)
    assert (account["source_tokens"], account["target_tokens"]) == (4, 6)
    # A token of the sources is in a sentence of 3 or 5, one of the targets in one of 4 or 8.
    compared = {"source_length": (9 + 25) / 8, "target_length": (16 + 64) / 12}
    flops = model_flops_per_step(config.model, config.data.vocab_size, 4, 6, **compared)
    assert account["flops"] == pytest.approx(flops)


def test_an_account_may_be_older_than_a_phase(begin, tmp_path):
    with begin(0) as one:
        one.end("12 steps are done", 0)
    [path] = (tmp_path / "jobs").iterdir()
    account = json.loads(path.read_text())
    del account["seconds"]["checkpoints"]
    path.write_text(json.dumps(account))
    assert read_goodput(tmp_path).seconds["checkpoints"] == 0.0


def test_each_job_has_an_account_of_its_own_and_a_damaged_one_is_left_out(begin, tmp_path, capsys):
    for first in (0, 4, 8):
        with begin(first) as one:
            one.end(f"stopped after step {first}", 143)
    (tmp_path / "jobs" / "2.json").write_text('{"begun": "today"}')
    assert [account["first_step"] for account in read_jobs(tmp_path)] == [0, 8]
    damage = "jobs/2.json is damaged (Expected `float`, got `str` - at `$.begun`)"
    assert damage in capsys.readouterr().err
