"""Files, and output of other programs, that are not UTF-8."""

import os

import pytest

from t2t_jax.commands.entry import entry_command
from t2t_jax.config.file import load_grid
from t2t_jax.errors import UserError
from t2t_jax.extras.trackers.follower import _start_follower
from t2t_jax.run import provenance
from t2t_jax.sweep import same_code

LATIN = "Stra\u00dfe".encode("latin-1")


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A function that puts a program on the path which prints bytes, and fails or not."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def add(name, printed, code=0):
        (out := tmp_path / f"{name}.out").write_bytes(printed)
        (tmp_path / name).write_text(f"#!/bin/sh\ncat {out}\ncat {out} >&2\nexit {code}\n")
        (tmp_path / name).chmod(0o755)
        return str(tmp_path / name)

    return add


def _launch(tmp_path):
    run = tmp_path / "run"
    train = ["train", "--config", "configs/quickstart.py", "--workdir", str(run)]
    return entry_command(["launch", "slurm", "--", *train]).run()


def test_git_may_print_a_branch_in_another_encoding(program):
    program("git", b"# branch.oid 1234\n# branch.head " + LATIN + b"\n")
    assert provenance._git_status() == {"commit": "1234", "dirty": False}


def test_a_client_may_refuse_a_job_in_another_encoding(program, tmp_path):
    program("sbatch", LATIN, code=1)
    with pytest.raises(UserError, match=r"sbatch refuses .*Stra.e; nothing was submitted"):
        _launch(tmp_path)


def test_the_queue_and_the_number_of_a_job_may_be_in_another_encoding(program, tmp_path):
    program("sbatch", b"7")
    program("squeue", b"")
    assert _launch(tmp_path) == 0
    [number] = (tmp_path / "run/launch").glob("*job*")
    number.write_bytes(LATIN)
    program("squeue", LATIN)
    with pytest.raises(UserError, match=r"of Slurm trains in .*Stra.e"):
        _launch(tmp_path)


def test_processes_of_this_package_may_print_other_encodings(program, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.executable", program("python", b"warning: " + LATIN + b" bfloat16"))
    assert same_code.local_dtype() == "bfloat16"
    program("python", b"error: " + LATIN, code=1)
    with pytest.raises(UserError, match=r"^Stra.e$"):
        _start_follower(tmp_path, "mlflow:x")


@pytest.mark.parametrize("cookie", [b"# -*- coding: latin-1 -*-\n", b""])
def test_the_file_of_a_grid_is_utf8(tmp_path, cookie):
    text = b"from t2t_jax import Config\nVARIANTS = {'base': Config()}  # " + LATIN
    (tmp_path / "grid.py").write_bytes(cookie + text)
    with pytest.raises(UserError, match=r"grid\.py .*(utf-8|UTF-8).*byte 0xdf"):
        load_grid(str(tmp_path / "grid.py"))
