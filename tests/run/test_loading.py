"""Run directories in, a translator or an ensemble out."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from t2t_jax import TrainedRun, UserError, load
from t2t_jax.config import Config, MeshConfig, ParallelConfig
from t2t_jax.data.vocabularies.learning import train_vocabulary
from t2t_jax.modules.models import make_model
from t2t_jax.run.history import History
from t2t_jax.training.checkpoint import Checkpoints
from t2t_jax.training.origin import Identity
from t2t_jax.training.state import init_state
from t2t_jax.workdir import read_log
from tests.programs import run_python
from tests.tiny import tiny_sizes

RELEASED = Path(__file__).parents[1] / "goldens" / "runs" / "0.2.0" / "run"
LINES = ["a red house", "the dog", "two dogs see a red house", "ein rotes Haus", "der Hund"]
CONFIG = Config().replace(
    {
        **tiny_sizes(8, (1, 1)),
        "checkpoint.every_steps": 1,
        "checkpoint.average": 2,
        "decoding.max_extra_length": 5,
        "decoding.beam_size": 2,
    }
)


@pytest.fixture(scope="module")
def vocabulary():
    return train_vocabulary([(LINES, LINES)], 50)


def initial_state(config, vocabulary):
    return jax.jit(partial(init_state, config, make_model(config, len(vocabulary), None)))()


def make_run(workdir, vocabulary, steps, changes):
    """A run directory: at step n the parameters are n times the initial ones; the first is best."""
    config = CONFIG.replace(changes)
    workdir.mkdir()
    (workdir / "config.json").write_text(config.to_json())
    vocabulary.save(workdir / "vocabulary.model")
    start = initial_state(config, vocabulary)
    identity = Identity(config, {"vocabulary": vocabulary.fingerprint})
    with Checkpoints(workdir, identity) as checkpoints:
        for step in steps:
            params = jax.tree.map(lambda x, step=step: x * step, start.params)
            state = start._replace(step=jnp.int32(step), params=params)
            checkpoints.save(state)
            checkpoints.save_if_best(state, -step, {})
    return workdir


@pytest.fixture(scope="module")
def runs(tmp_path_factory, vocabulary):
    """A run, and one of another seed and a larger model with fewer positions."""
    folder = tmp_path_factory.mktemp("runs")
    larger = {
        "model.d_model": 12,
        "model.num_decoder_layers": 2,
        "model.position": "learned",
        "model.max_positions": 300,
        "training.seed": 1,
        "decoding.max_extra_length": 7,
    }
    return (
        make_run(folder / "one", vocabulary, (1, 2, 6), {}),
        make_run(folder / "two", vocabulary, (8,), larger),
    )


def embedding(translator):
    return np.asarray(translator.params["embedding"]["embedding"])


@pytest.mark.thorough
def test_a_run_is_averaged_as_its_config_says_unless_it_is_told_otherwise(runs, vocabulary):
    start = initial_state(CONFIG, vocabulary).params["embedding"]["embedding"]
    for choice, steps, factor in (
        ({}, (2, 6), 4),
        ({"average": 1}, (6,), 6),
        ({"average": 3}, (1, 2, 6), 3),
        ({"step": 2}, (1, 2), 1.5),
        ({"step": 1}, (1,), 1),
        ({"step": "best"}, (1,), 1),
    ):
        translator = load(runs[0], **choice)
        assert translator.steps == steps
        np.testing.assert_allclose(embedding(translator), start * factor, rtol=1e-5)
    with pytest.raises(UserError, match="fewer than average=4"):
        load(runs[0], average=4)


@pytest.mark.thorough
def test_a_moving_average_is_loaded_and_told_of_unless_checkpoints_are_asked_for(
    runs, tmp_path, vocabulary
):
    """Here the moving average is that of the initial parameters."""
    kept = make_run(tmp_path / "run", vocabulary, (1, 2), {"training.ema_decay": 0.75})
    start = initial_state(CONFIG, vocabulary).params["embedding"]["embedding"]
    for choice, steps, decays, factor in (
        ({}, (2,), (0.75,), 1),
        ({"step": 1}, (1,), (0.75,), 1),
        ({"step": "best"}, (1,), (0.75,), 1),
        ({"average": 1}, (2,), (), 2),
        ({"average": 1, "step": "best"}, (1,), (), 1),
        ({"average": 2}, (1, 2), (), 1.5),
    ):
        translator = load(kept, **choice)
        assert (translator.steps, translator.ema_decays) == (steps, decays)
        np.testing.assert_allclose(embedding(translator), start * factor, rtol=1e-5)
    together = load([runs[0], kept])
    assert (together.steps, together.ema_decays) == ((2, 6, 2), (0.75,))


def test_a_run_alone_is_an_ensemble_of_one(runs):
    alone, one = load(str(runs[0])), load([runs[0]])
    assert alone.model == one.model
    assert alone.steps == one.steps
    np.testing.assert_array_equal(embedding(alone), embedding(one))
    assert alone.translate(["the dog"]) == one.translate(["the dog"])


@pytest.mark.thorough
def test_runs_of_different_sizes_decode_together_under_the_config_of_the_first(runs):
    together = load(list(map(str, runs)))
    assert together.config == CONFIG
    assert together.steps == (2, 6, 8)
    assert together.longest_sentence == 300
    members = [load(run).params for run in runs]
    for own, expected in zip(together.params.values(), members, strict=True):
        jax.tree.map(np.testing.assert_array_equal, own, expected)
    [[hypothesis]] = together.nbest(["the dog"], 1)
    assert np.isfinite(hypothesis.log_prob)
    assert load(runs[::-1]).config.model.d_model == 12


def test_runs_with_different_vocabularies_are_refused_by_name(runs, tmp_path):
    other = make_run(tmp_path / "other", train_vocabulary([(LINES, LINES)], 51), (1,), {})
    message = rf"{runs[0]} and {other} have different vocabularies; .*the same vocabulary\.model$"
    with pytest.raises(UserError, match=message):
        load([runs[0], runs[1], other])


def test_runs_of_different_languages_are_refused_by_name(runs, tmp_path, vocabulary):
    other = make_run(tmp_path / "fr", vocabulary, (1,), {"data.target_language": "fr"})
    message = rf"{runs[0]} and {other} translate different languages \(en-de and en-fr\)"
    with pytest.raises(UserError, match=message):
        load([runs[0], other])


def test_no_directory_is_refused():
    with pytest.raises(UserError, match="no run directory is given"):
        load([])


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        (MeshConfig(fsdp=99), r"parallel\.fsdp=99 times parallel\.tensor=1 is 99, which does not"),
        (MeshConfig(data=99), r"parallel\.data=99 .* asks for 99 devices, but there"),
    ],
)
def test_devices_that_there_are_not_are_refused_by_the_names_of_the_flags(runs, parallel, message):
    with pytest.raises(UserError, match=message):
        load(runs[0], parallel=parallel)


def test_a_mesh_of_another_type_is_refused(runs, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for users
    with pytest.raises(UserError, match=r"parallel={'fsdp': 2} is a dict; give a t2t_jax\.Mesh"):
        load(runs[0], parallel={"fsdp": 2})


def test_of_the_parallel_section_of_a_config_loading_takes_the_mesh(runs):
    section = ParallelConfig(data=1, backend="pmap", tokens_per_device=8)
    assert load(runs[0], parallel=section).mesh == load(runs[0], parallel=MeshConfig(data=1)).mesh


def test_a_directory_that_is_no_run_is_refused(runs, tmp_path):
    with pytest.raises(UserError, match=rf"{tmp_path} is not a run directory"):
        load([runs[0], tmp_path])


@pytest.mark.parametrize(
    ("name", "hint"), [("bse", "did you mean base?"), ("other", "check the path")]
)
def test_a_path_that_does_not_exist_is_said_to_be_missing(tmp_path, name, hint):
    (tmp_path / "base").mkdir()
    with pytest.raises(UserError) as refused:
        load(tmp_path / name)
    assert str(refused.value) == f"{tmp_path / name} does not exist; {hint}"
    with pytest.raises(UserError, match=r"nowhere/base does not exist; check the path"):
        load(tmp_path / "nowhere" / "base")


def test_a_translator_and_a_run_say_their_size_step_and_score():
    translator = load(RELEASED)
    size = sum(x.size for x in jax.tree.leaves(translator.params))
    score = "step 800, BLEU 0.00 on dev at step 800"
    assert repr(translator) == f"<Translator: {size:,} parameters, 300 subwords, {score}>"
    other = translator.with_params(translator.params)
    assert repr(other) == f"<Translator: {size:,} parameters, 300 subwords>"
    run = TrainedRun(RELEASED, 0, History.of(read_log(RELEASED)))
    assert repr(run) == f"<TrainedRun: {RELEASED}, {size:,} parameters, {score}>"
    lost = TrainedRun(Path("gone"), 0, History())
    assert repr(lost) == "<TrainedRun: gone, unknown parameters, step 0>"


@pytest.mark.thorough
def test_a_library_for_tpus_that_finds_none_is_quiet_in_python():
    pytest.importorskip("libtpu")
    code = "import sys, t2t_jax; t2t_jax.load(sys.argv[1]); print('loaded')"
    env = {name: value for name, value in os.environ.items() if not name.startswith("TPU_")}
    env |= {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}  # beside another process that has it loaded
    env.pop("JAX_PLATFORMS", None)
    command = [sys.executable, "-W", "ignore", "-c", code, str(RELEASED)]
    program = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert (program.stdout, program.stderr) == ("loaded\n", "")


def test_an_exported_run_needs_neither_orbax_nor_optax():
    """They import slowly, which a user would wait for before each first translation."""
    program = "import sys, t2t_jax\nt2t_jax.load('demo')\n"
    program += "sys.exit(bool({'orbax.checkpoint', 'optax'} & {*sys.modules}))"
    run_python("-c", program, code=0)
