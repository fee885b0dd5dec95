"""A run directory knows its own parts, and refuses those of others."""

import errno
import os
import random
import shutil
from pathlib import Path

import jax
import pytest

from t2t_jax import UserError, load, train
from t2t_jax.data.corpus import open_corpus
from t2t_jax.data.vocabularies.learning import train_vocabulary
from t2t_jax.extras.watching.report import build_report
from t2t_jax.run.dry_run import dry_run
from t2t_jax.run.preparing import make_plan
from t2t_jax.workdir import claim, read_config
from tests.free_fields import MAY_CHANGE
from tests.programs import run_python
from tests.refusals import refused


@pytest.fixture(scope="module")
def trained(tiny_run, tmp_path_factory):
    """A tiny run of two steps, and its config."""
    workdir = tmp_path_factory.mktemp("workdir") / "run"
    config = tiny_run.config.replace({"training.num_train_steps": 2})
    assert train(config, workdir).exit_code == 0
    return config, workdir


@pytest.fixture
def run(trained, tmp_path):
    """A copy that may be damaged."""
    config, workdir = trained
    shutil.copytree(workdir, tmp_path / "run")
    return config, tmp_path / "run"


def _flip(path, seed=0):
    content = bytearray(path.read_bytes())
    place = random.Random(seed).randrange(len(content))
    content[place] ^= 1 << seed % 8
    path.write_bytes(content)


def _another_vocabulary(config, workdir):
    """Of the same size, but of other text."""
    corpus = open_corpus(config.data)
    other = train_vocabulary(corpus.pairs("dev"), 120)
    other.save(workdir / "vocabulary.model")
    (workdir / "vocabulary.sha256").unlink()


def _another_corpus(config, workdir):
    (workdir / "corpus.sha256").write_text("0" * 64 + "\n")


FOREIGN = {
    "another vocabulary, and no hash beside it": (
        _another_vocabulary,
        "was trained with another vocabulary than this run;",
    ),
    "a checkpoint of another corpus": (
        _another_corpus,
        "was trained with another corpus than this run;",
    ),
    "a flipped bit of the vocabulary": (
        lambda _, workdir: _flip(workdir / "vocabulary.model"),
        r"vocabulary\.model is",
    ),
    "no vocabulary": (
        lambda _, workdir: (workdir / "vocabulary.model").unlink(),
        r"vocabulary\.model cannot be read: No such file",
    ),
    "a config nested 100,000 deep": (
        lambda _, workdir: (workdir / "config.json").write_text("[" * 100_000),
        r"config\.json: config is damaged: it is nested too deeply",
    ),
}


@pytest.mark.parametrize(("damage", "told"), FOREIGN.values(), ids=FOREIGN.keys())
def test_a_part_of_another_run_is_not_taken_for_its_own(run, damage, told):
    config, workdir = run
    damage(config, workdir)
    with refused(match=told):
        load(workdir)


@pytest.mark.thorough
def test_a_run_on_a_mixture_goes_on_with_the_same_weights_alone(trained, tmp_path):
    config, _ = trained
    one = config.data.corpus
    mixture = config.replace({"data.corpus": f"{one}*2+{one}"})
    assert train(mixture, tmp_path / "run").exit_code == 0
    longer = mixture.replace({"training.num_train_steps": 3})
    assert train(longer, tmp_path / "run").exit_code == 0
    for other in (one, f"{one}*3", f"{one}+{one}*2"):
        with pytest.raises(UserError, match="or the order and weights of a mixture"):
            train(longer.replace({"data.corpus": other}), tmp_path / "run")


def test_a_run_that_lacks_the_hash_of_its_text_says_what_belongs_there(run):
    config, workdir = run
    stored = (workdir / "corpus.sha256").read_text()
    (workdir / "corpus.sha256").unlink()
    with pytest.raises(UserError, match=r"corpus\.sha256 is missing.*write the line") as refusal:
        train(config, workdir)
    line = str(refusal.value).split("write the line ")[1].split()[0]
    assert line == stored.strip()
    (workdir / "corpus.sha256").write_text(line)
    assert train(config, workdir).exit_code == 0


def test_a_damaged_record_of_the_log_stops_neither_the_run_nor_its_report(run, capsys):
    config, workdir = run
    line = '{"of": "train", "step": 1, "loss": "low"}'
    log = workdir / "log.jsonl"
    lines = log.read_text().splitlines()
    log.write_text("\n".join([lines[0], line, *lines[1:]]) + "\n")
    assert train(config, workdir).exit_code == 0
    assert f"{log} line 2 is left out: " in capsys.readouterr().err
    assert log.read_text().splitlines() == lines
    scores = workdir / "scores.jsonl"
    scores.write_text('{"decoding": 4}\n{"checkpoints": "all", "split": "dev"}\n{"split": "dev"')
    build_report(workdir)
    assert capsys.readouterr().err.count(f"{scores} line") == 2


_WRONG = """
import sys
import numpy as np
import t2t_jax

run, refused = sys.argv[1], []
for number in (2, np.int64(2)):
    assert t2t_jax.load(run, step=number).steps == (2,)
for name, values in {
    "step": ["2", "newest", 2.0, [2], True, ("best",), b"best", "BEST"],
    "average": ["1", 1.0, 2.5, True, "all"],
    "workdir": [5, None, b"run", 2.0, [5], {}],
}.items():
    for value in values:
        arguments = {"workdir": run, name: value}
        try:
            t2t_jax.load(**arguments)
        except t2t_jax.UserError as error:
            assert str(error).startswith(f"{name}="), error
            refused.append(value)
        else:
            raise AssertionError(f"{name}={value!r} was taken")
print(len(refused))
"""


def test_arguments_of_load_that_are_of_the_wrong_kind_are_refused_by_name(trained):
    """In a program of its own, where array annotations are not checked, as for users."""
    done = run_python("-c", _WRONG, str(trained[1]))
    assert done.stdout == "19\n", done.stderr


def test_events_of_a_run_whose_clock_was_set_back_are_kept(run, monkeypatch):
    config, workdir = run
    events = {path: path.read_bytes() for path in Path(workdir).glob("events.*")}
    (path,) = events
    then = float(path.name.split(".")[3])
    monkeypatch.setattr("tensorboardX.event_file_writer.time.time", lambda: then)
    assert train(config, workdir).exit_code == 0
    assert len([*workdir.glob("events.*")]) == 2
    assert path.read_bytes() == events[path]


@pytest.mark.thorough
def test_a_run_that_memory_did_not_suffice_for_gives_way_to_a_smaller_one(
    run, tmp_path, monkeypatch
):
    """Also to one with another vocabulary: nothing was learned yet."""
    config, _ = run

    def exhausted(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory: 9 bytes")

    with monkeypatch.context() as patch:
        patch.setattr("t2t_jax.run.trainer.compile_train_step", exhausted)
        with pytest.raises(UserError, match=r"out of memory.*tokens_per_device.*remat.*fsdp"):
            train(config, tmp_path / "new")
    smaller = {"data.target_tokens_per_step": 256, "data.vocab_size": 280}
    assert train(config.replace(smaller), tmp_path / "new").exit_code == 0
    assert len(load(tmp_path / "new").vocabulary) == 280
    with pytest.raises(UserError, match="holds a run with another config"):
        train(config, tmp_path / "new")


def test_a_run_that_no_memory_holds_is_refused_before_anything_is_written(run, tmp_path):
    config, _ = run
    huge = config.replace({"model.d_model": 2_000_000, "model.num_heads": 4})
    with pytest.raises(UserError, match=r"training needs at least .* GiB"):
        train(huge, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_filesystem_without_locks_is_told_and_used(run, monkeypatch, capsys):
    config, workdir = run

    def refuse(*_):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr("t2t_jax.system.lock.fcntl.flock", refuse)
    assert train(config, workdir).exit_code == 0
    assert "cannot be locked" in capsys.readouterr().err


def test_every_field_that_may_change_takes_effect_when_a_run_goes_on(run, tmp_path):
    config, workdir = run
    corpus = tmp_path / "corpus"
    shutil.copytree(config.data.corpus.removeprefix("text:"), corpus)
    # A copy of the corpus, and what one device can do; more devices are refused below.
    places = {"data.corpus": f"text:{corpus}", "data.cache_dir": str(tmp_path / "cache")}
    devices = {"parallel.data": 1, "parallel.fsdp": 1, "parallel.tensor": 1}
    changes = MAY_CHANGE | places | devices | {"parallel.backend": "pmap"}
    plan = make_plan(config.replace(changes), workdir)
    assert {path: plan.config.value(path) for path in changes} == changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training.num_train_steps": 1}, r"steps=1, but .*trained for 2 steps; give 2 to keep"),
        ({"checkpoint.every_steps": None, "checkpoint.average": 2}, "steps apart, which is None"),
        ({"parallel.fsdp": 99}, "parallel.fsdp=99"),
        ({"model.d_ff": 8, "training.seed": 1}, "another config .*d_ff .*, training.seed 0 -> 1"),
        ({"training.init_seed": 1}, "another config .*training.init_seed None -> 1"),
    ],
)
@pytest.mark.parametrize("start", [make_plan, dry_run])
def test_a_field_that_cannot_take_effect_is_refused_and_nothing_changes(
    run, start, changes, message
):
    config, workdir = run
    before = read_config(workdir)
    with refused(match=message):
        start(config.replace(changes), workdir)
    assert read_config(workdir) == before


def test_one_pass_becomes_the_automatic_choice_and_a_number_stays(run):
    config, workdir = run
    automatic = config.replace({"parallel.tokens_per_device": "auto"})
    for own, chosen in ((None, 4096), (512, 512)):
        stored = config.replace({"parallel.tokens_per_device": own})
        (workdir / "config.json").write_text(stored.to_json())
        assert make_plan(automatic, workdir).config.parallel.tokens_per_device == chosen


def test_sources_of_another_size_are_refused_when_a_run_goes_on(trained, tmp_path):
    config, _ = trained
    plan = make_plan(config.replace({"model.share_embeddings": False}), tmp_path / "run")
    plan.workdir.mkdir()
    claim(plan.workdir, plan.config, plan.corpus, plan.vocabulary)
    with pytest.raises(UserError, match=r"source_vocab_size=123, but the vocabulary has 300"):
        make_plan(plan.config.replace({"model.source_vocab_size": 123}), plan.workdir)
