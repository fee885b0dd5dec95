"""The commands that show what a training would be: `config`, and `train --dry-run`."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from t2t_jax import Config, UserError
from t2t_jax.__main__ import main
from t2t_jax.config.file import load_config
from t2t_jax.parallel.processes import locked
from tests.programs import free_port
from tests.refusals import refused


@pytest.fixture
def run(tmp_path):
    workdir = tmp_path / "run"
    workdir.mkdir()
    (workdir / "config.json").write_text(Config().replace({"model.d_ff": 64}).to_json())
    return str(workdir)


@pytest.mark.parametrize("name", ["base", "configs/base.py", "--workdir=base"])
def test_a_config_is_printed_as_json_that_makes_it_again(name, capsys):
    assert main(["config", name, "--training.seed", "7"]) == 0
    expected = load_config("configs/base.py").replace({"training.seed": 7})
    assert Config.from_json(capsys.readouterr().out) == expected


def test_the_config_of_a_run_is_compared_with_others(run, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    archive = shutil.make_archive(str(tmp_path / "packed"), "gztar", tmp_path, "run")
    for other, expected in (
        ([], ["model.d_ff 2048 -> 64"]),
        ([run], ["no field differs"]),
        ([archive], ["no field differs"]),
        (["table3_small:base"], None),
    ):
        assert main(["config", run, "--diff", *other]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines == expected or (expected is None and "model.d_ff 256 -> 64" in lines)
    main(["config", "gpt2_small", "--diff", run])
    assert "data.task 'auto' -> 'language_modelling'" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "t2t-jax config takes a config, as in t2t-jax config runs/base; see --help"),
        (["nowhere"], "no config file configs/nowhere.py; give your config file, or one of"),
        (["base", "--diff", "nowhere"], "no config file configs/nowhere.py"),
        (["base", "--model.d-model", "7"], "d_model=7"),
        (["base", "--diff", ""], "--diff is given an empty value"),
    ],
)
def test_what_is_no_config_is_refused(arguments, message):
    with refused(match=message):
        main(["config", *arguments])


def test_a_dry_run_says_what_a_training_would_do_and_writes_nothing(tiny_run, tmp_path, capsys):
    workdir, config = tmp_path / "run", str(tiny_run.folder / "tiny.py")
    arguments = ["train", "--config", config, str(workdir), "--dry-run"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    steps = load_config(config).training.num_train_steps
    assert out.startswith(f"begins a run in {workdir}: steps 1 to {steps}, ")
    assert " pairs read, " in out
    assert " parameters, with a vocabulary of " in out
    assert out.endswith("only tokenized text remains, in the cache\n")
    assert not workdir.exists()
    assert [*tmp_path.glob(".dry-run-*")] == []
    with pytest.raises(UserError, match="nobody"):
        main([*arguments, "--track", "nobody:x"])
    with pytest.raises(UserError, match="--dry-run cannot be combined with --compile-only"):
        main([*arguments, "--compile-only"])
    with pytest.raises(UserError, match=r"parallel\.data=99"):
        main([*arguments, "--parallel.data", "99"])
    workdir.mkdir()
    with locked(workdir), pytest.raises(UserError, match="another process trains"):
        main(arguments)


def test_a_dry_run_refuses_a_disk_without_room_for_the_checkpoints(tiny_run, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    arguments = ["train", "--config", str(tiny_run.folder / "tiny.py"), str(tmp_path / "run")]
    with pytest.raises(UserError, match=r"has 0\.0 GiB free, but the checkpoints of the run need"):
        main([*arguments, "--dry-run"])


def test_a_dry_run_refuses_a_disk_on_which_nothing_can_be_written(tiny_run, tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    arguments = ["train", "--config", str(tiny_run.folder / "tiny.py"), str(tmp_path / "run")]
    with pytest.raises(UserError, match=rf"cannot write {tmp_path}/\S*: No space left on device"):
        main([*arguments, "--dry-run"])
    assert [*tmp_path.iterdir()] == []


@pytest.mark.thorough
def test_a_dry_run_of_two_processes_names_what_differs_between_them(tiny_run, tmp_path):
    printed = tiny_run.finish(tmp_path / "run", "--dry-run", processes=2)
    assert printed.splitlines()[-1].startswith("all checks have passed; ")
    assert [*tmp_path.iterdir()] == []
    place = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "train.py", f"--config={tiny_run.folder / 'tiny.py'}", "--dry-run"]
    command += [f"--coordinator={place}", "--num-processes=2"]
    programs = [
        subprocess.Popen(
            [*command, f"--workdir={tmp_path / name}", f"--process-id={number}"],
            cwd=Path(__file__).parents[2],
            stderr=subprocess.PIPE,
            text=True,
        )
        for number, name in enumerate(("run", "rnu"))
    ]
    errors = [program.communicate(timeout=300)[1] for program in programs]
    assert [program.returncode for program in programs] == [2, 2], errors
    for text in errors:
        assert "the name of --workdir of process 1 differs from process 0" in text
