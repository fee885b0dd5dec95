"""Runs from the first step to the last, with everything that can come between.

The runs are real programs where it matters: they are killed, stopped and started again.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from t2t_jax.config import Config
from t2t_jax.data.corpus import open_corpus
from t2t_jax.errors import UserError
from t2t_jax.parallel.directory_lock import locked
from t2t_jax.parallel.mesh import make_mesh
from t2t_jax.run.history import score_name
from t2t_jax.run.loading import load
from t2t_jax.run.meter import StepMeter
from t2t_jax.run.trainer import train
from t2t_jax.tasks.measures import bleu
from t2t_jax.training.settling import settled
from t2t_jax.workdir import read_config
from tests.selection import thorough_after

REPOSITORY = Path(__file__).parents[2]
STEPS = 40
TINY = {
    "model.d_model": 16,
    "model.num_heads": 2,
    "model.d_ff": 32,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.compute_dtype": "float32",
    "data.vocab_size": 300,
    "data.max_length": 64,
    "data.batching": "pack",
    "data.source_tokens_per_step": 512,
    "data.target_tokens_per_step": 512,
    "training.num_train_steps": STEPS,
    "training.warmup_steps": 20,
    "training.log_every_steps": 1,
    "evaluation.every_steps": 20,
    "evaluation.num_sentences": 4,
    "evaluation.num_samples": 1,
    "decoding.max_extra_length": 10,
    "checkpoint.every_minutes": None,
    "checkpoint.every_steps": 7,
    "checkpoint.keep": 3,
    "checkpoint.average": 1,
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A corpus of 400 + 8 + 8 real pairs, and room for runs."""
    root = tmp_path_factory.mktemp("trainer")
    bundled = open_corpus(Config().data)
    (root / "corpus").mkdir()
    for split, count in (("train", 400), ("dev", 8), ("test", 8)):
        for language, lines in zip(("en", "de"), bundled.lines(split), strict=True):
            text = "\n".join(lines[:count]) + "\n"
            (root / "corpus" / f"{split}.{language}").write_text(text, encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def config(directory):
    """A run of 40 steps that takes seconds."""
    paths = {
        "data.corpus": f"text:{directory / 'corpus'}",
        "data.cache_dir": str(directory / "cache"),
    }
    return Config().replace({**TINY, **paths})


@pytest.fixture(scope="module")
def undisturbed(directory, config):
    """The run directory of a run that nothing happened to."""
    assert _finish(directory / "undisturbed", config).returncode == 0
    return directory / "undisturbed"


def _program(workdir, config):
    """`train.py` as a user starts it."""
    file = workdir.parent / f"{workdir.name}_config.py"
    fields = dict(TINY)
    fields |= {"data.corpus": config.data.corpus, "data.cache_dir": config.data.cache_dir}
    file.write_text(
        "from t2t_jax import Config\n\n\ndef get_config() -> Config:\n"
        f"    return Config().replace({fields!r})\n"
    )
    return subprocess.Popen(
        [sys.executable, "train.py", "--config", str(file), "--workdir", str(workdir)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finish(workdir, config):
    program = _program(workdir, config)
    output, errors = program.communicate()
    return subprocess.CompletedProcess(program.args, program.returncode, output, errors)


def _wait_for_step(program, step):
    for line in program.stdout:
        if line.startswith(f"step {step}  loss"):
            return
    pytest.fail(f"the run ended before step {step}: {program.stderr.read()}")


def _parameters(workdir, average):
    return [np.asarray(x) for x in jax.tree.leaves(load(workdir, average=average).params)]


def _assert_same_parameters(one, other, average=1):
    for a, b in zip(_parameters(one, average), _parameters(other, average), strict=True):
        np.testing.assert_array_equal(a, b)


def _kept(workdir):
    return sorted(int(path.name) for path in (workdir / "checkpoints").iterdir())


def _records(workdir, of="train"):
    lines = (workdir / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for line in lines if (record := json.loads(line))["of"] == of]


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
    rates = [record["learning_rate"] for record in _records(tmp_path / "run")]
    assert rates[0] > rates[1] == rates[2] == 0
    with pytest.raises(UserError, match=r"compute_dtype 'bfloat16' -> 'float32'"):
        train(longer.replace({"model.compute_dtype": "float32"}), tmp_path / "run")


def test_a_run_writes_what_it_promises(undisturbed, config):
    assert Config.from_json((undisturbed / "config.json").read_text()) == config
    assert [r["step"] for r in _records(undisturbed)] == list(range(1, STEPS + 1))
    assert [r["step"] for r in _records(undisturbed, "dev")] == [20, 40]
    assert _kept(undisturbed) == [28, 35, 40]
    first, last = _records(undisturbed)[0], _records(undisturbed)[-1]
    assert last["loss"] < first["loss"]
    # Packed rows: 512 positions a step, of which few are padding.
    assert 400 < first["target_tokens"] <= 512
    assert any(p.name.startswith("events.out.tfevents") for p in undisturbed.iterdir())


@pytest.mark.parametrize("kills", thorough_after(1, [1, 3]))
def test_a_run_killed_again_and_again_ends_with_the_same_bits(
    directory, config, undisturbed, kills
):
    workdir = directory / f"killed {kills}"
    rng = random.Random(0)
    for step in sorted(rng.sample(range(2, STEPS - 2), kills)):
        program = _program(workdir, config)
        _wait_for_step(program, max(step, _last_checkpoint(workdir) + 1))
        time.sleep(rng.uniform(0, 0.05))
        program.kill()
        program.communicate()
    assert train(config, workdir).exit_code == 0
    _assert_same_parameters(workdir, undisturbed)
    assert [r["step"] for r in _records(workdir)] == list(range(1, STEPS + 1))
    for a, b in zip(_records(workdir), _records(undisturbed), strict=True):
        assert a["loss"] == b["loss"]


def _last_checkpoint(workdir):
    steps = (workdir / "checkpoints").glob("[0-9]*")
    return max((int(p.name) for p in steps if p.name.isdigit()), default=0)


@pytest.mark.parametrize("number", thorough_after(1, [signal.SIGTERM, signal.SIGINT]))
def test_a_signal_stops_with_a_checkpoint_and_the_run_goes_on_from_it(
    directory, config, undisturbed, number, capsys
):
    workdir = directory / number.name
    program = _program(workdir, config)
    _wait_for_step(program, 9)
    program.send_signal(number)
    output, errors = program.communicate()
    assert program.returncode == 128 + number, errors
    assert "the same command goes on from there" in output
    stopped = _last_checkpoint(workdir)
    assert 9 <= stopped < STEPS
    assert train(config, workdir).exit_code == 0
    assert f"step {stopped + 1} of {STEPS} begins" in capsys.readouterr().out
    _assert_same_parameters(workdir, undisturbed)


def _stop_after(step, monkeypatch):
    """Let the run in this process get a signal when it has taken a step."""
    add = StepMeter.add

    def adding(meter, number, metrics):
        add(meter, number, metrics)
        if number == step:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(StepMeter, "add", adding)


@pytest.mark.slow
def test_a_run_stopped_between_checkpoints_ends_with_the_same_average(
    directory, config, undisturbed, monkeypatch
):
    workdir = directory / "stopped"
    for step in (36, 38):
        with monkeypatch.context() as patch:
            _stop_after(step, patch)
            assert train(config, workdir).exit_code == 128 + signal.SIGTERM
        assert _kept(workdir)[-1] == step
    assert train(config, workdir).exit_code == 0
    assert _kept(workdir) == _kept(undisturbed)
    _assert_same_parameters(workdir, undisturbed, average=3)


@pytest.mark.thorough
def test_a_run_that_pauses_ends_with_the_same_bits(directory, config, undisturbed, capsys):
    """A pause where a checkpoint and an evaluation are due, and one where neither is."""
    workdir = directory / "paused"
    for pause, until in ((9, 9), (9, 4), (21, 21), (40, 99)):
        assert train(config, workdir, until=until).exit_code == 0
        assert _kept(workdir)[-1] == pause
        ended = "40 steps are done" if pause == 40 else f"paused after step {pause} of 40"
        assert _records(workdir, "end")[-1]["text"] == ended
    assert _kept(workdir) == _kept(undisturbed)
    _assert_same_parameters(workdir, undisturbed, average=3)
    assert _sums(workdir) == _sums(undisturbed)
    for of in ("train", "dev"):
        for a, b in zip(_records(workdir, of), _records(undisturbed, of), strict=True):
            assert (a["step"], a["loss"]) == (b["step"], b["loss"])
    best = (load(one, step="best").steps for one in (workdir, undisturbed))
    assert next(best) == next(best)


def _sums(workdir):
    """The checksums of all arrays of the last state, the optimiser's among them."""
    origin = workdir / "checkpoints" / str(STEPS) / "origin" / "metadata"
    return json.loads(origin.read_text())["sums"]


def test_a_pause_before_the_first_step_is_refused(tmp_path, config):
    with pytest.raises(UserError, match="until=0 is not a step; give 1 or more"):
        train(config, tmp_path / "run", until=0)
    assert not (tmp_path / "run").exists()


def test_a_run_that_is_done_stays_as_it_is(undisturbed, config):
    before = _parameters(undisturbed, 1)
    assert train(config, undisturbed).exit_code == 0
    for a, b in zip(before, _parameters(undisturbed, 1), strict=True):
        np.testing.assert_array_equal(a, b)


def _snapshot(workdir):
    return {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in workdir.rglob("*")}


def test_a_workdir_with_another_config_is_refused_and_left_alone(undisturbed, config):
    before = _snapshot(undisturbed)
    other = config.replace({"model.d_ff": 64, "training.num_train_steps": 50})
    with pytest.raises(UserError, match=r"model\.d_ff 32 -> 64") as refused:
        train(other, undisturbed)
    assert "num_train_steps" not in str(refused.value)
    assert _snapshot(undisturbed) == before


def test_a_refused_start_leaves_the_stored_config_alone(undisturbed, config):
    before = _snapshot(undisturbed)
    with pytest.raises(UserError, match=r"parallel\.data=99"):
        train(config.replace({"parallel.data": 99}), undisturbed)
    assert _snapshot(undisturbed) == before


def test_a_bad_dev_set_is_refused_before_anything_is_written(directory, config, tmp_path):
    corpus = tmp_path / "corpus"
    shutil.copytree(directory / "corpus", corpus)
    (corpus / "dev.de").write_bytes(b"gut\n" * 3 + b"\xff\n" + b"gut\n" * 4)
    bad = config.replace({"data.corpus": f"text:{corpus}"})
    with pytest.raises(UserError, match=r"dev\.de.*4"):
        train(bad, tmp_path / "run")
    (corpus / "dev.de").write_text("")
    (corpus / "dev.en").write_text("")
    with pytest.raises(UserError, match="dev"):
        train(bad, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_without_dev_says_so_and_trains(directory, config, tmp_path, capsys):
    corpus = tmp_path / "corpus"
    shutil.copytree(directory / "corpus", corpus, ignore=shutil.ignore_patterns("dev.*"))
    short = {"data.corpus": f"text:{corpus}", "training.num_train_steps": 2}
    assert train(config.replace(short), tmp_path / "run").exit_code == 0
    assert "no dev split" in capsys.readouterr().out
    assert _last_checkpoint(tmp_path / "run") == 2


@pytest.mark.thorough
def test_the_log_has_the_flags_of_the_compiler_and_what_crosses_slices(
    directory, config, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("t2t_jax.run.preparing.described_options", lambda _: "--xla_a=true")
    monkeypatch.setattr("t2t_jax.run.preparing.described_slices", lambda _: "slow links: data")
    one_step = config.replace({"training.num_train_steps": 1, "training.warmup_steps": 1})
    assert train(one_step, tmp_path / "run").exit_code == 0
    told = capsys.readouterr().out
    assert "compiled with --xla_a=true" in told
    assert "slow links: data" in told


def test_a_second_trainer_in_the_same_workdir_is_refused(config, undisturbed):
    with (
        locked(undisturbed),
        pytest.raises(UserError, match="another process trains"),
        locked(undisturbed),
    ):
        pass
    assert train(config, undisturbed).exit_code == 0


def test_the_same_corpus_under_another_name_goes_on(directory, config, undisturbed, tmp_path):
    shutil.copytree(directory / "corpus", tmp_path / "moved")
    assert (
        train(config.replace({"data.corpus": f"text:{tmp_path / 'moved'}"}), undisturbed).exit_code
        == 0
    )
    assert train(config, undisturbed).exit_code == 0


def test_an_evaluation_that_a_signal_ended_is_made_up_for(directory, config, undisturbed, tmp_path):
    shutil.copytree(undisturbed, tmp_path / "run")
    log = tmp_path / "run" / "log.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(line for line in lines if '"step": 40, "of": "dev"' not in line))
    assert train(config, tmp_path / "run").exit_code == 0
    scores = [{k: r[k] for k in ("step", "loss", "bleu")} for r in _records(undisturbed, "dev")]
    again = [{k: r[k] for k in scores[0]} for r in _records(tmp_path / "run", "dev")]
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


def test_a_missing_corpus_is_refused_before_anything_is_written(tmp_path, config):
    with pytest.raises(UserError, match="nowhere"):
        train(config.replace({"data.corpus": "text:/nowhere"}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_corpus_that_changed_under_a_run_is_refused(directory, config, undisturbed):
    path = directory / "corpus" / "train.en"
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


@pytest.mark.thorough
def test_a_damaged_checkpoint_gives_way_to_the_one_before_with_a_warning(
    directory, config, undisturbed, monkeypatch
):
    workdir = directory / "damaged"
    with monkeypatch.context() as patch:
        _stop_after(16, patch)
        assert train(config, workdir).exit_code == 128 + signal.SIGTERM
    *_, before, step = _kept(workdir)
    checkpoint = workdir / "checkpoints" / str(step)
    files = [p for p in checkpoint.rglob("*") if p.is_file()]
    with max(files, key=lambda p: p.stat().st_size).open("r+b") as file:
        file.truncate(50)
    done = _finish(workdir, config)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"warning: checkpoint {checkpoint} cannot be read")
    assert done.stderr.count("\n") == 1
    assert f"step {before + 1} of {STEPS} begins" in done.stdout
    assert (workdir / "damaged" / str(step)).is_dir()
    _assert_same_parameters(workdir, undisturbed)


def test_a_run_whose_loss_diverges_stops_and_says_so(tmp_path, config):
    wild = config.replace(
        {"training.learning_rate_factor": 1e36, "training.max_nonfinite_steps": 3}
    )
    with pytest.raises(UserError, match="not finite in 3 steps in a row"):
        train(wild, tmp_path / "run")


@pytest.mark.thorough
def test_a_run_trains_longer_when_asked(tmp_path, config):
    short = config.replace({"training.num_train_steps": 3, "evaluation.every_steps": 100})
    assert train(short, tmp_path / "run").exit_code == 0
    assert train(short.replace({"training.num_train_steps": 5}), tmp_path / "run").exit_code == 0
    assert [r["step"] for r in _records(tmp_path / "run")] == [1, 2, 3, 4, 5]
    stored = Config.from_json((tmp_path / "run" / "config.json").read_text())
    assert stored.training.num_train_steps == 5


TREES = """
(TOP (S (NP (DT The) (NN dog)) (VP (VBZ barks)) (. .)))
(TOP (S (NP (DT The) (NN cat)) (VP (VBZ sleeps)) (. .)))
(TOP (S (NP (PRP It)) (VP (VBZ rains)) (. .)))
(TOP (S (NP (NNS Dogs)) (VP (VBP bark) (PP (IN at) (NP (NNS cats)))) (. .)))
(TOP (NP (NP (NN Rain)) (, ,) (NP (NN wind))))
( (S (NP-SBJ-1 (NNS Cats)) (VP (VBP want) (S (NP (-NONE- *-1)) (VP (TO to) (VP (VB sleep)))))) )
"""


@pytest.mark.slow
def test_a_parser_is_trained_and_its_best_kept_by_f1(config, tmp_path, capsys):
    for split in ("train", "dev"):
        (tmp_path / f"{split}.mrg").write_text(TREES)
    changes = {
        "data.corpus": f"trees:{tmp_path}",
        "data.vocab_size": 70,
        "training.num_train_steps": 90,
        "training.log_every_steps": 30,
        "evaluation.every_steps": 45,
        "evaluation.num_sentences": None,
        "model.dropout_rate": 0.0,
    }
    workdir = tmp_path / "run"
    assert train(config.replace(changes), workdir).exit_code == 0
    printed = capsys.readouterr().out
    assert f"score: t2t-jax evaluate --workdir {workdir}" in printed
    assert "(EVALB, COLLINS.prm)" in printed
    assert "reference  (TOP (S (NP (DT The) (NN dog)) (VP (VBZ barks)) (. .)))" in printed
    scores = {record["step"]: record["f1"] for record in _records(workdir, "dev")}
    assert list(scores) == [45, 90]
    best = load(workdir, step="best")
    assert best.steps == (max(scores, key=scores.get),)
    assert 0 < max(scores.values()) <= 100
    (pieces,) = best.vocabulary.pieces([range(len(best.vocabulary))])
    assert {"▁(NP", "▁)VP"} <= set(pieces)  # the vocabulary was learned across scripts


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
    records = _records(workdir, "dev")
    assert [(one["step"], one["metric_score"], one["score"]) for one in records] == [
        (5, 49.0, 49.0),
        (10, 48.0, 48.0),
        (15, 47.0, 47.0),
    ]
    assert all(one["metric"] == "chrf" == score_name(one) for one in records)
    assert load(workdir, step="best").steps == (5,)
    with pytest.raises(UserError, match=r"='blue' is a str, expected 'bleu' \| 'chrf' \| None"):
        config.replace({"evaluation.metric": "blue"})
    with pytest.raises(UserError, match="judges translations"):
        Config().replace({"data.corpus": "trees:a", "evaluation.metric": "chrf"})


def test_load_needs_nothing_but_the_run_directory(undisturbed, tmp_path):
    moved = tmp_path / "elsewhere"
    shutil.copytree(undisturbed, moved)
    program = (
        "import sys, t2t_jax\n"
        "assert 'jax' not in sys.modules\n"
        f"translator = t2t_jax.load({str(moved)!r}, average=2)\n"
        "lines = translator.translate(['No devices found', '', 'Open'])\n"
        "assert len(lines) == 3 and lines[1] == '' and translator.steps == (35, 40)\n"
        "assert not any(name.startswith('tensorflow.') for name in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
