"""Commands in messages are quoted for the shell: the paths have a space."""

import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from t2t_jax import Config, UserError
from t2t_jax.commands.entry import entry_command
from t2t_jax.extras.trackers import follower
from t2t_jax.extras.trackers.tracker import Target
from t2t_jax.run import trainer
from t2t_jax.system.opening import check_directory_name

RUN = Path("my runs/base")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    RUN.mkdir(parents=True)
    (RUN / "config.json").write_text(Config().to_json())
    return RUN


def words_after(text: str, start: str) -> list[str]:
    """Return the shell words that follow a text."""
    return shlex.split(" ".join(text.split()).partition(start)[2])


def refusal(call, *arguments) -> str:
    with pytest.raises(UserError) as refused:
        call(*arguments)
    return str(refused.value)


@pytest.mark.parametrize(
    ("splits", "flags"), [(("train", "dev", "test"), []), (("train", "dev"), ["--split", "dev"])]
)
def test_the_command_that_scores_a_run(run, splits, flags):
    corpus = SimpleNamespace(splits=splits)
    ended = SimpleNamespace(
        workdir=run, last_step=3, reason_to_stop=None, config=Config(), corpus=corpus, has_dev=True
    )
    _, advice = trainer._end_reason(ended, 3, 0)
    assert words_after(advice, "score: ") == ["t2t-jax", "evaluate", "--workdir", str(run), *flags]


def test_the_command_that_sends_the_rest_to_a_tracker(run, capsys):
    process = SimpleNamespace(
        stdin=SimpleNamespace(write=lambda text: None, close=lambda: None),
        poll=lambda: 1,
        kill=lambda: None,
        wait=lambda: None,
    )
    follower._stop_all(run, {Target("wandb", "my project"): process})
    words = words_after(capsys.readouterr().err, "this command sends the rest: ")
    assert words == ["t2t-jax", "track", str(run), "wandb:my project"]


def test_the_command_that_names_a_tracker(run):
    text = refusal(entry_command(["track", str(run)]).run)
    assert words_after(text, "as in ") == ["track", str(run), "wandb:translation"]


def test_the_command_that_packs_an_archive():
    text = refusal(check_directory_name, Path("my run.tar.gz"))
    assert words_after(text, "run: ") == ["tar", "-czf", "my run.tar.gz", "my run"]


def test_the_script_of_a_new_project(tmp_path, capsys):
    assert entry_command(["init", str(tmp_path / "my project")]).run() == 0
    words = words_after(capsys.readouterr().out, "and start ")
    assert words == [str(tmp_path / "my project" / "run.sh")]
