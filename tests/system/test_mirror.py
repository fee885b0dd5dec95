"""The mirror of a run in a bucket, by a run that writes files as a training does, without JAX."""

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from t2t_jax.system import mirror
from t2t_jax.system.bucket import BucketPath
from t2t_jax.system.mirror import LAST, UnsentError, mirror_of, mirrored
from t2t_jax.system.signals import StopSignal
from t2t_jax.training.checkpoint_files import remove_tree
from tests.object_stores import *  # noqa: F403
from tests.object_stores import on_s3
from tests.programs import wait_until

pytestmark = pytest.mark.thorough

STEPS = 12


def append(here: Path, step: int, of: str) -> None:
    with (here / "log.jsonl").open("a") as log:
        log.write(json.dumps({"step": step, "of": of}) + "\n")


def contents(step: int) -> dict[str, bytes]:
    """Return the files of a checkpoint, of which the last one is in the right place."""
    files = {f"params/{n}": f"{step}/{n}".encode() * 100 for n in range(4)}
    return files | {"progress/moments": bytes([step]) * 1000, LAST: f'{{"step": {step}}}'.encode()}


def save(here: Path, step: int) -> None:
    place = here / "checkpoints" / str(step)
    unfinished = place.with_name(f"{step}.orbax-checkpoint-tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    for name, content in contents(step).items():
        (unfinished / name).parent.mkdir(parents=True, exist_ok=True)
        (unfinished / name).write_bytes(content)
    unfinished.rename(place)
    for older in steps_of(here)[:-2]:
        shutil.rmtree(here / "checkpoints" / str(older))
    append(here, step, "checkpoint")


def steps_of(here: Path) -> list[int]:
    names = (path.name for path in (here / "checkpoints").iterdir())
    return sorted(int(name) for name in names if name.isdecimal())


def simulate(here: Path, last: int = STEPS, pause: float = 0.02) -> None:
    """Train from the newest checkpoint to a step; each step has a checkpoint and two records."""
    first = max(steps_of(here), default=0)
    log = here / "log.jsonl"
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    kept = [line for line in lines if json.loads(line)["step"] <= first]
    log.with_name(".log.tmp").write_text("".join(kept))
    log.with_name(".log.tmp").replace(log)
    (here / "config.json").write_text('{"a": "config"}')
    if first and json.loads(kept[-1]) != {"step": first, "of": "checkpoint"}:
        append(here, first, "checkpoint")
    for step in range(first + 1, last + 1):
        append(here, step, "train")
        save(here, step)
        time.sleep(pause)


def check_consistent(there: BucketPath, log: bytes | None = None) -> None:
    """Check that a reader or another machine can use what is in the store."""
    if log is None:
        log = (there / "log.jsonl").read_bytes() if (there / "log.jsonl").exists() else b""
    recorded = [r["step"] for r in map(json.loads, log.splitlines()) if r["of"] == "checkpoint"]
    found = {str(path).removeprefix(f"{there}/checkpoints/") for path in there.objects()}
    complete = [int(name.split("/")[0]) for name in found if name.endswith(f"/{LAST}")]
    assert max(recorded, default=0) <= max(complete, default=0)
    for step in complete:
        for name, content in contents(step).items():
            assert (there / "checkpoints" / str(step) / name).read_bytes() == content


def check_whole(there: BucketPath) -> None:
    """Check that the store has the same as after an undisturbed run."""
    names = sorted(str(path).removeprefix(f"{there}/") for path in there.objects())
    steps = [STEPS - 1, STEPS]
    expected = [f"checkpoints/{step}/{name}" for step in steps for name in contents(step)]
    assert names == sorted([*expected, "config.json", "log.jsonl", "checkpoints/.directory"])
    check_consistent(there)
    lines = (there / "log.jsonl").read_text().splitlines()
    wanted = [(n, of) for n in range(1, STEPS + 1) for of in ("train", "checkpoint")]
    assert [(r["step"], r["of"]) for r in map(json.loads, lines)] == wanted


def test_a_record_in_the_log_never_precedes_its_checkpoint(store, place, monkeypatch):
    write, logs = BucketPath.write_bytes, []

    def checked(self, data):
        if self.name == "log.jsonl":
            check_consistent(place, bytes(data))
            logs.append(data)
        return write(self, data)

    monkeypatch.setattr(BucketPath, "write_bytes", checked)
    store.delay = 0.005
    with mirrored(place, StopSignal()) as here:
        simulate(here, pause=0.05)
    store.delay = 0.0
    assert len(logs) > 1
    check_whole(place)
    assert not here.exists()


PROGRAM = """
import sys
from t2t_jax.system import mirror
from t2t_jax.system.bucket import as_path
from t2t_jax.system.signals import StopSignal
from t2t_jax.training.checkpoint_files import remove_tree
sys.path.insert(0, "tests/system")
import test_mirror
mirror._ROUND_SECONDS, mirror._SHARE, mirror._RETRY_SECONDS = 0.05, 0, 0.1
with mirror.mirrored(as_path(sys.argv[1]), StopSignal()) as here:
    test_mirror.simulate(here, pause=0.4)
"""


@pytest.mark.faults
def test_kills_an_outage_and_a_lost_disk_change_nothing(store, place, capfd):
    chance = random.Random(0)
    for kill in range(6):
        program = subprocess.Popen([sys.executable, "-c", PROGRAM, str(place)])
        log = mirror_of(place) / "log.jsonl"
        before = log.stat().st_mtime if log.exists() else 0
        while not log.exists() or log.stat().st_mtime == before:
            assert program.poll() is None
            time.sleep(0.01)
        time.sleep(chance.random() / 2)
        store.failures = 10**6 if kill == 2 else 0
        time.sleep(0.3 * (kill == 2))
        assert program.poll() is None
        program.kill()
        program.wait()
        store.failures = 0
        check_consistent(place)
        if kill == 3:
            shutil.rmtree(mirror_of(place))
    subprocess.run([sys.executable, "-c", PROGRAM, str(place)], check=True)
    check_whole(place)
    assert "reachable again" not in capfd.readouterr().err


@pytest.mark.usefixtures("impatient")
@on_s3
def test_a_store_that_is_away_for_a_while_stops_nothing(store, place, capsys, monkeypatch):
    monkeypatch.setattr(mirror, "_PATIENCE_SECONDS", 60.0)
    with mirrored(place, StopSignal()) as here:
        simulate(here, 4)
        store.failures = 10**6
        simulate(here)
        errors = []
        wait_until(lambda: errors.append(capsys.readouterr().err) or "cannot write" in errors[-1])
        threading.Timer(0.5, setattr, (store, "failures", 0)).start()
    errors = "".join([*errors, capsys.readouterr().err])
    assert errors.count(f"cannot write to {place}") == 1
    assert f"{place} is reachable again" in errors
    check_whole(place)


@pytest.mark.usefixtures("impatient")
@on_s3
def test_what_waits_at_the_end_is_sent_by_the_next_start(store, place, capsys):

    def train():
        with mirrored(place, StopSignal()) as here:
            simulate(here, 4)
            wait_until((place / "log.jsonl").exists)
            store.failures = 10**6
            simulate(here)

    with pytest.raises(UnsentError, match=r"lacks the end .* is complete in .*mirrors"):
        train()
    here = mirror_of(place)
    store.failures = 0
    time.sleep(0.5)
    shutil.copytree(here, here.with_name("copy"))
    with mirrored(place, StopSignal()) as here:
        assert steps_of(here) == [STEPS - 1, STEPS]
    assert f"resumes from {here}" in capsys.readouterr().err
    check_whole(place)

    # What another run of this name has left is not brought back to it.
    remove_tree(place)
    here.with_name("copy").rename(here)
    with mirrored(place, StopSignal()) as here:
        assert steps_of(here) == []


def test_another_machine_takes_complete_checkpoints_and_files_of_other_programs(
    store, place, tmp_path
):
    with mirrored(place, StopSignal()) as here:
        simulate(here, 3)
    (place / "scores.jsonl").write_bytes(b"{}\n")
    (place / "checkpoints/4/params/0").write_bytes(b"incomplete")
    with mirrored(place, StopSignal(), tmp_path) as here:
        assert here.is_relative_to(tmp_path)
        assert steps_of(here) == [2, 3]
        assert (here / "scores.jsonl").read_bytes() == b"{}\n"
        (place / "scores.jsonl").write_bytes(b"{}\n{}\n")
        simulate(here, STEPS)
    assert (place / "scores.jsonl").read_bytes() == b"{}\n{}\n"
    (place / "scores.jsonl").unlink()
    check_whole(place)


@on_s3
def test_a_checkpoint_that_is_written_again_is_not_mixed(place, monkeypatch):
    requests = []
    removed = mirror.remove
    monkeypatch.setattr(
        mirror, "remove", lambda paths: (requests.extend(paths := [*paths]), removed(paths))
    )
    with mirrored(place, StopSignal()) as here:
        best = here / "best/7"
        for content in (b"one", b"other"):
            shutil.rmtree(best, ignore_errors=True)
            (best / "params").mkdir(parents=True)
            (best / "params" / str(len(content))).write_bytes(content)
            (best / LAST).write_bytes(content)
            there = place / "best/7/params" / str(len(content))
            wait_until(there.exists)
    assert requests[:2] == [place / "best/7" / LAST, place / "best/7/params/3"]
    assert (place / "best/7" / LAST).read_bytes() == b"other"
    assert [*(place / "best/7/params").iterdir()] == [there]


def test_a_name_with_signs_of_a_pattern_is_a_name(place):
    place = place / "grid[1]*"
    with mirrored(place, StopSignal()) as here:
        simulate(here)
    check_whole(place)
    (place / "report").write_text("tëxt")
    assert (place / "report").read_text() == "tëxt"
    assert [*place.glob("re*")] == [place / "report"]
    (place.parent / "grid1x").write_text("x")
    remove_tree(place)
    assert not place.exists()
    assert (place.parent / "grid1x").exists()


@pytest.mark.usefixtures("impatient")
@on_s3
def test_a_directory_that_somebody_removes_is_not_removed_from_the_store(place):
    def train():
        with mirrored(place, StopSignal()) as here:
            simulate(here)
            wait_until((place / f"checkpoints/{STEPS}" / LAST).exists)
            time.sleep(0.5)
            here.rename(here.with_name("elsewhere"))

    with pytest.raises(UnsentError, match="has lost its checkpoints"):
        train()
    check_whole(place)


def killed(place, work=lambda here: None):
    """Do work in the mirror of a run until a kill, and return its directory."""

    def program():
        with mirrored(place, StopSignal()) as here:
            work(here)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        program()
    return mirror_of(place)


def level(place, here):
    """Wait until the store has everything."""
    log = place / "log.jsonl"
    wait_until(lambda: log.exists() and log.read_bytes() == (here / "log.jsonl").read_bytes())
    time.sleep(0.3)


def trained(place, steps=4):
    return killed(place, lambda here: (simulate(here, steps), level(place, here)))


@pytest.mark.usefixtures("impatient")
@on_s3
def test_a_start_goes_on_here_if_the_store_lacks_a_log_or_has_a_longer_one(store, place):
    def shortened(here):
        store.failures = 10**6
        log = here / "log.jsonl"
        log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))

    def never_sent(here):
        store.failures = 10**6
        simulate(here, 4)

    trained(place)
    for run, work in ((place, shortened), (place.with_name("other"), never_sent)):
        here = killed(run, work)
        store.failures = 0
        (here / "notes").write_text("local")
        time.sleep(0.5)
        killed(run)
        assert (here / "notes").exists()
        assert steps_of(here) == [3, 4]


@pytest.mark.usefixtures("impatient")
@on_s3
def test_nothing_is_removed_from_the_store_because_it_cannot_be_read_here(place, monkeypatch):
    here = trained(place)
    (here / ".mirror.json").unlink()  # a kill ended the removal of the mirror
    shutil.rmtree(here / "checkpoints/3")
    assert steps_of(killed(place)) == [3, 4]
    scan = os.scandir

    def failing(path):
        if str(path).endswith("checkpoints/3"):
            raise OSError(5, "Input/output error", path)
        return scan(path)

    def program():
        with mirrored(place, StopSignal()) as here:
            append(here, 5, "train")
            monkeypatch.setattr(os, "scandir", failing)

    with pytest.raises(UnsentError, match=r"lacks the end .*Input/output error"):
        program()
    assert (place / "checkpoints/3" / LAST).exists()


@pytest.mark.usefixtures("impatient")
@on_s3
def test_a_run_whose_lock_was_taken_sends_nothing_more(place):
    def program():
        with mirrored(place, StopSignal()) as here:
            simulate(here, 2)
            level(place, here)
            (place / ".lock").write_bytes(b"7 elsewhere/1-1 0")
            simulate(here, 4)

    with pytest.raises(UnsentError, match="another process trains"):
        program()
    check_consistent(place)
    assert not (place / "checkpoints/4").exists()


@on_s3
def test_the_newer_content_of_a_file_wins_whatever_the_clocks_say(place):
    here = trained(place)
    (here / "events.0").write_text("older")
    killed(place, lambda here: time.sleep(1.5))
    (here / "events.0").write_text("newer")
    os.utime(here / "events.0", (0, 0))
    (place / "scores.jsonl").write_bytes(b"of another program\n")
    bucket, key = str(place / "jobs").removeprefix("s3://").split("/", 1)
    place._store.call_s3("put_object", Bucket=bucket, Key=f"{key}/")  # as a console makes folders
    killed(place, lambda here: time.sleep(1.5))
    assert (here / "scores.jsonl").read_text() == "of another program\n"
    assert (place / "events.0").read_bytes() == b"newer"
