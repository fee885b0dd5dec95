"""How every program begins and ends: streams, signals, errors in one line, exit codes.

Most of these programs do not import JAX, and answer in a fraction of a second.
"""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from t2t_jax.system.program import command_line
from tests.programs import ROOT, run_program
from tests.selection import thorough_after

# Where another file has imported JAX into this process, it warns of the fork that starts a program.
pytestmark = [
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

HEAD = """
import os, signal, sys, time
from pathlib import Path
from t2t_jax.system.program import run
def say(text):
    print(text, flush=True)
def main(arguments):
"""
WRITE = """
    from t2t_jax.system.atomic_file import open_atomic
    with open_atomic("out") as file:
        file.write(b"half")
        file.flush()
        say("ready")
        {}
"""
ENDING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
by_name = pytest.mark.parametrize("number", ENDING, ids=lambda number: number.name)


def start(folder, body, stdout=subprocess.PIPE, shell="", before=None):
    """A program of this body; a shell may start it with redirections."""
    (folder / "program.py").write_text(HEAD + body.strip("\n") + "\nrun(main)\n")
    command = [sys.executable, "program.py"]
    if shell:
        command = ["bash", "-c", f'exec "$@" {shell}', "bash", *command]
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=before or _receive_all,
    )


def _receive_all():
    """A shell's background starts with some of them ignored."""
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)


def finish(folder, body, **how):
    program = start(folder, body, **how)
    said, errors = program.communicate(timeout=30)
    return program.returncode, said, errors


def wait_until_ready(program):
    assert program.stdout.readline() == "ready\n"


def assert_ends_by(program, number):
    """A signal ends the program at once, and the program says nothing."""
    program.send_signal(number)
    assert program.communicate(timeout=5) == ("", "")
    assert program.returncode == -number


@by_name
@pytest.mark.parametrize(
    "work",
    [
        "while True: sum(range(1000))",
        "__import__('hashlib').pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)",
        "time.sleep(60)",
    ],
    ids=["in Python", "in one long call of C", "asleep"],
)
def test_a_signal_ends_a_program_at_once_by_itself_and_leaves_no_half_file(tmp_path, number, work):
    program = start(tmp_path, WRITE.format(work))
    wait_until_ready(program)
    assert len(list(tmp_path.iterdir())) == 2
    assert_ends_by(program, number)
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]


def test_no_callback_can_swallow_a_signal(tmp_path):
    """As those of JAX do: what is raised in a finaliser is printed, and the work goes on."""
    body = """
    class Callback:
        def __del__(self):
            while True:
                pass
    say("ready")
    Callback()
    """
    program = start(tmp_path, body)
    wait_until_ready(program)
    assert_ends_by(program, signal.SIGINT)


@pytest.mark.parametrize(
    ("number", "before"),
    [(signal.SIGHUP, signal.SIG_IGN), (signal.SIGUSR1, signal.SIG_DFL)],
    ids=["by nohup", "a profile's before the training"],
)
def test_a_signal_that_is_ignored_has_no_effect(tmp_path, number, before):
    program = start(
        tmp_path,
        "    say('ready')\n    time.sleep(0.3)\n    return 3",
        before=lambda: signal.signal(number, before),
    )
    wait_until_ready(program)
    program.send_signal(number)
    program.communicate(timeout=5)
    assert program.returncode == 3


CONFIG_FILE = """
    from t2t_jax.config.file import load_config
    load_config("config.py")
    say("went on")
"""


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGTERM)\n", -signal.SIGTERM, ""),
        ("os.kill(os.getpid(), signal.SIGHUP)\n1 / 0\n", -signal.SIGHUP, ""),
        ("signal.raise_signal(signal.SIGINT)\nget_config = Config\n", -signal.SIGINT, ""),
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN)\nget_config = Config\n", 0, ""),
        ("sys.setrecursionlimit(10**6)\n1 / 0\n", 2, "error: config.py line 3: ZeroDivisionError"),
        ("", 2, "error: config.py defines no get_config(); name a variant"),
    ],
)
def test_whatever_a_config_file_does_a_program_ends_as_it_should(tmp_path, text, code, said):
    head = "import os, signal, sys; from t2t_jax import Config\n"
    (tmp_path / "config.py").write_text(head + text)
    ended, printed, errors = finish(tmp_path, CONFIG_FILE)
    assert (ended, printed) == (code, "went on\n" if code == 0 else ""), errors
    assert errors.startswith(said)
    assert errors.count("\n") == (code == 2)


def test_a_program_is_ended_by_a_signal_after_a_config_file_that_ignores_it(tmp_path):
    (tmp_path / "config.py").write_text("""
import os, signal
from t2t_jax import Config

signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.set_wakeup_fd(-1)
get_config = Config
""")
    body = CONFIG_FILE.replace('say("went on")', 'say("ready")\n    time.sleep(60)')
    program = start(tmp_path, body)
    wait_until_ready(program)
    assert_ends_by(program, signal.SIGTERM)


@pytest.mark.parametrize(
    "error",
    [
        "MemoryError('std::bad_alloc')",
        "ImportError('lib.so: failed to map segment from shared object')",
        "ImportError('lib.so: cannot allocate memory in static TLS block')",
    ],
)
def test_memory_that_is_used_up_is_one_line(tmp_path, error):
    code, _, errors = finish(tmp_path, f"    raise {error}")
    assert code == 2
    assert re.fullmatch(r"error: the memory is used up \(.*\); .*ulimit -v\n", errors), errors


STOPPABLE = """
    from t2t_jax.system.signals import StopSignal
    with StopSignal() as stop:
        say("ready")
        while not stop.number:
            time.sleep(0.01)
        say("ready")
        time.sleep(arguments_seconds)
    say("ready")
    time.sleep(arguments_seconds)
    return 128 + stop.number
"""


@by_name
def test_a_loop_takes_the_first_signal_as_a_wish_to_stop(tmp_path, number):
    program = start(tmp_path, STOPPABLE.replace("arguments_seconds", "0"))
    wait_until_ready(program)
    program.send_signal(number)
    program.communicate(timeout=5)
    assert program.returncode == 128 + number


def test_sigterm_and_sighup_do_not_end_a_program_that_stops(tmp_path):
    """As systemd sends the pair to the sessions of ssh when a machine shuts down."""
    program = start(tmp_path, STOPPABLE.replace("arguments_seconds", "0.5"))
    for again in ([], [signal.SIGTERM], [signal.SIGHUP, signal.SIGTERM]):  # the last is after it
        wait_until_ready(program)
        for number in [signal.SIGTERM, signal.SIGHUP, *again]:
            program.send_signal(number)
            time.sleep(0.02)  # of two that wait, the system sends SIGHUP first
    assert program.communicate(timeout=5)[1] == ""
    assert program.returncode == 128 + signal.SIGTERM


def test_a_second_ctrl_c_ends_a_program_that_stops(tmp_path):
    program = start(tmp_path, STOPPABLE.replace("arguments_seconds", "60"))
    wait_until_ready(program)
    program.send_signal(signal.SIGINT)
    wait_until_ready(program)
    assert_ends_by(program, signal.SIGINT)


def test_a_forked_process_receives_its_own_signals(tmp_path):
    body = """
    import warnings
    warnings.simplefilter("ignore")  # Python 3.12 and later warn of the fork of several threads
    child = os.fork()
    if not child:
        time.sleep(60)
    time.sleep(0.1)
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    time.sleep(0.2)
    return 5
    """
    assert finish(tmp_path, body) == (5, "", "")


CLOSED = """
    opened = open("program.py")
    assert opened.fileno() > 2
    print("to nobody")
    print("to nobody", file=sys.stderr)
    assert sys.stdin.read() == ""
    assert os.system("echo to nobody; echo to nobody >&2; cat") == 0
    Path("done").write_text("done")
    return 0
"""


@pytest.mark.parametrize("shell", ["<&-", ">&-", "2>&-", "<&- >&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_replaced_before_a_file_takes_their_numbers(tmp_path, shell):
    code, said, errors = finish(tmp_path, CLOSED, shell=shell)
    assert code == 0, errors
    assert (tmp_path / "done").read_text() == "done"
    assert said.count("to nobody") == (0 if " >&-" in f" {shell}" else 2)


@pytest.mark.parametrize(
    ("body", "code", "errors"),
    [
        ("print('x' * 10**6); return 0", 74, "error: the standard output"),
        ("raise OSError(24, 'Too many open files', 'f')", 2, "f: Too many open files; raise"),
        ("raise OSError(28, 'No space left on device', 'f')", 74, "on device; make room there"),
        ("raise OSError(27, 'File too large')", 2, "(ulimit -f)"),
        ("raise OSError(30, 'Read-only file system', 'f')", 2, "choose another place"),
        ("raise OSError(12, 'Cannot allocate memory')", 2, "the memory is used up"),
    ],
    ids=["a full stdout", "EMFILE", "ENOSPC", "EFBIG", "EROFS", "ENOMEM"],
)
def test_what_the_system_refuses_is_one_line_with_a_way_out(tmp_path, body, code, errors):
    with open("/dev/full", "w") as full:
        ended, _, said = finish(tmp_path, "    " + body, stdout=full)
    assert ended == code
    assert errors in said
    assert said.startswith("error: ")
    assert said.count("\n") == 1


PRINT = """
    from rich.table import Table
    from t2t_jax.system.console import {0}
    for _ in range(200):
        {0}().print("a line\\n" * 1000)
    Path("done").write_text("done")
    return 0
"""


@pytest.mark.parametrize(
    ("body", "code"),
    thorough_after(
        2,
        [
            ("    print('a line\\n' * 100_000)\n    return 0", 141),
            ("    print('help\\n' * 100_000)\n    sys.exit(0)", 141),
            (PRINT.format("ResultConsole"), 141),
            (PRINT.format("ProgressConsole"), 0),
        ],
        unpacked=True,
    ),
    ids=["print", "help", "a table", "progress, which nobody has to hear"],
)
def test_a_reader_that_goes_away_ends_a_program_quietly(tmp_path, body, code):
    program = start(tmp_path, body)
    program.stdout.close()
    with program.stderr as errors:
        assert errors.read() == ""
    assert program.wait(timeout=20) == code
    assert (tmp_path / "done").exists() == (code == 0)


def test_a_warning_that_nobody_reads_stops_nothing(tmp_path):
    body = """
    from t2t_jax.errors import warn
    Path("pipe").exists() or os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    os.dup2(os.open("pipe", os.O_WRONLY), 2)
    os.close(reader)
    warn("nobody reads this")
    return 7
    """
    assert finish(tmp_path, body)[0] == 7


@pytest.fixture(scope="module")
def translated(tiny_run, tmp_path_factory):
    """A trained run, a file of sentences, and their translations where nothing is in the way."""
    folder = tmp_path_factory.mktemp("translated")
    tiny_run.finish(folder / "run")
    (folder / "source").write_text("a dog runs\n\nthe red house\n")
    done = _translate(folder, "")
    assert done.returncode == 0, done.stderr
    return folder, (folder / "out").read_bytes()


def _translate(folder, setting, redirections=""):
    program = "eval.py translate --workdir $0/run --input $0/source --output $0/out --scores"
    line = f"{setting} exec {sys.executable} {program} {redirections}"
    return run_program("bash", "-c", line, folder)


# What comes before a command, or after it.
SURROUNDINGS = {
    "no streams": ("", "<&- >&- 2>&-"),
    "no stdout": ("", ">&-"),
    "TMPDIR that is not there": ("export TMPDIR=/nowhere;", ""),
    "no HOME": ("unset HOME XDG_CACHE_HOME JAX_COMPILATION_CACHE_DIR;", ""),
    "a cache that cannot be written": (
        "export XDG_CACHE_HOME=/proc; unset JAX_COMPILATION_CACHE_DIR;",
        "",
    ),
    "no compilation cache": ("export JAX_COMPILATION_CACHE_DIR=/proc/nowhere;", ""),
    "the plainest locale": ("export LC_ALL=C PYTHONUTF8=0 PYTHONIOENCODING=ascii;", ""),
    "64 open files": ("ulimit -n 64;", ""),
    "ignored signals": ("trap '' HUP INT;", ""),
}


@pytest.mark.faults
@pytest.mark.parametrize("name", SURROUNDINGS)
def test_what_the_surroundings_lack_does_not_matter_where_it_is_not_needed(translated, name):
    folder, expected = translated
    (folder / "out").unlink()
    done = _translate(folder, *SURROUNDINGS[name])
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert (folder / "out").read_bytes() == expected
    assert "Traceback" not in done.stderr


@pytest.mark.faults
def test_a_limit_on_the_size_of_files_is_one_line(translated):
    done = _translate(translated[0], "ulimit -f 0;")
    assert done.returncode == 2
    assert re.fullmatch(r"error: [^\n]*\(ulimit -f\)\n", done.stderr), done.stderr


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("train.py", "eval.py evaluate"),
        ("/home/a/clone/eval.py", "eval.py evaluate"),
        ("/usr/bin/t2t-jax", "t2t-jax evaluate"),
        ("/lib/t2t_jax/__main__.py", "t2t-jax evaluate"),
        ("/lib/ipykernel_launcher.py", "t2t-jax evaluate"),
    ],
)
def test_another_command_is_called_as_it_can_be_from_there(program, said, monkeypatch):
    monkeypatch.setattr(sys, "argv", [program])
    assert command_line("evaluate") == said
