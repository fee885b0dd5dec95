"""Runs with a loss, metrics and hooks of the user."""

import json

import jax
import jax.numpy as jnp
import pytest

from t2t_jax import UserError, train
from t2t_jax.training.checkpoint_files import steps_in
from t2t_jax.workdir import LOG_FIGURES
from tests.selection import thorough_after
from tests.trained import account, bits, records_of, timeless_log

STEPS = 12
pytestmark = pytest.mark.usefixtures("forgotten_parts")


@pytest.fixture(scope="module")
def config(tiny_run):
    fields = {"training.log_every_steps": 3, "checkpoint.every_steps": 4}
    return tiny_run.config.replace({**fields, "evaluation.every_steps": 6})


def half_nll(apply, batch, key):
    """Compute half the negative log-likelihood per token."""
    _, nll = apply.losses(batch, key, label_smoothing=0.0)
    mask = batch.targets.segments != 0
    return (nll * mask).sum(), 2 * mask.sum()


def accuracy(outputs, batch):
    mask = batch.targets.segments != 0
    correct = outputs.logits.argmax(-1) == batch.targets.tokens
    return {"token_accuracy": ((correct & mask).sum(), mask.sum()), "rows": (len(mask), 1)}


PARTS = {"loss": half_nll, "metrics": accuracy}


class Events(list):
    """A hook that stores its calls, and changes what it gets."""

    def __call__(self, step, metrics, state):
        assert step == metrics["step"]
        assert all(not x.is_deleted() for x in jax.tree.leaves(state))
        self.append((step, metrics["of"], int(state.step)))
        metrics.clear()
        state.params.clear()


@pytest.fixture(scope="module")
def plain(config, tmp_path_factory):
    """A run without hooks."""
    workdir = tmp_path_factory.mktemp("hooks") / "plain"
    assert train(config, workdir, **PARTS).exit_code == 0
    return workdir


def test_a_run_logs_an_own_loss_and_metrics(plain, capsys, config):
    for record in records_of(plain, "train"):
        assert record.keys() - LOG_FIGURES == {"token_accuracy", "rows"}
        assert record.keys().isdisjoint({"nll", "perplexity"})
        assert record["rows"] == 7
        assert 0 <= record["token_accuracy"] < 1
    assert 2.8 < records_of(plain, "train")[0]["loss"] < 3.2  # half of log(300) and a bit
    assert records_of(plain, "dev")[0]["nll"] > 5


def test_hooks_see_each_record_in_order_and_change_nothing(config, plain, tmp_path, capsys):
    events, others = Events(), Events()
    assert train(config, tmp_path / "run", **PARTS, hooks=[events, others]).exit_code == 0
    assert account(tmp_path / "run") == account(plain)
    assert (
        events
        == others
        == [
            *((3, "train", 3), (6, "train", 6), (4, "checkpoint", 6), (6, "checkpoint", 6)),
            *((6, "dev", 6), (9, "train", 9), (12, "train", 12), (8, "checkpoint", 12)),
            *((12, "checkpoint", 12), (12, "dev", 12)),
        ]
    )
    assert "token_accuracy 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "step"),
    thorough_after(1, [("train", 9), ("dev", 6), ("checkpoint", 4)], unpacked=True),
)
def test_a_hook_that_raises_leaves_a_checkpoint_from_which_the_run_resumes(
    config, plain, tmp_path, kind, step
):
    def stopping(now, metrics, state):
        if (metrics["of"], now) == (kind, step):
            raise ValueError("enough\nof it")

    events, message = Events(), rf"hook .*stopping failed at step {step} \({kind}\): ValueError: en"
    with pytest.raises(UserError, match=message) as refused:
        train(config, tmp_path / "run", **PARTS, hooks=[stopping, events])
    assert isinstance(refused.value.__cause__, ValueError)
    stopped = max(steps_in(tmp_path / "run" / "checkpoints"))
    assert stopped == {"train": 9, "dev": 6, "checkpoint": 6}[kind]
    assert records_of(tmp_path / "run", "end")[-1]["text"].startswith("error: hook")
    assert (step, kind) not in [event[:2] for event in events]
    assert train(config, tmp_path / "run", **PARTS, hooks=[events]).exit_code == 0
    assert bits(tmp_path / "run") == bits(plain)


def test_a_window_of_the_log_resumes_with_its_metrics(config, plain, tmp_path):
    for until in (7, None):
        assert train(config, tmp_path / "run", **PARTS, until=until).exit_code == 0
    kinds = "train", "dev"
    both = [timeless_log(workdir) for workdir in (tmp_path / "run", plain)]
    resumed, whole = ([line for line in log if json.loads(line)["of"] in kinds] for log in both)
    assert resumed == whole
    assert bits(tmp_path / "run") == bits(plain)


def test_an_interrupt_in_a_hook_passes(config, tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", hooks=[interrupted])


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"hooks": print}, r"hooks=<.*print> is not a list; give hooks=\[function, \.\.\.\]"),
        ({"hooks": [7]}, r"^hooks\[0\]=7 cannot be called with \(step, metrics, state\): 7 is not"),
        ({"hooks": [print, lambda a, b: 0]}, r"hooks\[1\]=.*: too many positional arguments"),
        ({"loss": lambda apply: 0}, r"cannot be called with \(apply, batch, key\): too many"),
        ({"metrics": jnp.ones(())}, r"metrics=.* cannot be called with \(outputs, batch\)"),
        ({"metrics": lambda outputs, batch: 0}, r"metrics .*<lambda> returns 0; return a dict of"),
    ],
)
def test_a_part_of_another_form_is_refused_before_anything_is_written(
    config, tmp_path, parts, message
):
    with pytest.raises(UserError, match=message):
        train(config, tmp_path / "run", **parts)
    assert not (tmp_path / "run").exists()


_PLANTED = """
from functools import partial
from pathlib import Path
from runpy import run_path
import jax
import t2t_jax.run.trainer as trainer

def hook(step, metrics, state):
    with Path(f"{folder}/events-{{jax.process_index()}}").open("a") as file:
        file.write(f"{{step}} {{metrics['of']}}\\n")
    if step == 6 and jax.process_index() == 1:
        raise ValueError("enough")

trainer.train = partial(trainer.train, hooks=[hook])
get_config = run_path({path!r})["get_config"]
"""


@pytest.mark.thorough
def test_processes_end_together_where_a_hook_of_one_raises(tiny_run, tmp_path):
    text = _PLANTED.format(folder=tmp_path, path=str(tiny_run.folder / "tiny.py"))
    (tmp_path / "tiny.py").write_text(text)
    planted, flags = tiny_run._replace(folder=tmp_path), ["--training.log_every_steps=3"]
    programs = planted.start(tmp_path / "run", *flags, processes=2)
    errors = [program.communicate(timeout=300)[1] for program in programs]
    assert [program.returncode for program in programs] == [2, 2], errors
    assert "a hook of process 1 failed; see its error message" in errors[0]
    assert "hook hook failed at step 6 (train): ValueError: enough" in errors[1]
    assert max(steps_in(tmp_path / "run" / "checkpoints")) == 6
    events = [(tmp_path / f"events-{index}").read_text() for index in (0, 1)]
    assert events[0] == events[1] == "3 train\n2 checkpoint\n6 train\n"
