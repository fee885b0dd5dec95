"""What the time of a run went to, on the command line, in a report and beside the curves."""

import json

import pytest

from t2t_jax import Config, UserError
from t2t_jax.commands.entry import entry_command
from t2t_jax.run.progress import PHASES

_ACCOUNT = {
    "begun": 1_795_651_200.0,  # 2026-11-26 00:00:00 UTC
    "written": 1_795_651_200.0 + 7200,
    "host": "node1",
    "processes": 1,
    "devices": 8,
    "kind": "NVIDIA H200",
    "flops": 1e15,
    "peak": 989e12,
    "first_step": 0,
    "step": 9000,
    "at": [{"step": 6000, "steps": 3600.0}],
    "ended": None,
    "exit_code": None,
    "seconds": dict.fromkeys(PHASES, 0.0) | {"start": 1800.0, "steps": 5400.0},
}
_NEXT = _ACCOUNT | {
    "begun": 1_795_651_200.0 + 9000,
    "written": 1_795_651_200.0 + 14400,
    "first_step": 6000,
    "step": 12000,
    "ended": "12,000 steps are done",
    "exit_code": 0,
    "seconds": dict.fromkeys(PHASES, 0.0) | {"evaluation": 1800.0, "steps": 3600.0},
}


@pytest.fixture
def run(tmp_path):
    """A run that was killed after step 9,000, and went on after step 6,000 to the end."""
    workdir = tmp_path / "run"
    (workdir / "jobs").mkdir(parents=True)
    (workdir / "config.json").write_text(Config().to_json())
    line = {"step": 12_000, "of": "train", "loss": 2.0, "nll": 2.0}
    (workdir / "log.jsonl").write_text(json.dumps(line) + "\n")
    for number, account in ((9, _ACCOUNT), (10, _NEXT)):  # which are in order by number
        (workdir / "jobs" / f"{number}.json").write_text(json.dumps(account))
    return workdir


def _report(*arguments):
    return entry_command(["report", *map(str, arguments)]).run()


def test_a_run_has_a_table_of_its_time_and_of_its_jobs(run, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert _report(run, "--price", "2.5", "--watts", "700") == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for line in (
        "Productive steps: 12,000. Restarts: 1. Steps that were repeated after a restart: 3,000.",
        "productive steps 2 h 50.0% 16.00 40.00",
        "repeated steps 30 min 12.5% 4.00 10.00",
        "start 30 min 12.5% 4.00 10.00",
        "evaluation 30 min 12.5% 4.00 10.00",
        "between jobs 30 min 12.5% 4.00 10.00",
        "in all 4 h 100.0% 32.00 80.00",
        "Energy without the time between jobs: 19.60 kWh.",
        "1 2026-11-26 00:00:00 node1, 8 × NVIDIA H200 1 to 9,000 3,000 2 h not recorded: killed "
        "or still running",
        "2 2026-11-26 02:30:00 node1, 8 × NVIDIA H200 6,001 to 12,000 0 90 min 12,000 steps are "
        "done",
        "MFU, relative to the published bfloat16 peak of the devices: 21.1% over the productive "
        "steps, 10.5% over the total time.",
    ):
        assert line in lines


def test_a_run_without_a_step_says_why_its_mfu_is_not_known(run, capsys):
    (run / "jobs" / "10.json").unlink()
    nothing = {"step": 0, "at": [], "seconds": dict.fromkeys(PHASES, 0.0)}
    (run / "jobs" / "9.json").write_text(json.dumps(_ACCOUNT | nothing))
    assert _report(run) == 0
    assert "The MFU is unknown, because no step is complete yet." in capsys.readouterr().out
    (run / "jobs" / "9.json").write_text(json.dumps(_ACCOUNT | {"kind": "cpu", "peak": None}))
    assert _report(run) == 0
    assert "The MFU is unknown, because the peak of cpu is unknown." in capsys.readouterr().out


def test_figures_come_as_json_and_as_pictures(run, tmp_path, capsys):
    assert _report(run, "--json", "--output", tmp_path / "time.svg") == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["steps"], figures["repeated_steps"]) == (12_000, 3000)
    assert figures["buckets"]["between"]["share"] == 0.125
    assert [job["ended"] for job in figures["jobs"]] == [None, "12,000 steps are done"]
    assert figures["cost"] is None
    picture = (tmp_path / "time.svg").read_text()
    assert "h since the first start" in picture
    assert "repeated steps" in picture


def test_the_report_and_the_curves_have_it_too(run, capsys):
    assert entry_command(["report", "--workdir", str(run)]).run() == 0
    assert "| repeated steps | 30 min | 12.5% | 4.00 |" in (run / "report.md").read_text()
    capsys.readouterr()
    assert entry_command(["watch", str(run)]).run() == 0
    assert "time: 50% productive steps, 12% repeated steps, 12% start" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--price", "0"], r"--price 0.0 is not a number above 0"),
        (["--sustained-tflops", "nan"], r"--sustained-tflops nan is not a number above 0"),
        (["--price", "-1"], r"--price -1.0 is not a number above 0"),
        (["--watts", "inf"], r"--watts inf is not a number above 0"),
        (["--output", "time.pdf"], r"--output time.pdf has to end in .svg or .png"),
        (["--output", "nowhere/time.svg"], r"there is no directory nowhere"),
    ],
)
def test_bad_flags_are_refused(run, flags, message, capsys):
    with pytest.raises(UserError, match=message):
        _report(run, *flags)
    assert capsys.readouterr().out == ""


def test_what_has_no_accounts_is_refused(run, tmp_path):
    for account in (run / "jobs").iterdir():
        account.unlink()
    with pytest.raises(UserError, match=r"run has no record of its time"):
        _report(run, "--json")
    with pytest.raises(UserError, match="is not a run directory"):
        _report(tmp_path)
