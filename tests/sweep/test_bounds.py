"""Numbers with which a sweep would never end, and names that no directory can have."""

import pytest

from t2t_jax import Config, UserError, run_grid
from t2t_jax.commands.sweep import sweep_command
from t2t_jax.config.file import Grid
from t2t_jax.sweep.cell import RESULT, num_seeds_in
from t2t_jax.sweep.rules import GridRules, plan_grid

FACTOR = "--tune=training.learning_rate_factor"


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--seeds=1000000"], "2 rows x 1000000 seeds are 2,000,000 cells, more than 10,000; give"),
        (["--halving=rungs=1000000000000"], "rungs=1000000000000 is not from 2 to 100; give"),
        ([f"{FACTOR}=0.1:9:lin8000"], "x 8000 training.learning_rate_factor are 16,000 cells"),
        (["--vary=model.d_ff=1:9999:lin9999"], "x 9999 model.d_ff are 19,998 cells"),
    ],
)
def test_a_number_of_cells_without_end_is_refused(tmp_path, flags, message, more):
    grid = ["--config=base", "--vary=training.warmup_steps=10,20"]
    command = sweep_command([str(tmp_path / "runs"), *grid, *flags, *more], "t2t-jax sweep")
    with pytest.raises(UserError, match=message):
        command.run()
    assert not (tmp_path / "runs").exists()


def test_the_directory_of_a_far_seed_does_not_count(tmp_path):
    """A row whose seed was 10^12, and is 0 now."""
    for seed in (2, 10**12):
        (tmp_path / "base" / f"seed{seed}").mkdir(parents=True)
        (tmp_path / "base" / f"seed{seed}" / RESULT).touch()
    assert num_seeds_in(Grid({"base": Config()}, {}), tmp_path) == 3


@pytest.mark.parametrize("name", ["x" * 256, "é" * 128])
def test_a_row_name_longer_than_a_directory_can_have_is_refused(tmp_path, name):
    """File systems count bytes: an é in UTF-8 has two of them."""
    with pytest.raises(OSError, match="File name too long"):
        (tmp_path / name).mkdir()
    with pytest.raises(UserError, match=r"cannot name a directory; use .*, at most 255 bytes"):
        run_grid({"base": Config(), name: Config()}, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_tuned_values_count_in_the_name_of_a_row(tmp_path):
    rules = GridRules(tune={"training.learning_rate_factor": [1, 2]})
    with pytest.raises(UserError, match="at most 255 bytes"):
        plan_grid(Grid({"x" * 240: Config()}, {}), tmp_path, ["x" * 240], 1, rules)
