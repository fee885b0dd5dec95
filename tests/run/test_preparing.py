"""A run that is prepared: what the loop is given, and what is held until it has ended."""

from functools import partial

import jax
import numpy as np
import pytest

from t2t_jax.errors import UserError
from t2t_jax.parallel.processes import locked
from t2t_jax.run.preparing import make_plan, open_run
from t2t_jax.training.state import init_state
from t2t_jax.workdir import read_config


def test_a_run_is_ready_for_its_first_step_and_its_directory_is_held(tiny_run, tmp_path, capsys):
    config, workdir = tiny_run.config, tmp_path / "run"
    with open_run(config, workdir) as run:
        assert int(run.state.step) == 0
        assert run.last_step == config.training.num_train_steps
        assert run.has_dev
        assert run.reason_to_stop is None
        assert read_config(workdir) == run.config
        rows = run.batches.shape(0).rows
        assert [*run.layout(run.batches.shape(0)).local_rows()[:rows]] == [*range(rows)]
        with pytest.raises(UserError, match="another process trains"), locked(workdir):
            pass
    assert f"step 1 of {run.last_step} begins" in capsys.readouterr().out
    assert (workdir / "log.jsonl").read_text() == ""


def equal(one, other):
    return all(map(np.array_equal, jax.tree.leaves(one), jax.tree.leaves(other)))


def parameters_and_batch(config, workdir):
    plan = make_plan(config, workdir)
    initial = jax.jit(partial(init_state, plan.config, plan.model))
    return initial().params, plan.batches(0)


@pytest.fixture(scope="module")
def base(tiny_run, tmp_path_factory):
    """A config, and the initial parameters and the first batch of its run."""
    config = tiny_run.config.replace({"training.seed": 3})
    return config, *parameters_and_batch(config, tmp_path_factory.mktemp("base") / "run")


@pytest.mark.parametrize(
    ("changes", "same_parameters", "same_batch"),
    [
        ({"training.init_seed": 4}, False, True),
        ({"training.order_seed": 4}, True, False),
        ({"training.dropout_seed": 4}, True, True),
        ({"training.seed": 4}, False, False),
        ({"training.seed": 4, "training.init_seed": 3, "training.order_seed": 3}, True, True),
    ],
)
def test_each_seed_changes_only_what_it_is_for(
    base, tmp_path, changes, same_parameters, same_batch
):
    config, params, batch = base
    found = parameters_and_batch(config.replace(changes), tmp_path / "run")
    assert equal(found[0], params) == same_parameters
    assert equal(found[1], batch) == same_batch
