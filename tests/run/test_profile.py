"""Profiles of some steps of a training."""

import gzip
import json
import re
import signal
from contextlib import contextmanager
from unittest.mock import Mock

import jax
import pytest

from t2t_jax.commands.train import train_command
from t2t_jax.errors import UserError
from t2t_jax.run import profile
from t2t_jax.run.profile import profiled, read_profiles
from t2t_jax.system.signals import SignalRequest
from tests.selection import thorough_after
from tests.trained import wait_for_step

# Python 3.13 says so of jaxlib's own types; an error there would end the process.
pytestmark = pytest.mark.filterwarnings("ignore:builtin type event_stats:DeprecationWarning")


def _train(tiny_run, workdir, *flags):
    fields = [f"--{name}={value}" for name, value in tiny_run.without_dev.items()]
    config = f"--config={tiny_run.folder / 'tiny.py'}"
    return train_command([config, f"--workdir={workdir}", *fields, *flags]).run()


def _steps(folder):
    """The steps that a trace has."""
    [file] = folder.glob("plugins/profile/*/*.xplane.pb")
    events = (
        event
        for plane in jax.profiler.ProfileData.from_file(str(file)).planes
        for line in plane.lines
        for event in line.events
        if event.name == "train"
    )
    return sorted(dict(event.stats)["step_num"] for event in events)


def _check(folder, steps):
    assert _steps(folder) == steps
    [perfetto] = folder.glob("plugins/profile/*/perfetto_trace.json.gz")
    with gzip.open(perfetto) as file:
        assert json.load(file)["traceEvents"]


@pytest.mark.thorough
def test_a_run_that_goes_on_is_profiled_again_and_no_step_is_changed(tiny_run, tmp_path, capsys):
    assert _train(tiny_run, tmp_path / "plain", "--training.num-train-steps=8") == 0
    workdir = tmp_path / "run"
    first = _train(tiny_run, workdir, "--training.num-train-steps=4", "--profile-steps=2:3")
    last = _train(tiny_run, workdir, "--training.num-train-steps=8", "--profile-steps=3:6")
    assert (first, last) == (0, 0)
    places = [workdir / "profile" / name for name in ("steps_2_3", "steps_5_6")]
    assert read_profiles(workdir) == places
    assert f"profile of steps 2 to 3: {places[0]}\n" in capsys.readouterr().out
    for place, steps in zip(places, ([2, 3], [5, 6]), strict=True):
        _check(place, steps)
    assert tiny_run.losses(workdir) == tiny_run.losses(tmp_path / "plain")


@pytest.mark.parametrize(
    ("steps", "refusal"),
    [
        ("5", "5 is not FIRST:LAST"),
        ("0:3", "0:3 is not FIRST:LAST"),
        ("7:5", "7:5 is not FIRST:LAST, two steps counted from 1, as in 100:105"),
        ("5:13", r"5:13 goes beyond the last step, training\.num_train_steps=12; name earlier"),
    ],
)
def test_steps_that_are_none_are_refused_before_the_run_begins(tiny_run, tmp_path, steps, refusal):
    with pytest.raises(UserError, match=f"--profile-steps {refusal}"):
        _train(tiny_run, tmp_path / "run", f"--profile-steps={steps}")
    assert not (tmp_path / "run").exists()


@pytest.mark.faults
def test_a_signal_to_one_of_two_processes_profiles_its_next_steps(tiny_run, tmp_path):
    flags = "--training.num-train-steps=40", "--evaluation.every-steps=40"
    programs = tiny_run.start(tmp_path / "run", *flags, processes=2, devices=2)
    wait_for_step(programs[0], 9)
    programs[1].send_signal(signal.SIGUSR1)
    ended = [program.communicate(timeout=240) for program in programs]
    assert [program.returncode for program in programs] == [0, 0], ended
    [folder] = read_profiles(tmp_path / "run")
    first, last = re.fullmatch(r"steps_(\d+)_(\d+)_process_1", folder.name).groups()
    _check(folder, [*range(int(first), int(last) + 1)])
    assert int(last) - int(first) == 9
    tiny_run.finish(tmp_path / "plain", *flags, processes=2, devices=2)
    assert tiny_run.losses(tmp_path / "run") == tiny_run.losses(tmp_path / "plain")


@pytest.fixture
def watched(tmp_path):
    """A function of the steps and the first step, and the places and the lines of the profile."""
    said, pauses, requests = [], [], []

    @contextmanager
    def pause(phase):
        pauses.append("pause")
        yield

    def watched(steps, first=0):
        run = Mock(workdir=tmp_path, **{"state.step": first, "log.say": said.append})
        return profiled(run, meter, iter(range(first, 12)), steps, 12, request)

    meter = Mock(during=pause)
    request = Mock(SignalRequest, take=lambda: bool(requests and requests.pop()))

    watched.said, watched.pauses, watched.folder = said, pauses, tmp_path / "profile"
    watched.requests = requests
    return watched


def test_a_profile_that_is_cut_short_leaves_nothing_and_the_next_is_whole(watched):
    batches = watched((3, 6))
    assert [next(batches) for _ in range(4)] == [0, 1, 2, 3]
    batches.close()
    assert list(watched.folder.iterdir()) == []
    assert list(watched((3, 4))) == [*range(12)]
    assert list(watched((3, 4))) == [*range(12)]
    assert sorted(path.name for path in watched.folder.iterdir()) == ["steps_3_4", "steps_3_4_2"]


def test_a_range_that_has_passed_and_none_at_all_cost_nothing(watched):
    assert list(watched(None)) == [*range(12)]
    assert watched.said == []
    assert list(watched((3, 6), first=6)) == [*range(6, 12)]
    assert watched.said == ["no profile of steps 3 to 6: these steps are done"]
    assert (watched.pauses, watched.folder.exists()) == ([], False)


@pytest.mark.parametrize(
    ("at", "steps", "names"),
    thorough_after(
        2,
        [
            (1, None, ["steps_2_11"]),
            (5, (3, 4), ["steps_3_4", "steps_6_12"]),
            (5, None, ["steps_6_12"]),  # the training ends
            (1, (5, 12), ["steps_12_12", "steps_2_11"]),
        ],
        unpacked=True,
    ),
)
def test_a_request_profiles_the_next_ten_steps(watched, at, steps, names):
    batches = watched(steps)
    seen = [next(batches) for _ in range(at)]
    watched.requests.append(True)
    assert seen + list(batches) == [*range(12)]
    assert sorted(path.name for path in watched.folder.iterdir()) == names


def test_each_process_profiles_its_own_request_and_only_process_0_the_steps(watched, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 3)
    assert list(watched((3, 4))) == [*range(12)]
    watched.requests.append(True)
    assert list(watched((3, 4))) == [*range(12)]
    assert [path.name for path in watched.folder.iterdir()] == ["steps_1_10_process_3"]


def test_trouble_with_the_profiler_is_a_warning(watched, monkeypatch, capsys):
    with jax.profiler.trace(watched.folder.parent / "other"):  # there can be only one
        assert list(watched((3, 6))) == [*range(12)]
    assert "warning: there is no profile of these steps: " in capsys.readouterr().err
    monkeypatch.setattr(profile, "writing_directory", lambda place: 1 / 0)
    assert list(watched((3, 6))) == [*range(12)]
    assert list(watched.folder.iterdir()) == []
    assert watched.said == []
