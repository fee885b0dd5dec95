"""A preflight: its verdicts, its checks on one process, and two real processes."""

import errno
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections import namedtuple
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from t2t_jax.config.file import load_config
from t2t_jax.errors import UserError
from t2t_jax.parallel import message_board
from t2t_jax.parallel.directory_lock import locked
from t2t_jax.run.preflight import board, rehearsal, store
from t2t_jax.run.preflight.board import Board, LostError
from t2t_jax.run.preflight.findings import Findings, begin_check
from t2t_jax.run.preflight.rehearsal import rehearse
from t2t_jax.run.preflight.report import PreflightReport
from t2t_jax.run.preflight.store import Probe, check_local_disk
from t2t_jax.run.preflight.verdicts import failures, numbered, slowest

HOSTS = {0: "a", 1: "b", 2: "c", 3: "d", 4: "e"}


@pytest.mark.parametrize(
    ("processes", "text"),
    [([1], "process 1"), ([0, 1], "processes 0-1"), ([5, 0, 2, 1], "processes 0-2, 5")],
)
def test_processes_are_named_in_ranges(processes, text):
    assert numbered(processes) == text


@pytest.mark.parametrize(
    ("samples", "is_rate", "found"),
    [
        ({0: [1.0, 1.1, 1.0]}, False, None),  # nobody to compare with
        ({0: [1.0, 1.01, 1.0], 1: [1.3, 1.3, 1.3]}, False, (1, 1.3)),
        ({0: [1.0, 1.01, 1.0], 1: [1.1, 1.1, 1.1]}, False, None),  # less than a fifth
        ({0: [1.0, 1.5, 1.6], 1: [1.4, 2.0, 2.1]}, False, None),  # within the noise of each
        ({0: [1.0, 9.0, 9.0], 1: [1.0, 1.0, 1.0]}, False, None),  # the best of each counts
        ({0: [100, 99, 98], 1: [50, 49, 50], 2: [101, 100, 100]}, True, (1, 2.01)),
        ({0: [0.001] * 3, 1: [0.009] * 3}, False, None),  # too short to matter
        ({0: [1.0], 1: [1.9]}, False, None),  # one measurement says little
        ({0: [1.0], 1: [2.2], 2: [1.0]}, False, (1, 2.2)),
        ({0: [1.0, 1.0, 1.0], 1: []}, False, None),  # which could not measure
    ],
)
def test_the_slowest_is_named_only_beyond_noise(samples, is_rate, found):
    slow = slowest(samples, is_rate=is_rate)
    assert slow == (found if found is None else (found[0], pytest.approx(found[1], abs=0.01)))


def test_every_difference_is_listed_by_host():
    def of(optax, text):
        return Findings(facts={"versions": {"jax": "1", "optax": optax}, "files": {"corpus": text}})

    found = {0: of("2", "x"), 1: of("2", "y"), 2: of("3", "x"), 3: of("2", "x"), 4: of("2", "x")}
    assert failures(found, HOSTS) == [
        "optax differs: 2 on processes 0-1, 3-4; 3 on process 2 (c); install the same on all hosts",
        "corpus differs: x on processes 0, 2-4; y on process 1 (b); "
        "give all processes the same files",
    ]


def test_failed_checks_name_their_processes_and_what_is_alike_stands_once():
    found = {n: Findings(problems=["no room; make some"] * (n != 1)) for n in range(4)}
    assert failures(found, HOSTS, lost=[4]) == [
        "process 4 (e) gave no sign of life any more; see what it said, and whether its host still "
        "answers",
        "processes 0, 2-3 (a, c, d): no room; make some",
    ]


def test_the_report_has_a_row_for_each_process_and_ends_with_the_verdict():
    report = PreflightReport(hosts=HOSTS, skipped=["the step, as the check of sums failed"])
    report.add(
        "speed",
        {
            0: Findings(rates={"product": [100.0, 101.2, 100.5]}, peaks={"product": 202.4}),
            1: Findings(rates={"product": [40.0, 40.0, 40.0]}, peaks={"product": 202.4}),
        },
    )
    report.add("speed", {0: Findings(times={"compiled in": [0.0123]}), 1: Findings()})
    report.add("data", {0: Findings(problems=["no text; give some"]), 1: Findings()})
    console = Console(width=80, record=True, quiet=True)
    with console.capture() as captured:
        console.quiet = False
        for table in report.tables():
            console.print(table)
    assert [line.split() for line in captured.get().splitlines()] == [
        ["speed", "compiled", "in", "product"],
        ["0", "a", "12.3", "ms", "101", "(50%)"],
        ["1", "b", "40", "(20%)"],
    ]
    assert list(report.lines()) == [
        "peaks: product 202",
        "slow: product: process 1 (b) is 2.5 times slower than others",
        "not tried: the step, as the check of sums failed",
        "FAILED: process 0 (a): no text; give some",
        "1 check failed",
    ]


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (OSError(28, "No space left on device", "w"), "w: No space left on device; make room th"),
        (RuntimeError("of some\nlibrary"), "RuntimeError: of some library"),
    ],
)
def test_an_error_of_a_check_is_a_problem_and_what_was_found_stays(error, problem):
    def work(findings):
        findings.times["a"] = [1.0]
        raise error

    findings = Findings()
    begin_check(work, findings).join()
    assert findings.problems[0].startswith(problem)
    assert Findings.from_json(findings.to_json()) == findings
    assert findings.times == {"a": [1.0]}


class Texts:
    """A store of keys and values, as JAX's coordination service is one for several processes."""

    def __init__(self):
        self.texts = {}

    def key_value_set(self, key, text, allow_overwrite):
        assert allow_overwrite
        self.texts[key] = text

    def key_value_dir_get(self, key):
        return [(name, text) for name, text in self.texts.copy().items() if name.startswith(key)]


def test_processes_tell_each_other_and_one_without_signs_of_life_is_named(monkeypatch):
    monkeypatch.setattr(board, "_BEAT_SECONDS", 0.02)
    monkeypatch.setattr(board, "_SILENT_SECONDS", 0.5)
    state = namedtuple("State", "client process_id num_processes coordinator_address")
    texts, boards = Texts(), []
    monkeypatch.setattr(message_board, "global_state", state(texts, 0, 3, "host:1"))
    for process in range(2):  # the third never comes
        monkeypatch.setattr(board, "global_state", state(texts, process, 3, "host:1"))
        boards.append(Board())
    assert boards[0].tell("question", "yes") == boards[1].tell("question", "ignored") == "yes"
    assert boards[1].collect("names", "b") == {}
    with pytest.raises(LostError, match=r"\[2\]"):
        boards[0].collect("names", "a")
    with pytest.raises(LostError, match=r"\[2\]"):
        boards[1].tell("what process 0 does not come to tell")


@pytest.fixture
def config(tiny_run):
    """The tiny run; with `pmap` its step is not compiled."""
    return load_config(str(tiny_run.folder / "tiny.py")).replace({"parallel.backend": "pmap"})


def lines_of(outcome):
    return "\n".join(outcome.report.lines())


def test_one_process_passes_and_nothing_stays(config, tmp_path):
    shown = []
    outcome = rehearse(config, tmp_path / "run", shown.append)
    assert shown == [outcome.report]
    assert (outcome.exit_code, outcome.leaves_threads) == (0, False), lines_of(outcome)
    assert list(tmp_path.iterdir()) == []
    found = outcome.report.found[0]
    assert {"write MB/s", "read MB/s", "float32 product TFLOP/s"} <= found.rates.keys()
    assert lines_of(outcome).endswith("ready: all checks passed")


def test_a_run_that_another_process_holds_is_only_reported(config, tmp_path):
    with locked(tmp_path / "run"):
        before = sorted(tmp_path.rglob("*"))
        outcome = rehearse(config, tmp_path / "run", print)
        assert f"another process trains in {tmp_path / 'run'}" in lines_of(outcome)
        assert outcome.exit_code == 0
        assert sorted(tmp_path.rglob("*")) == before


def test_what_fails_is_named_and_ends_no_other_check(config, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(rehearsal, "_SOON", 1.0)
    never = threading.Event()
    monkeypatch.setattr(Probe, "read", lambda *_: never.wait())
    (tmp_path / "notes").write_text("of another program")
    outcome = rehearse(config, tmp_path / "run", print)
    assert (outcome.exit_code, outcome.leaves_threads) == (1, True)
    assert outcome.report.failures == [
        f"process 0 ({socket.gethostname()}): reading did not end within 1 s; see whether the "
        "filesystem or the store of --workdir answers",
        outcome.report.failures[1],
    ]
    assert f"{tmp_path} has 0.0 GiB free, but the checkpoints" in outcome.report.failures[1]
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]
    never.set()
    refused = rehearse(config, tmp_path, print)  # which is no run's directory
    assert "exists and is not a run directory; choose another --workdir" in lines_of(refused)
    assert "not tried: the step, as the check of the data failed" in lines_of(refused)
    assert "float32 product TFLOP/s" in refused.report.found[0].rates


def test_a_directory_that_each_host_has_for_itself_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "_SECONDS_TO_BE_SEEN", 0.0)
    places = [tmp_path / "of_0", tmp_path / "of_1"]
    probes = []
    for process, place in enumerate(places):
        place.mkdir()
        probes.append(Probe(place / "run", "mark", process, processes=2))
        probes[-1].write(Findings())
    for probe, place, other in zip(probes, places, (1, 0), strict=True):
        with pytest.raises(UserError, match=f"{place} lacks what process {other} wrote there"):
            probe.read(Findings())
        probe.remove(Findings())
        assert list(place.iterdir()) == []


def test_the_disk_of_the_host_is_tried_where_checkpoints_are_to_be(config, tmp_path, monkeypatch):
    check = partial(check_local_disk, str(tmp_path / "disk" / "local"))
    usage = shutil.disk_usage(tmp_path)._replace(free=3 << 30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    findings = Findings()
    check(findings)
    assert [*findings.rates] == ["local write MB/s", "local read MB/s"]
    assert findings.texts == {"local free room": "3.0 GiB"}
    assert (findings.problems, findings.facts, list(tmp_path.iterdir())) == ([], {}, [])

    local = {"checkpoint.local_dir": str(tmp_path), "checkpoint.local_every_steps": 1}
    outcome = rehearse(config.replace(local), tmp_path / "run", print)
    assert "local free room" in outcome.report.parts["local disk"][0].texts

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"^checkpoint\.local_dir: cannot write in .*No space left"):
        check(Findings())
    assert list(tmp_path.iterdir()) == []


# Starts the command, where the board may have been told to be less patient.
_PREFLIGHT = """
import os, sys
from t2t_jax.run.preflight import board
board._SILENT_SECONDS = float(os.environ.get("SILENT", 30))
from t2t_jax.system.program import run
from t2t_jax.__main__ import main
run(main)
"""
# In the second process: a clock that is ahead, another version of a package, and a disk on which
# nothing can be written, or the end of the process instead.
_SITE = """
import errno, os, time
real, real_time = os.fsync, time.time
time.time = lambda: real_time() + 100
def fsync(number):
    if ".preflight-" in os.readlink(f"/proc/self/fd/{number}"):
        if os.environ.get("DIES"):
            os.kill(os.getpid(), 9)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return real(number)
os.fsync = fsync
"""


def _together(tiny_run, workdirs, *flags, second=(), **of_second):
    """Run the command in two processes, and return their exit codes and what they printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    started = []
    for number in range(2):
        command = [sys.executable, "-c", _PREFLIGHT, "preflight", *flags]
        command += [f"--config={tiny_run.folder / 'tiny.py'}", f"--workdir={workdirs[number]}"]
        command += [f"--coordinator={place}", "--num-processes=2", f"--process-id={number}"]
        extra = of_second if number else {}
        root = str(Path(__file__).parents[2])
        paths = os.pathsep.join([*([extra["PYTHONPATH"]] if "PYTHONPATH" in extra else []), root])
        environment = {**os.environ, "SILENT": "3", **extra, "PYTHONPATH": paths}
        started.append(
            subprocess.Popen(
                [*command, *(second if number else ())],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    said = [program.communicate(timeout=300) for program in started]
    return [program.returncode for program in started], [output for output, _ in said], said


@pytest.fixture(scope="module")
def stubs(tmp_path_factory):
    """A directory of stand-ins for the path of a process."""
    folder = tmp_path_factory.mktemp("stubs")
    (folder / "sitecustomize.py").write_text(_SITE)
    (folder / "optax-9.9.dist-info").mkdir()
    (folder / "optax-9.9.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: optax\nVersion: 9.9\n"
    )
    return folder


@pytest.mark.thorough
def test_two_processes_pass_together(tiny_run, tmp_path):
    codes, printed, said = _together(tiny_run, [tmp_path / "run"] * 2, "--parallel.fsdp=2")
    assert codes == [0, 0], said
    assert list(tmp_path.iterdir()) == []
    host = socket.gethostname()
    assert printed[0].splitlines()[-1] == "ready: all checks passed"
    for title in ("hosts", "data", "run directory", "speed"):
        rows = printed[0].partition(f"\n{title} ")[2].partition("\n\n")[0].splitlines()
        assert [row.split()[:2] for row in rows if row[:1].isdigit()] == [["0", host], ["1", host]]
    assert "sum over fsdp" in printed[0]
    assert "ready" not in printed[1]


@pytest.mark.thorough
def test_another_text_version_seed_and_a_full_disk_are_named(tiny_run, tmp_path, stubs):
    shutil.copytree(tiny_run.folder / "corpus", tmp_path / "other")
    with (tmp_path / "other" / "train.de").open("a") as german:
        german.write("Noch eine Zeile.\n")
    with (tmp_path / "other" / "train.en").open("a") as english:
        english.write("One more line.\n")
    before = sorted(tmp_path.iterdir())
    workdirs = [tmp_path / "run", tmp_path / "rnu"]
    second = [f"--data.corpus=text:{tmp_path / 'other'}", "--training.seed=5"]
    codes, printed, said = _together(tiny_run, workdirs, second=second, PYTHONPATH=str(stubs))
    assert codes == [1, 1], said
    host = socket.gethostname()
    failed = [line for line in printed[0].splitlines() if line.startswith("FAILED: ")]
    text = "\n".join(failed)
    assert f"process 1 ({host}): cannot write in {tmp_path}: No space left on device" in text
    assert f"training.seed differs: 0 on process 0 ({host}); 5 on process 1 ({host}); " in text
    assert f"; 9.9 on process 1 ({host}); install the same on all hosts" in text
    assert f"process 1 ({host}): the clock is 100 s ahead of that of process 0; set it" in text
    names = [line.split(" differs")[0].removeprefix("FAILED: ") for line in failed]
    assert {"optax", "the corpus", "the vocabulary", "the first batch"} <= {*names}
    assert "'/rnu' on process 1" in text
    assert "not tried: the step, as the processes differ" in printed[0]
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.thorough
def test_a_process_that_is_killed_ends_the_other_by_name(tiny_run, tmp_path, stubs):
    codes, printed, said = _together(
        tiny_run, [tmp_path / "run"] * 2, PYTHONPATH=str(stubs), DIES="yes"
    )
    assert codes == [1, -9], said
    assert "optax differs" in printed[0]
    assert f"process 1 ({socket.gethostname()}) gave no sign of life any more" in printed[0]
    assert list(tmp_path.iterdir()) == []
