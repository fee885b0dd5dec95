"""Grids that --vary makes, against products written by hand, and the files that they amount to."""

import pytest

from t2t_jax import Config
from t2t_jax.commands.sweep import sweep_command
from t2t_jax.commands.vary import choices_of, values_in
from t2t_jax.config.file import load_config, load_grid
from tests.refusals import refused

D_FF, FACTOR = "model.d_ff", "training.learning_rate_factor"


def grid_of(*arguments):
    return sweep_command([*arguments], "t2t-jax sweep")._grid()


def test_lists_are_multiplied_and_fields_of_one_vary_are_zipped():
    both = "model.d_model=128,256 model.num-heads=4,8"
    grid = grid_of("--config", "base", "--vary", both, f"--vary={D_FF}=1024,512")
    base = load_config("base")
    expected = {
        f"d_model={width},num_heads={heads},d_ff={inner}": base.replace(
            {"model.d_model": width, "model.num_heads": heads, D_FF: inner}
        )
        for width, heads in ((128, 4), (256, 8))
        for inner in (1024, 512)
    }
    assert grid.variants == expected
    assert [*grid.variants] == [*expected]
    assert grid_of("--config", "base", "--vary", *both.split()).variants.keys() == {
        *("d_model=128,num_heads=4", "d_model=256,num_heads=8")
    }


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("0.5:2:log5", [0.5, 0.7071, 1.414, 2.0]),  # 1.0 is the base's own
        ("1:2:lin3", [1.5, 2.0]),
        ("0.25:4:log3,8", [0.25, 4.0, 8.0]),
    ],
)
def test_a_range_has_both_ends_short_numbers_and_the_bases_own_value_first(values, expected):
    assert choices_of([f"{FACTOR}={values}"], Config()) == {FACTOR: [1.0, *expected]}


def test_the_parameter_of_a_part_in_the_base_comes_first():
    path, base = "training.schedule", Config().replace({"training.schedule": "wsd"})
    parameter, texts = f"{path}.decay_fraction", [f"wsd(decay_fraction={x})" for x in (0.2, 0.1)]
    assert choices_of([f"{parameter}=0.2,0.1"], base) == {parameter: [0.1, 0.2]}
    assert choices_of([f"{path}={','.join(texts)}"], base) == {path: texts[::-1]}
    assert base.value(parameter) == 0.1


def test_ranges_keep_the_rounding_that_names_the_rows_of_existing_grids():
    values = values_in("--vary", FACTOR, "1e-4:0.3:lin21")
    assert values[1] == 0.0151  # NumPy's spacing gives 0.01509
    assert values_in("--vary", "training.seed", f"0:{10**26}:lin2") == [0, 10**26]
    path = "training.schedule.decay_fraction"
    assert values_in("--vary", path, "0.1,0.2") == [0.1, 0.2]
    assert values_in("--vary", "training.schedule", "a(x=1,y=2),b") == ["a(x=1,y=2)", "b"]


def test_values_have_the_type_of_their_field():
    base = Config()
    assert choices_of([f"{D_FF}=64:512:log4"], base) == {D_FF: [64, 128, 256, 512]}
    assert choices_of(["model.num_kv_heads=None,2"], base) == {"model.num_kv_heads": [None, 2]}
    assert choices_of(["data.batching=pack,bucket"], base) == {"data.batching": ["bucket", "pack"]}
    choices = choices_of(["model.share_embeddings=False,True"], base)
    assert choices == {"model.share_embeddings": [True, False]}


def test_the_file_that_a_grid_amounts_to_gives_the_same_grid(tmp_path):
    flags = ["--vary", f"{D_FF}=64,128 {FACTOR}=1,0.3", "--vary", "data.batching=pack,bucket"]
    flags += ["--training.num-train-steps", "7", "--data.corpus", "text:a 'b' \"c\""]
    grid = grid_of("--config", "lm_small", *flags)
    path = tmp_path / "grid.py"
    path.write_text(grid.source, encoding="utf-8")
    again = load_grid(str(path))
    assert again == grid
    assert [*again.variants] == [*grid.variants]
    assert {config.training.num_train_steps for config in again.variants.values()} == {7}
    assert "--vary data.batching=pack,bucket" in grid.source.splitlines()[0]


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        (["model.dff=1,2"], "unknown config field 'model.dff'; did you mean model.d_ff?"),
        ([D_FF], "'model.d_ff' is not FIELD=VALUES, as in --vary model.d_ff=1024,2048"),
        ([""], "'' is not FIELD=VALUES"),
        ([f"{D_FF}=a,2"], "--vary model.d_ff=a: 'a' is not INT"),
        (["model.norm_order=pre,psot"], "'psot' is not post|pre"),
        ([f"{D_FF}=8:4:lin3"], "is an empty range; write LOW:HIGH:linN"),
        ([f"{D_FF}=4:8:lin1"], "is an empty range"),
        ([f"{FACTOR}=0:1:log3"], "has no geometric steps from 0.0; begin above 0, or use lin"),
        ([f"{D_FF}=1:3:lin9"], "has only 3 different whole numbers; ask for fewer"),
        (["model.norm_order=post:pre:log2"], "is a range, but model.norm_order takes no numbers"),
        ([f"{D_FF}=64"], "is 64 in every row of --vary 'model.d_ff=64'; give it several values"),
        ([f"{D_FF}=64"], "set it for all rows by --model.d-ff 64"),
        ([f"{D_FF}=64,128,64"], "has model.d_ff=64 twice; list every value once"),
        ([f"{D_FF}=64,128 {FACTOR}=1,2,3"], "have 2 and 3 values; give each as many"),
        ([f"{D_FF}=64,128", f"{D_FF}=1,2"], "names model.d_ff twice"),
        (["data.corpus=text:a,text:b"], "text:a cannot name a variant's directory"),
    ],
)
def test_a_vary_that_makes_no_grid_is_refused_in_one_line(factors, message):
    with refused(message):
        choices_of(factors, Config())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vary", f"{D_FF}=1,2"], "--vary varies the fields of a config; name one, as in"),
        (["--config", "base", "--vary", "model.num_heads=3,5"], "not divisible by num_heads=3"),
        (["--config", "base", "--model.d-ff", "3"], "need --vary; without it, set the fields in"),
        (["--config", "base"], "use --vary to make a grid from one config"),
        (["--config", "base", "--vary", f"{D_FF}=1,2", "w"], "put the directory before flags"),
        (["--config", "table3", "--vary", f"{D_FF}=1,2"], "name a variant as"),
        (["--seeds", "2"], "or the directory of a grid; see --help"),
    ],
)
def test_a_sweep_without_a_grid_is_refused_with_the_way_to_one(arguments, message):
    with refused(message):
        grid_of(*arguments)


@pytest.mark.usefixtures("tables")
def test_the_file_of_a_grid_says_which_file_registers_what_its_rows_name(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from t2t_jax import Config, register_activation\n"
        "register_activation('halved', lambda x: x / 2)\n"
        "def get_config():\n"
        "    return Config().replace({'model.feed_forward': 'halved'})\n"
    )
    lines = grid_of("--config", str(mine), "--vary", f"{D_FF}=8,16").source.splitlines()
    assert f"# It names functions that other files register: set T2T_JAX_REGISTER={mine}" in lines
