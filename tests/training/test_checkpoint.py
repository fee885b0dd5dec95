"""Checkpoints: exact, kept as asked, and refused in one line when damaged."""

import asyncio
import gc
import json
import re
import shutil
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2t_jax.config import CheckpointConfig, Config
from t2t_jax.system import retries
from t2t_jax.system.exit_codes import IO_ERROR, exit_code_of
from t2t_jax.training.averaging import check_average
from t2t_jax.training.checkpoint import Checkpoints, _NewestAndDue
from t2t_jax.training.checkpoint_files import steps_in
from t2t_jax.training.origin import Identity, checksum
from t2t_jax.training.parameters import load_parameters
from t2t_jax.training.state import TrainState
from t2t_jax.training.storage import reason_of
from tests.refusals import refused
from tests.selection import thorough_after
from tests.training.conftest import like, stored_run

MEASURE = {"beam_size": 4}


def _state(step, value):
    """Values that do not compress, in arrays of their own (a state is donated)."""
    rng = np.random.default_rng(int(value))
    params = {"a": {"kernel": jnp.asarray(rng.normal(size=(64, 64)), jnp.float32)}}
    moments = {"mu": jax.tree.map(lambda x: x * 2, params), "count": jnp.int32(step)}
    return TrainState(jnp.int32(step), params, moments, jnp.int32(1), jnp.int32(2))


def _checkpoints(workdir, num_train_steps=100_000, **settings):
    """The checkpoints of a run with these settings: all are due, and none averaged, by default."""
    defaults = {"average": 1, "keep": 5, "every_steps": 1}
    config = Config(checkpoint=CheckpointConfig(**defaults | settings))
    config = config.replace({"training.num_train_steps": num_train_steps})
    (workdir / "config.json").write_text(config.to_json())
    return Checkpoints(workdir, Identity(config, {}))


def _save(workdir, steps, **config):
    with _checkpoints(workdir, **config) as checkpoints:
        for step in steps:
            checkpoints.save(_state(step, step))


def _load(workdir, **asked):
    """The parameters that a run of `_state` gives, and the steps that they are of."""
    return load_parameters(stored_run(workdir), like(_state(0, 0).params), **asked)


def _save_if_best(workdir, step, score, value=None, measure=MEASURE, **config):
    """Whether the state of a step, saved by a process of its own, counts as the best."""
    state = _state(step, step if value is None else value)
    with _checkpoints(workdir, **config) as checkpoints:
        return checkpoints.save_if_best(state, score, measure)


def _resume(workdir):
    with _checkpoints(workdir) as checkpoints:
        return checkpoints.restore(like(_state(0, 0)))


def _kept(workdir):
    return sorted(int(path.name) for path in (workdir / "checkpoints").iterdir())


def _assert_equal(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.fixture
def collected():
    """Collect garbage while the filter of the test holds."""
    yield
    gc.collect()


def orbax_gives_up(test):
    """Ignore the complaints of coroutines that a failed restore of Orbax leaves unfinished."""
    ignoring = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    return ignoring(pytest.mark.usefixtures("collected")(test))


def test_a_state_comes_back_bit_for_bit_and_of_the_same_types(tmp_path):
    _save(tmp_path, [3])
    state, restored = _state(3, 3), _resume(tmp_path)
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    _assert_equal(restored, state)


def test_what_is_saved_is_the_state_before_later_steps_that_reuse_its_memory(tmp_path):
    step = jax.jit(lambda s: jax.tree.map(lambda x: x + 1, s), donate_argnums=0)
    state = _state(0, 0)
    with _checkpoints(tmp_path, keep=4) as checkpoints:
        for _ in range(4):
            checkpoints.save(state)
            state = step(step(step(state)))
    for number in (0, 3, 6, 9):
        params, _ = _load(tmp_path, step=number)
        expected = jax.tree.map(lambda x, n=number: x + n, _state(0, 0).params)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), params, expected)


def test_nothing_saved_restores_nothing(tmp_path):
    assert _resume(tmp_path) is None


def test_every_so_many_steps_a_checkpoint_is_kept_for_good(tmp_path):
    _save(tmp_path, [*range(2, 15, 2), 15], keep=2, every_steps=2, keep_every=6)
    assert _kept(tmp_path) == [6, 12, 14, 15]  # 15 is for safety
    _save(tmp_path, [18, 19], keep=1, every_steps=2, keep_every=6)
    _save(tmp_path, [24], keep=1, every_steps=2, keep_every=6)
    assert _kept(tmp_path) == [6, 12, 18, 24]
    with refused("keep_every=5 is not a multiple of"):
        CheckpointConfig(every_steps=2, keep_every=5)


def _whole(workdir):
    """The steps of the checkpoints that have the state of the optimizer."""
    return [s for s in _kept(workdir) if (workdir / "checkpoints" / str(s) / "progress").exists()]


@pytest.mark.parametrize(
    ("settings", "whole"),
    [({"average": 4, "keep": 4}, [6, 7]), ({"average": 4, "keep": 4, "keep_every": 5}, [5, 6, 7])],
)
def test_checkpoints_that_only_averages_read_have_no_optimizer_state(tmp_path, settings, whole):
    _save(tmp_path, range(1, 8), **settings)
    assert _kept(tmp_path) == [4, 5, 6, 7]
    assert _whole(tmp_path) == whole
    averaged, steps = _load(tmp_path, average=4)
    assert steps == [4, 5, 6, 7]
    expected = np.mean([_state(n, n).params["a"]["kernel"] for n in steps], axis=0)
    np.testing.assert_allclose(averaged["a"]["kernel"], expected, rtol=1e-5, atol=1e-6)
    _assert_equal(_resume(tmp_path), _state(7, 7))


def test_training_resumes_from_no_checkpoint_without_optimizer_state(tmp_path, capfd):
    _save(tmp_path, [1, 2, 3, 4], average=4)
    _damage(tmp_path / "checkpoints" / "4")
    assert _resume(tmp_path).step == 3
    shutil.rmtree(tmp_path / "checkpoints" / "3")
    capfd.readouterr()
    assert "hold parameters for averages only" in _refusal(lambda: _resume(tmp_path))
    assert _kept(tmp_path) == [1, 2]


def test_a_kill_while_optimizer_state_is_removed_leaves_no_damage(tmp_path, monkeypatch):
    def kill(path):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("t2t_jax.training.checkpoint_files.remove_tree", kill)
        with pytest.raises(KeyboardInterrupt):
            _save(tmp_path, [1, 2, 3, 4], average=4)
    shutil.rmtree(tmp_path / "checkpoints" / "3")
    assert _resume(tmp_path).step == 2
    shutil.rmtree(tmp_path / "checkpoints" / "2")
    assert "hold parameters for averages only" in _refusal(lambda: _resume(tmp_path))
    _save(tmp_path, [2, 3], average=4)
    assert _whole(tmp_path) == [2, 3]


EVERY_4 = {"every_steps": 4, "every_minutes": None}


@pytest.mark.thorough
@pytest.mark.parametrize("stops", [[], [3, 5, 6, 7], [4, 8], [11, 13, 14, 15, 16, 17, 18]])
@pytest.mark.parametrize(("keep", "left"), [(1, [20]), (2, [16, 20]), (3, [12, 16, 20])])
def test_stops_between_checkpoints_leave_the_same_list_in_the_end(tmp_path, stops, keep, left):
    start = 0
    for stop in [*stops, 20]:
        due = range(start + 4 - start % 4, stop + 1, 4)
        _save(tmp_path, sorted({*due, stop}), keep=keep, **EVERY_4)
        assert stop in _kept(tmp_path)
        start = stop
    assert _kept(tmp_path) == left


def test_a_stop_is_not_averaged_once_the_run_has_gone_on(tmp_path):
    for steps in ([4, 8, 9], [10], [12]):
        _save(tmp_path, steps, keep=2, average=2, **EVERY_4)
    params, averaged = _load(tmp_path)
    assert averaged == [8, 12]
    mean = sum(np.float64(_state(n, n).params["a"]["kernel"]) for n in averaged) / 2
    np.testing.assert_allclose(params["a"]["kernel"], mean, atol=1e-6)


def test_the_end_of_a_run_that_goes_on_later_counts_as_a_stop(tmp_path):
    _save(tmp_path, [4, 8, 10], keep=3, num_train_steps=10, **EVERY_4)
    assert _kept(tmp_path) == [4, 8, 10]
    _save(tmp_path, [12, 14], keep=3, num_train_steps=14, **EVERY_4)
    assert _kept(tmp_path) == [8, 12, 14]


def test_a_run_ends_where_it_was_stopped_if_that_becomes_its_last_step(tmp_path):
    _save(tmp_path, [4, 8, 10], average=3, **EVERY_4)
    _checkpoints(tmp_path, num_train_steps=10, average=3, **EVERY_4).close()
    assert _load(tmp_path)[1] == [4, 8, 10]


def test_a_new_run_that_averages_by_no_steps_is_refused():
    config = Config().replace({"checkpoint.every_steps": None})
    with refused(match=r"average=5 averages .*every_steps apart, which is None"):
        check_average(config)
    check_average(config.replace({"checkpoint.average": 1}))
    check_average(config.replace({"training.ema_decay": 0.999}))


def test_a_stop_is_kept_until_the_next_checkpoint_is_whole(tmp_path, monkeypatch):
    _save(tmp_path, [5], keep=1, **EVERY_4)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    checkpoints = _checkpoints(tmp_path, keep=1, **EVERY_4)
    monkeypatch.setattr(ocp.CheckpointManager, "save", full)
    monkeypatch.setattr(retries, "PAUSES", ())
    with refused(match=r"No space left.*make room"):
        checkpoints.save(_state(8, 8))
    monkeypatch.undo()
    checkpoints.close()
    assert _load(tmp_path)[1] == [5]
    assert _kept(tmp_path) == [5]


# The steps that are saved, what is asked for, and the steps that are averaged: due every 4 steps
# of 20, two are kept besides one for safety.
AVERAGED = {
    "one by the clock before the first that is due": ([3], [({}, [3])]),
    "one by the clock after a single one": ([4, 6], [({}, [6])]),
    "one by the clock, or asked for by its step, or as the newest": (
        [4, 8, 9],
        [({}, [4, 8]), ({"step": 9}, [8, 9]), ({"average": 1}, [9])],
    ),
    "the last step": ([4, 8, 12, 16, 17, 20], [({}, [16, 20])]),
}


@pytest.mark.parametrize(("steps", "found"), AVERAGED.values(), ids=AVERAGED.keys())
def test_no_average_has_a_checkpoint_of_the_clock(tmp_path, steps, found):
    _save(tmp_path, steps, keep=2, average=2, every_steps=4, num_train_steps=20)
    for asked, averaged in found:
        assert _load(tmp_path, **asked)[1] == averaged


def test_an_average_of_more_than_there_are_by_steps_is_refused(tmp_path):
    _save(tmp_path, [4, 8, 9], keep=3, average=3, every_steps=4)
    with refused("2 checkpoints to average, [4, 8], fewer than average"):
        _load(tmp_path, average=3)


def test_a_kill_before_one_for_safety_is_removed_does_not_change_the_average(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(_NewestAndDue, "should_preserve", lambda _, steps, **__: [True] * len(steps))
        _save(tmp_path, [4, 8, 10, 12], keep=3, average=3, every_steps=4, num_train_steps=12)
    assert _kept(tmp_path) == [4, 8, 10, 12]
    assert _load(tmp_path)[1] == [4, 8, 12]


@orbax_gives_up
def test_a_rest_of_one_for_safety_that_cannot_be_read_is_left_out(tmp_path, monkeypatch):
    test_a_kill_before_one_for_safety_is_removed_does_not_change_the_average(tmp_path, monkeypatch)
    shutil.rmtree(tmp_path / "checkpoints" / "10" / "origin")
    assert _load(tmp_path)[1] == [4, 8, 12]


@pytest.mark.parametrize("directory", ["checkpoints", "best"])
@pytest.mark.parametrize("keep_best", [True, False])
def test_what_a_kill_left_half_written_is_removed_at_the_start(tmp_path, directory, keep_best):
    """Also where nothing is saved any more, as by a run that is at its end."""
    _save(tmp_path, [12])
    rest = tmp_path / directory / "12.orbax-checkpoint-tmp"
    shutil.copytree(tmp_path / "checkpoints" / "12", rest)
    with _checkpoints(tmp_path, keep_best=keep_best):
        assert not rest.exists()
    assert _kept(tmp_path) == [12]


def test_the_best_is_kept_apart_and_survives_a_restart(tmp_path):
    scores = {1: 10.0, 2: 30.0, 3: 20.0, 4: 30.0}
    for step, score in scores.items():  # each in a process of its own, as it were
        with _checkpoints(tmp_path, keep=1) as checkpoints:
            checkpoints.restore(like(_state(0, 0)))
            checkpoints.save(_state(step, step))
            assert checkpoints.save_if_best(_state(step, step), score, MEASURE) == (step in (1, 2))
    params, steps = _load(tmp_path, step="best")
    assert steps == [2]
    _assert_equal(params, _state(2, 2).params)


def test_a_worse_model_does_not_replace_a_best_that_is_still_being_written(tmp_path, monkeypatch):
    write = ocp.JsonCheckpointHandler._save_fn  # in the background

    async def slowly(*arguments):
        await asyncio.sleep(0.3)
        await write(*arguments)

    monkeypatch.setattr(ocp.JsonCheckpointHandler, "_save_fn", slowly)
    with _checkpoints(tmp_path) as checkpoints:
        assert checkpoints.save_if_best(_state(1, 1), 30.0, MEASURE)
        assert not checkpoints.save_if_best(_state(2, 2), 20.0, MEASURE)
    assert _load(tmp_path, step="best")[1] == [1]


@pytest.fixture
def full_disk(monkeypatch):
    """Let a number of saves meet a full disk, in the background."""
    save = ocp.JsonCheckpointHandler._save_fn
    failures = []

    async def full(*arguments):
        if failures:
            failures.pop()
            raise OSError(28, "No space left on device")
        return await save(*arguments)

    monkeypatch.setattr(ocp.JsonCheckpointHandler, "_save_fn", full)
    monkeypatch.setattr(retries, "PAUSES", (0.3, 0.3))
    return failures


def test_a_best_that_meets_a_full_disk_is_a_warning_and_the_next_one_is_saved(
    tmp_path, full_disk, capfd
):
    checkpoints = _checkpoints(tmp_path)
    assert checkpoints.save_if_best(_state(1, 1), 30.0, MEASURE)
    full_disk.append("best")
    assert not checkpoints.save_if_best(_state(2, 2), 40.0, MEASURE)
    assert re.search(r"best cannot be written \(.*No space left", capfd.readouterr().err)
    assert not checkpoints.save_if_best(_state(3, 3), 20.0, MEASURE)
    assert _load(tmp_path, step="best")[1] == [1]
    assert checkpoints.save_if_best(_state(4, 4), 35.0, MEASURE)
    checkpoints.close()
    assert _load(tmp_path, step="best")[1] == [4]


@pytest.mark.parametrize(("failures", "kept"), [(1, [1, 3]), (2, [1, 3])])
def test_a_state_that_met_a_full_disk_is_followed_by_one_that_is_written_at_once(
    tmp_path, full_disk, capfd, failures, kept
):
    """The state itself is gone by then: later steps have overwritten its memory."""
    checkpoints = _checkpoints(tmp_path)
    checkpoints.save(_state(1, 1))
    checkpoints.wait()
    full_disk.extend(range(failures))
    checkpoints.save(_state(2, 2))
    assert checkpoints.save(_state(3, 3)) == 3
    assert capfd.readouterr().err.count("tries again in 0.3 s") == failures
    checkpoints.close()
    assert steps_in(tmp_path / "checkpoints") == kept


def test_a_disk_that_stays_full_ends_the_run(tmp_path, full_disk):
    checkpoints = _checkpoints(tmp_path)
    full_disk.extend(range(9))
    checkpoints.save(_state(1, 1))
    with refused(match=r"No space left.*make room") as refusal:
        checkpoints.save(_state(2, 2))
    assert exit_code_of(refusal.value) == IO_ERROR


def test_a_best_of_the_same_step_is_replaced(tmp_path):
    for score, measure in ((30.0, MEASURE), (20.0, {"beam_size": 1})):
        assert _save_if_best(tmp_path, 1, score, score, measure)
    params, steps = _load(tmp_path, step="best")
    assert steps == [1]
    _assert_equal(params, _state(1, 20).params)


def test_a_best_whose_score_is_damaged_is_replaced(tmp_path):
    assert _save_if_best(tmp_path, 1, 30.0)
    (tmp_path / "best" / "1" / "score" / "metadata").write_text("")
    assert _save_if_best(tmp_path, 2, 20.0)
    assert _load(tmp_path, step="best")[1] == [2]


def test_a_best_that_a_resumed_run_comes_past_again_is_forgotten(tmp_path):
    _save(tmp_path, [3])
    assert _save_if_best(tmp_path, 5, 30.0)
    with _checkpoints(tmp_path) as checkpoints:
        checkpoints.restore(like(_state(0, 0)))
        assert checkpoints.save_if_best(_state(4, 4), 20.0, MEASURE)
    assert _load(tmp_path, step="best")[1] == [4]


def test_reading_says_nothing(tmp_path, capfd):
    _save(tmp_path, [1])
    capfd.readouterr()
    _load(tmp_path)
    assert capfd.readouterr() == ("", "")


def test_keep_best_can_be_turned_off(tmp_path):
    assert not _save_if_best(tmp_path, 1, 99.0, keep_best=False)
    assert not (tmp_path / "best").exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [({"average": 0}, "average=0"), ({"step": 9}, "no step 9"), ({"step": "best"}, "best")],
)
def test_what_is_not_there_is_refused_by_name(tmp_path, options, named):
    _save(tmp_path, [1, 2], keep_best=False)
    with refused(match=named):
        _load(tmp_path, **options)


def _largest_file(checkpoint):
    return max(checkpoint.rglob("*"), key=lambda p: p.stat().st_size if p.is_file() else 0)


def _damage(checkpoint: Path) -> None:
    with _largest_file(checkpoint).open("r+b") as file:
        file.truncate(100)


def _refusal(work):
    """The line of the error, and none of the frames that it holds: see `orbax_gives_up`."""
    with refused() as refusal:
        work()
    return str(refusal.value)


def test_without_a_number_the_run_says_how_many_are_averaged(tmp_path):
    _save(tmp_path, [1, 2, 3, 4], keep=4, average=3)
    assert _load(tmp_path)[1] == [2, 3, 4]
    assert _load(tmp_path, step=2)[1] == [1, 2]
    assert _load(tmp_path, average=1)[1] == [4]
    with refused("fewer than average=3"):
        _load(tmp_path, average=3, step=2)


def test_of_the_best_there_is_one_however_many_are_averaged(tmp_path):
    assert _save_if_best(tmp_path, 1, 30.0, average=3)
    assert _load(tmp_path, step="best")[1] == [1]
    with refused(match=r"average=3; there is only one best .*average out$"):
        _load(tmp_path, average=3, step="best")


def test_a_copied_checkpoint_is_refused_by_both_names(tmp_path):
    _save(tmp_path, [200, 300])
    shutil.copytree(tmp_path / "checkpoints" / "300", tmp_path / "checkpoints" / "350")
    averages = [partial(_load, tmp_path, average=average) for average in (1, 3)]
    for read in (*averages, lambda: _resume(tmp_path)):
        with refused(match=r"/350 is of step 300.*copy of .*/300,"):
            read()
    assert _load(tmp_path, average=2, step=300)[1] == [200, 300]
    shutil.rmtree(tmp_path / "checkpoints" / "350")
    assert _resume(tmp_path).step == 300


def test_a_run_does_not_go_on_from_a_checkpoint_of_another_run(tmp_path):
    (tmp_path / "other").mkdir()
    _save(tmp_path, [1])
    seven = Config().replace({"training.seed": 7})
    with Checkpoints(tmp_path / "other", Identity(seven, {})) as checkpoints:
        checkpoints.save(_state(2, 2))
    shutil.copytree(tmp_path / "other" / "checkpoints" / "2", tmp_path / "checkpoints" / "2")
    with refused(match=r"checkpoints/2 is of a run .*training\.seed 0 -> 7"):
        _resume(tmp_path)
    assert _kept(tmp_path) == [1, 2]


def test_a_checkpoint_of_another_recipe_is_refused_by_its_fields(tmp_path):
    _save(tmp_path, [1])
    by_steps = {"checkpoint.every_steps": 1}
    stranger = Config().replace({"model.dropout_rate": 0.3, "training.seed": 7, **by_steps})
    with Checkpoints(tmp_path, Identity(stranger, {})) as checkpoints:
        checkpoints.save(_state(2, 2))
        checkpoints.save_if_best(_state(2, 2), 30.0, MEASURE)
    fields = r"model\.dropout_rate 0\.1 -> 0\.3, training\.seed 0 -> 7"
    with refused(match=rf"checkpoints/2 is of a run .*{fields}"):
        _load(tmp_path, average=2)
    with refused(match=rf"checkpoints/2 is of a run .*{fields}"):
        _load(tmp_path)
    with refused(match=rf"best/2 is of a run .*{fields}"):
        _load(tmp_path, step="best")
    assert _load(tmp_path, step=1)[1] == [1]


def test_fields_that_may_change_during_a_run_may_differ(tmp_path):
    _save(tmp_path, [1], keep=2)
    _save(tmp_path, [2], keep=4, every_minutes=1.0)
    assert _load(tmp_path, average=2)[1] == [1, 2]


def _rewrite_origin(workdir, step, change):
    """Change what a checkpoint says of itself, as text."""
    path = workdir / "checkpoints" / str(step) / "origin" / "metadata"
    path.write_bytes(change(path.read_bytes()))


def _without(text, name):
    return json.dumps({n: value for n, value in json.loads(text).items() if n != name}).encode()


ORIGINS = {
    "a misspelt field of the config": lambda text: text.replace(b"warmup_steps", b"warm_steps"),
    "another value of the config": lambda text: text.replace(b'"d_ff": 2048', b'"d_ff": 2049'),
    "another step": lambda text: text.replace(b'"step": 2', b'"step": 3'),
    "another checksum": lambda text: text.replace(
        b'"sums": {"params": [', b'"sums": {"params": [1'
    ),
    "no checksums": lambda text: _without(text, "sums"),
    "no hash": lambda text: _without(text, "sha256"),
    "a list": lambda text: b"[]",
    "no step": lambda text: json.dumps({**json.loads(text), "step": None}).encode(),
    "a config that is a list": lambda text: json.dumps({**json.loads(text), "config": []}).encode(),
    "JSON cut in the middle": lambda text: text[: len(text) // 2],
    "bytes that are not UTF-8": lambda text: b"\xff" + text,
    "JSON of 100,000 levels": lambda text: b"[" * 100_000,
}


@pytest.mark.thorough
@orbax_gives_up
@pytest.mark.parametrize("change", ORIGINS.values(), ids=ORIGINS.keys())
def test_a_checkpoint_that_says_something_else_of_itself_than_was_written_is_damaged(
    tmp_path, capfd, change
):
    _save(tmp_path, [1, 2])
    before = (tmp_path / "checkpoints/2/origin/metadata").read_bytes()
    _rewrite_origin(tmp_path, 2, change)
    assert (tmp_path / "checkpoints/2/origin/metadata").read_bytes() != before
    message = _refusal(lambda: _load(tmp_path))
    assert "checkpoints/2 cannot be read (" in message
    assert message.endswith("the one before it is step=1")
    assert _resume(tmp_path).step == 1
    assert "checkpoints/2 cannot be read (" in capfd.readouterr().err
    assert (tmp_path / "damaged" / "2").is_dir()


@orbax_gives_up
def test_a_checkpoint_that_does_not_say_where_it_comes_from_is_refused(tmp_path):
    _save(tmp_path, [1])
    shutil.rmtree(tmp_path / "checkpoints" / "1" / "origin")
    message = _refusal(lambda: _load(tmp_path))
    assert "checkpoints/1 cannot be read" in message


@orbax_gives_up
@pytest.mark.parametrize(
    ("damaged", "way_out"),
    thorough_after(
        1, [(2, "the one before it is step=1"), (1, "none is before it")], unpacked=True
    ),
)
def test_a_damaged_checkpoint_that_is_asked_for_is_refused_and_left_alone(
    tmp_path, damaged, way_out
):
    _save(tmp_path, [1, 2])
    _damage(tmp_path / "checkpoints" / str(damaged) / "params")
    message = _refusal(lambda: _load(tmp_path, step=damaged))
    assert f"checkpoints/{damaged} cannot be read" in message
    assert message.endswith(way_out)
    assert _kept(tmp_path) == [1, 2]


def _lose_a_file(checkpoint):
    _largest_file(checkpoint).unlink()


def _lose_an_item(checkpoint):
    shutil.rmtree(checkpoint / "progress")


def _turn_a_bit(checkpoint):
    """In the middle of the values, which TensorStore reads without a checksum."""
    file = _largest_file(checkpoint)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    "damage", thorough_after(1, [_turn_a_bit, _damage, _lose_a_file, _lose_an_item])
)
def test_a_run_goes_on_from_the_one_before_a_damaged_one(tmp_path, capfd, damage):
    _save(tmp_path, [1, 2, 3])
    damage(tmp_path / "checkpoints" / "3")
    files = sorted(p.name for p in (tmp_path / "checkpoints" / "3").rglob("*"))
    (tmp_path / "damaged" / "3").mkdir(parents=True)  # of an earlier time
    _assert_equal(_resume(tmp_path), _state(2, 2))
    output, errors = capfd.readouterr()
    assert output == ""
    (line,) = errors.splitlines()
    moved = tmp_path / "damaged" / "3.1"
    assert line.startswith(f"warning: checkpoint {tmp_path / 'checkpoints' / '3'} cannot be read (")
    assert line.endswith(f"); it is now {moved}, and the run resumes from step 2")
    assert sorted(p.name for p in moved.rglob("*")) == files
    assert not list((tmp_path / "damaged" / "3").iterdir())
    _save(tmp_path, [3])  # there is room for that step again
    assert _resume(tmp_path).step == 3
    assert capfd.readouterr().err == ""


def test_all_damaged_checkpoints_before_a_whole_one_are_moved(tmp_path, capfd):
    for older in ("1", "2"):  # the two newest stay
        (tmp_path / "damaged" / older).mkdir(parents=True)
    _save(tmp_path, [1, 2, 3])
    _lose_an_item(tmp_path / "checkpoints" / "2")
    _damage(tmp_path / "checkpoints" / "3")
    assert _resume(tmp_path).step == 1
    assert len(capfd.readouterr().err.splitlines()) == 2
    assert _kept(tmp_path) == [1]
    assert sorted(p.name for p in (tmp_path / "damaged").iterdir()) == ["2.1", "3"]


@orbax_gives_up
def test_where_no_checkpoint_can_be_read_a_run_does_not_start_anew(tmp_path, capfd):
    _save(tmp_path, [1, 2])
    for step in (1, 2):
        _damage(tmp_path / "checkpoints" / str(step))
    message = _refusal(lambda: _resume(tmp_path))
    assert "checkpoints/2 cannot be read (" in message
    assert "has no older readable one" in message
    assert _kept(tmp_path) == [1, 2]
    assert not (tmp_path / "damaged").exists()
    assert capfd.readouterr().err == ""


def test_memory_that_does_not_suffice_is_no_damage(tmp_path, monkeypatch):
    _save(tmp_path, [1, 2])
    restore = ocp.CheckpointManager.restore

    def full(manager, step, args):
        if "params" in args.keys():  # noqa: SIM118
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1024 bytes.")
        return restore(manager, step, args=args)

    monkeypatch.setattr(ocp.CheckpointManager, "restore", full)
    with pytest.raises(RuntimeError, match="Out of memory"):
        _resume(tmp_path)
    assert _kept(tmp_path) == [1, 2]


@given(st.integers(1, 2), st.integers(1, 3), st.integers(0, 2**31 - 1), st.integers(0, 31))
def test_a_turned_bit_and_two_swapped_values_change_thechecksum(rows, columns, seed, bit):
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**32, (rows, columns + 1), np.uint32)
    turned, swapped = bits.copy(), bits.copy()
    turned[-1, rng.integers(columns)] ^= np.uint32(1) << np.uint32(bit)
    swapped[0, :2] = swapped[0, 1::-1]
    place = np.arange(bits.size, dtype=np.uint64)
    expected = int((bits.ravel() * (2 * place + 1)).sum() % 2**32)
    assert int(checksum(jnp.asarray(bits.view(np.float32)))) == expected
    assert int(checksum(jnp.asarray(turned.view(np.float32)))) != expected
    # Of two values that differ, their places differ by 1, hence the sums by twice their distance.
    if (int(bits[0, 0]) - int(bits[0, 1])) * 2 % 2**32:
        assert int(checksum(jnp.asarray(swapped.view(np.float32)))) != expected


@orbax_gives_up
def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    _save(tmp_path, [1])
    other = {"a": {"kernel": jax.ShapeDtypeStruct((3, 3), jnp.float32)}}
    assert "checkpoints/1" in _refusal(lambda: load_parameters(stored_run(tmp_path), other))


FULL = "No space left on device"
LONG_PATH = "/disk/" + "a directory with a long name/" * 20


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, FULL, f"{LONG_PATH}manifest"),
        ValueError(
            f'Error writing "{LONG_PATH}d/1": Failed to write to file 14: {FULL} [os_error_'
        ),
        ValueError(f"Error writing {LONG_PATH}d/1: Failed to write to file 14: {FULL}"),
        ValueError(f"{FULL}: {LONG_PATH.replace(' ', '_')}"),
    ],
)
def test_a_long_reason_is_cut_in_its_middle_and_between_words(error):
    reason = reason_of(error)
    assert FULL in reason
    assert len(reason) <= 310
    assert {*reason.split()} <= {*str(error).split(), "..."}
