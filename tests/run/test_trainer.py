"""Runs from the first step to the last, with everything that can come between.

The runs are real programs where it matters: they are killed, stopped and started again.
"""

import json
import os
import shutil
import signal

import pytest

from t2t_jax import Config, UserError, load, train
from t2t_jax.parallel.mesh import make_mesh
from t2t_jax.parallel.processes import locked
from t2t_jax.run.history import score_name
from t2t_jax.run.meter import StepMeter
from t2t_jax.tasks.measures import bleu
from t2t_jax.training.checkpoint_files import steps_in
from t2t_jax.training.settling import settled
from t2t_jax.workdir import read_config
from tests.selection import thorough_after
from tests.trained import account, bits, checksums, records_of, wait_for_step

STEPS = 40
# A run of 40 steps that takes seconds.
FIELDS = {
    "training.num_train_steps": STEPS,
    "training.learning_rate_factor": 1.0,
    "evaluation.every_steps": 20,
    "checkpoint.every_steps": 7,
    "checkpoint.keep": 3,
}
FLAGS = [f"--{path}={value}" for path, value in FIELDS.items()]


@pytest.fixture(scope="module")
def config(tiny_run):
    return tiny_run.config.replace(FIELDS)


@pytest.fixture(scope="module")
def undisturbed(tiny_run, tmp_path_factory):
    """The run directory of a run that nothing happened to."""
    workdir = tmp_path_factory.mktemp("trainer") / "undisturbed"
    tiny_run.finish(workdir, *FLAGS)
    return workdir


@pytest.mark.thorough
def test_a_new_directory_is_a_run_before_checkpoints_are_made(config, tmp_path, monkeypatch):
    def killed(*_):
        raise RuntimeError("killed")

    monkeypatch.setattr("t2t_jax.run.preparing.Checkpoints", killed)
    with pytest.raises(RuntimeError, match="killed"):
        train(config, tmp_path / "run")
    assert Config.from_json((tmp_path / "run" / "config.json").read_text()) == config
    monkeypatch.undo()
    short = config.replace({"training.num_train_steps": 1, "evaluation.every_steps": 9})
    assert train(short, tmp_path / "run").exit_code == 0


@pytest.mark.slow
def test_a_new_run_computes_in_what_is_fast_and_goes_on_in_what_it_began_with(
    config, tmp_path, monkeypatch, capsys
):
    """And so with the end of its schedule."""
    automatic = config.replace(
        {
            "model.compute_dtype": "auto",
            "parallel.tokens_per_device": "auto",
            "training.num_train_steps": 2,
            "training.schedule": "linear",
            "training.warmup_steps": 1,
            "training.ema_decay": 0.5,
        }
    )
    sets = ["amx_bf16"]
    monkeypatch.setattr("t2t_jax.kernels.choice.instruction_sets", lambda: sets)
    assert train(automatic, tmp_path / "run").exit_code == 0
    assert read_config(tmp_path / "run").model.compute_dtype == "bfloat16"
    assert read_config(tmp_path / "run").training.schedule_steps == 2
    assert read_config(tmp_path / "run").parallel.tokens_per_device == 4096
    assert "the learning rate is 0" not in capsys.readouterr().out
    sets.clear()
    longer = automatic.replace({"training.num_train_steps": 3})
    assert settled(longer, make_mesh(longer.parallel)).model.compute_dtype == "float32"
    assert train(longer, tmp_path / "run").exit_code == 0
    assert read_config(tmp_path / "run").model.compute_dtype == "bfloat16"
    assert read_config(tmp_path / "run").training.schedule_steps == 2
    printed = capsys.readouterr().out
    assert "learning rate is 0 from training.schedule_steps=2 on" in printed
    assert "dev is scored with a moving average of the parameters, decay 0.5" in printed
    rates = [record["learning_rate"] for record in records_of(tmp_path / "run", "train")]
    assert rates[0] > rates[1] == rates[2] == 0
    with pytest.raises(UserError, match=r"compute_dtype 'bfloat16' -> 'float32'"):
        train(longer.replace({"model.compute_dtype": "float32"}), tmp_path / "run")


def test_a_run_writes_what_it_promises(undisturbed, config):
    assert Config.from_json((undisturbed / "config.json").read_text()) == config
    assert [r["step"] for r in records_of(undisturbed, "train")] == list(range(1, STEPS + 1))
    assert [r["step"] for r in records_of(undisturbed, "dev")] == [20, 40]
    assert steps_in(undisturbed / "checkpoints") == [28, 35, 40]
    first, last = records_of(undisturbed, "train")[0], records_of(undisturbed, "train")[-1]
    assert last["loss"] < first["loss"]
    # Packed rows: 512 positions a step, of which few are padding.
    assert 400 < first["target_tokens"] <= 512
    assert any(p.name.startswith("events.out.tfevents") for p in undisturbed.iterdir())


@pytest.mark.parametrize("number", thorough_after(1, [signal.SIGHUP, signal.SIGINT]))
def test_a_signal_stops_with_a_checkpoint_and_the_run_goes_on_from_it(
    tiny_run, tmp_path, config, undisturbed, number, capsys
):
    workdir = tmp_path / "run"
    (program,) = tiny_run.start(workdir, *FLAGS)
    wait_for_step(program, 9)
    program.send_signal(number)
    output, errors = program.communicate()
    assert program.returncode == 128 + number, errors
    assert "run the same command to resume" in output
    stopped = max(steps_in(workdir / "checkpoints"))
    assert 9 <= stopped < STEPS
    assert train(config, workdir).exit_code == 0
    assert f"step {stopped + 1} of {STEPS} begins" in capsys.readouterr().out
    assert bits(workdir, average=1) == bits(undisturbed, average=1)


def _stop_after(step, monkeypatch):
    """Let the run in this process get a signal when it has taken a step."""
    add = StepMeter.add

    def adding(meter, number, metrics):
        add(meter, number, metrics)
        if number == step:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(StepMeter, "add", adding)


@pytest.mark.thorough
def test_the_log_of_a_resumed_run_is_that_of_an_undisturbed_one(config, tmp_path, monkeypatch):
    """Stops within a window of the log, at its end, and before its first record."""
    fields = {
        "training.log_every_steps": 10,
        "training.warmup_steps": 10,
        "training.learning_rate_factor": 20.0,  # too high: a warning says so
    }
    config = config.replace(fields)
    assert train(config, tmp_path / "undisturbed").exit_code == 0
    for step in (4, 16, 30):
        with monkeypatch.context() as patch:
            _stop_after(step, patch)
            assert train(config, tmp_path / "resumed").exit_code == 128 + signal.SIGTERM
    assert train(config, tmp_path / "resumed").exit_code == 0
    expected = account(tmp_path / "undisturbed")
    found = account(tmp_path / "resumed")
    assert any(json.loads(line)["of"] == "warning" for line in expected["log"])
    stops = [line for line in found["log"] if json.loads(line)["of"] == "checkpoint"]
    others = [line for line in found["log"] if line not in stops or line in expected["log"]]
    assert others == expected["log"]
    assert found["parameters"] == expected["parameters"]


@pytest.mark.thorough
def test_a_run_that_pauses_ends_with_the_same_bits(config, undisturbed, tmp_path, capsys):
    """A pause where a checkpoint and an evaluation are due, and one where neither is."""
    workdir = tmp_path / "paused"
    for pause, until in ((9, 9), (9, 4), (21, 21), (40, 99)):
        assert train(config, workdir, until=until).exit_code == 0
        assert steps_in(workdir / "checkpoints")[-1] == pause
        ended = "40 steps are done" if pause == 40 else f"paused after step {pause} of 40"
        assert records_of(workdir, "end")[-1]["text"] == ended
    assert steps_in(workdir / "checkpoints") == steps_in(undisturbed / "checkpoints")
    assert bits(workdir, average=3) == bits(undisturbed, average=3)
    assert checksums(workdir) == checksums(undisturbed)
    assert _losses(workdir) == _losses(undisturbed)
    assert load(workdir, step="best").steps == load(undisturbed, step="best").steps


def _losses(workdir):
    records = [*records_of(workdir, "train"), *records_of(workdir, "dev")]
    return [(record["step"], record["loss"]) for record in records]


def test_a_pause_before_the_first_step_is_refused(tmp_path, config):
    with pytest.raises(UserError, match="until=0 is not a step; give 1 or more"):
        train(config, tmp_path / "run", until=0)
    assert not (tmp_path / "run").exists()


def test_a_run_that_is_done_stays_as_it_is(undisturbed, config):
    before = bits(undisturbed, average=1)
    run = train(config, str(undisturbed))
    assert (run.directory, run.exit_code) == (undisturbed, 0)
    assert bits(undisturbed, average=1) == before
    assert [record["step"] for record in run.history.training] == list(range(1, STEPS + 1))
    assert [record["step"] for record in run.history.evaluations] == [20, 40]
    assert run.history.end["text"] == f"{STEPS} steps are done"
    assert run.load(step=35).steps == (35,)
    assert "loss" not in repr(run)  # a notebook shows it after the cell


def _snapshot(workdir):
    return {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in workdir.rglob("*")}


def test_a_workdir_with_another_config_is_refused_and_left_alone(undisturbed, config):
    before = _snapshot(undisturbed)
    other = config.replace({"model.d_ff": 64, "training.num_train_steps": 50})
    with pytest.raises(UserError, match=r"model\.d_ff 32 -> 64") as refused:
        train(other, undisturbed)
    assert "num_train_steps" not in str(refused.value)
    assert _snapshot(undisturbed) == before


def test_a_bad_dev_set_is_refused_before_anything_is_written(tiny_run, config, tmp_path):
    corpus = tmp_path / "corpus"
    shutil.copytree(tiny_run.folder / "corpus", corpus)
    (corpus / "dev.de").write_bytes(b"gut\n" * 3 + b"\xff\n" + b"gut\n" * 4)
    bad = config.replace({"data.corpus": f"text:{corpus}"})
    with pytest.raises(UserError, match=r"dev\.de.*4"):
        train(bad, tmp_path / "run")
    (corpus / "dev.de").write_text("")
    (corpus / "dev.en").write_text("")
    with pytest.raises(UserError, match="dev"):
        train(bad, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_without_dev_says_so_and_trains(tiny_run, config, tmp_path, capsys):
    short = {**tiny_run.without_dev, "training.num_train_steps": 2}
    assert train(config.replace(short), tmp_path / "run").exit_code == 0
    assert "no dev split" in capsys.readouterr().out
    assert steps_in(tmp_path / "run" / "checkpoints") == [2]


@pytest.mark.thorough
def test_the_log_has_the_flags_of_the_compiler_and_what_crosses_slices(
    config, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("t2t_jax.run.preparing.described_options", lambda _: "--xla_a=true")
    monkeypatch.setattr("t2t_jax.run.preparing.described_slices", lambda _: "slow links: data")
    one_step = config.replace({"training.num_train_steps": 1, "training.warmup_steps": 1})
    assert train(one_step, tmp_path / "run").exit_code == 0
    told = capsys.readouterr().out
    assert "compiled with --xla_a=true" in told
    assert "slow links: data" in told


def test_a_second_trainer_in_the_same_workdir_is_refused(undisturbed):
    with (
        locked(undisturbed),
        pytest.raises(UserError, match="another process trains"),
        locked(undisturbed),
    ):
        pass
    with locked(undisturbed):  # which is free again
        pass


def test_an_evaluation_that_a_signal_ended_is_made_up_for(config, undisturbed, tmp_path):
    shutil.copytree(undisturbed, tmp_path / "run")
    log = tmp_path / "run" / "log.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(line for line in lines if '"step": 40, "of": "dev"' not in line))
    assert train(config, tmp_path / "run").exit_code == 0
    scores = [{k: r[k] for k in ("step", "loss", "bleu")} for r in records_of(undisturbed, "dev")]
    again = [{k: r[k] for k in scores[0]} for r in records_of(tmp_path / "run", "dev")]
    assert again == scores


def test_a_directory_that_is_no_run_is_refused_and_left_alone(tmp_path, config):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="not a run directory"):
        train(config, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(UserError, match="not a run directory"):
        train(config, tmp_path / "thesis.tex")
    with pytest.raises(UserError, match=r"thesis\.tex is not a writable directory"):
        train(config, tmp_path / "thesis.tex" / "run")


def test_a_corpus_that_changed_under_a_run_is_refused(tiny_run, config, undisturbed):
    path = tiny_run.folder / "corpus" / "train.en"
    text = path.read_text(encoding="utf-8")
    try:
        path.write_text(text.replace("the", "ye"), encoding="utf-8")
        with pytest.raises(UserError, match="is not what"):
            train(config, undisturbed)
    finally:
        path.write_text(text, encoding="utf-8")


def test_a_lost_vocabulary_is_made_again_from_the_same_text_and_from_no_other(
    config, undisturbed, tmp_path
):
    run = tmp_path / "run"
    shutil.copytree(undisturbed, run)
    vocabulary = (run / "vocabulary.model").read_bytes()
    (run / "vocabulary.model").unlink()
    with pytest.raises(UserError, match="is not what"):
        train(config.replace({"data.corpus": "bundled:"}), run)
    assert train(config, run).exit_code == 0
    assert (run / "vocabulary.model").read_bytes() == vocabulary


def test_a_run_whose_loss_diverges_stops_and_says_so(tmp_path, config):
    wild = {"training.learning_rate_factor": 1e36, "training.max_nonfinite_steps": 3}
    with pytest.raises(UserError, match="not finite in 3 steps in a row"):
        train(config.replace(wild), tmp_path / "run")


@pytest.mark.thorough
def test_another_metric_chooses_the_best_and_ends_the_run(config, tmp_path, monkeypatch):
    # A number that falls from evaluation to evaluation, whatever the translations are.
    numbers = iter([49.0, 48.0, 47.0])
    monkeypatch.setattr(bleu, "mean_of_sentences", lambda *_: next(numbers))
    changes = {
        "evaluation.metric": "chrf",
        "evaluation.every_steps": 5,
        "training.stop_after_evaluations_without_gain": 2,
    }
    workdir = tmp_path / "run"
    assert train(config.replace(changes), workdir).exit_code == 0
    records = records_of(workdir, "dev")
    assert [(one["step"], one["metric_score"], one["score"]) for one in records] == [
        (5, 49.0, 49.0),
        (10, 48.0, 48.0),
        (15, 47.0, 47.0),
    ]
    assert all(one["metric"] == "chrf" == score_name(one) for one in records)
    assert load(workdir, step="best").steps == (5,)
    with pytest.raises(UserError, match=r"='blue' is not one of 'bleu', 'chrf'; did you mean bleu"):
        config.replace({"evaluation.metric": "blue"})
    with pytest.raises(UserError, match="judges translations"):
        Config().replace({"data.corpus": "trees:a", "evaluation.metric": "chrf"})
