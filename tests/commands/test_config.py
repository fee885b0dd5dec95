"""The commands that show what a training would be: `config`, and `train --dry-run`."""

import shutil

import pytest

from t2t_jax.__main__ import main
from t2t_jax.commands.entry import entry_command
from t2t_jax.config import Config
from t2t_jax.config.file import load_config
from t2t_jax.errors import UserError
from t2t_jax.parallel.directory_lock import locked


@pytest.fixture
def run(tmp_path):
    workdir = tmp_path / "run"
    workdir.mkdir()
    (workdir / "config.json").write_text(Config().replace({"model.d_ff": 64}).to_json())
    return str(workdir)


def test_every_command_takes_the_name_of_a_config_of_the_package(tmp_path):
    command = entry_command(["train", "--config", "table3_small:base", str(tmp_path)])
    assert command.fields == load_config("configs/table3_small.py:base")


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
        (["nowhere"], "no config file configs/nowhere.py; give a file of your own, or one of"),
        (["base", "--diff", "nowhere"], "no config file configs/nowhere.py"),
        (["base", "--model.d-model", "7"], "d_model=7"),
        (["base", "--diff", ""], "--diff is given an empty value"),
    ],
)
def test_what_is_no_config_is_refused(arguments, message):
    with pytest.raises(UserError, match=message) as refusal:
        main(["config", *arguments])
    assert "\n" not in str(refusal.value)


def test_a_dry_run_says_what_a_training_would_do_and_writes_nothing(tiny_run, tmp_path, capsys):
    workdir, config = tmp_path / "run", str(tiny_run.folder / "tiny.py")
    arguments = ["train", "--config", config, str(workdir), "--dry-run"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    steps = load_config(config).training.num_train_steps
    assert out.startswith(f"begins a run in {workdir}: steps 1 to {steps}, ")
    assert " pairs read, " in out
    assert " parameters, with a vocabulary of " in out
    assert out.endswith("nothing was written but tokenised text in the cache\n")
    assert not workdir.exists()
    with pytest.raises(UserError, match="nobody"):
        main([*arguments, "--track", "nobody:x"])
    with pytest.raises(UserError, match="--dry-run are for a training, not for --compile-only"):
        main([*arguments, "--compile-only"])
    with pytest.raises(UserError, match=r"parallel\.data=99"):
        main([*arguments, "--parallel.data", "99"])
    workdir.mkdir()
    with locked(workdir), pytest.raises(UserError, match="another process trains"):
        main(arguments)
