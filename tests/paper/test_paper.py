"""The paper's figures: each is written here a second time, as the paper prints it."""

from operator import attrgetter

import pytest

from t2t_jax import paper
from t2t_jax.config import Config, walk

# Table 3 as printed: what a row does not list is as in the base model. Columns: label, N, d_model,
# d_ff, h, d_k, d_v, P_drop, eps_ls, train steps, PPL (dev), BLEU (dev), params (millions).
_PRINTED = """
base      6  512 2048  8  64  64 0.1 0.1 100K 4.92 25.8  65
A-h1      .    .    .  1 512 512   .   .    . 5.29 24.9   .
A-h4      .    .    .  4 128 128   .   .    . 5.00 25.5   .
A-h16     .    .    . 16  32  32   .   .    . 4.91 25.8   .
A-h32     .    .    . 32  16  16   .   .    . 5.01 25.4   .
B-dk16    .    .    .  .  16   .   .   .    . 5.16 25.1  58
B-dk32    .    .    .  .  32   .   .   .    . 5.01 25.4  60
C-N2      2    .    .  .   .   .   .   .    . 6.11 23.7  36
C-N4      4    .    .  .   .   .   .   .    . 5.19 25.3  50
C-N8      8    .    .  .   .   .   .   .    . 4.88 25.5  80
C-d256    .  256    .  .  32  32   .   .    . 5.75 24.5  28
C-d1024   . 1024    .  . 128 128   .   .    . 4.66 26.0 168
C-ff1024  .    . 1024  .   .   .   .   .    . 5.12 25.4  53
C-ff4096  .    . 4096  .   .   .   .   .    . 4.75 26.2  90
D-drop0.0 .    .    .  .   .   . 0.0   .    . 5.77 24.6   .
D-drop0.2 .    .    .  .   .   . 0.2   .    . 4.95 25.5   .
D-ls0.0   .    .    .  .   .   .   . 0.0    . 4.67 25.3   .
D-ls0.2   .    .    .  .   .   .   . 0.2    . 5.47 25.7   .
E-learned .    .    .  .   .   .   .   .    . 4.92 25.7   .
big       6 1024 4096 16   .   . 0.3   . 300K 4.33 26.4 213
"""


def _printed():
    rows = [line.replace("K", "000").split() for line in _PRINTED.strip().splitlines()]
    for label, *cells in rows:
        settings = [
            float(base if cell == "." else cell)
            for cell, base in zip(cells[:9], rows[0][1:10], strict=True)
        ]
        figures = [None if cell == "." else float(cell) for cell in cells[9:]]
        yield label, (*settings, *figures, "learned" if label == "E-learned" else "sinusoidal")


def test_table_3_is_as_printed_and_in_its_order():
    assert list(paper.TABLE_3.items()) == list(_printed())


def test_table_3_names_its_settings_by_attributes_of_the_config():
    for path in paper.TABLE_3["base"].settings:
        attrgetter(path)(Config())
    base, big = paper.TABLE_3["base"].settings, paper.TABLE_3["big"].settings
    assert {path: (base[path], big[path]) for path in base if base[path] != big[path]} == {
        "model.d_model": (512, 1024),
        "model.d_ff": (2048, 4096),
        "model.num_heads": (8, 16),
        "model.dropout_rate": (0.1, 0.3),
        "training.num_train_steps": (100_000, 300_000),
    }


def test_tables_2_and_4_and_their_test_sets_are_as_printed():
    assert paper.TABLE_2 == {"base": (27.3, 38.1, 3.3e18), "big": (28.4, 41.8, 2.3e19)}
    assert paper.TEST_SETS == {"dev": "newstest2013", "test": "newstest2014"}
    assert paper.TABLE_4 == {"WSJ only": 91.3, "semi-supervised": 92.7}
    assert paper.PARSING_TEST_SETS == {"dev": "WSJ section 22", "test": "WSJ section 23"}


@pytest.mark.parametrize(("size", "experiment"), [("base", {}), ("big", paper._BIG)])
def test_the_steps_between_averaged_checkpoints_are_ten_minutes_of_the_training(size, experiment):
    settings = paper.BASE_SETTINGS | experiment
    seconds_per_step = paper.TRAINING[size].seconds / settings["training.num_train_steps"]
    assert settings["checkpoint.every_steps"] * seconds_per_step == pytest.approx(600, rel=0.01)


@pytest.mark.parametrize(("size", "printed"), [("base", "3.3e+18"), ("big", "2.3e+19")])
def test_time_devices_and_sustained_rate_give_the_training_costs_of_table_2(size, printed):
    trained = paper.TRAINING[size]
    flops = paper.training_flops(trained.seconds * trained.devices, paper.P100_FLOPS)
    assert f"{flops:.1e}" == f"{paper.TABLE_2[size].training_flops:.1e}" == printed


def test_steps_take_the_time_that_section_5_2_says():
    hours = {
        size: paper.TABLE_3[size].num_train_steps * paper.TRAINING[size].seconds_per_step / 3600
        for size in ("base", "big")
    }
    assert hours["base"] == pytest.approx(12, rel=0.08)
    assert hours["big"] == pytest.approx(3.5 * 24, rel=0.08)


# Fields for which the paper has no value: data and machine, and what it leaves to the reader.
_NOT_STATED = {
    f"{section}.{name}"
    for section, names in {
        "model": """
            parametrisation base_width base_depth architecture prefix_attention patch_size
            image_size image_channels d_k d_v max_positions norm_epsilon
            first_position rotary_base rotary_scale rotary_scaling share_target_embedding
            share_source_embedding source_vocab_size start_token compute_dtype
        """,
        "data": """
            task fields window documents text_rows masked_share
            protected_tokens max_length dev_lines cache_dir prefetch
        """,
        "training": """
            schedule_steps loss init_step source_loss seed init_seed order_seed
            dropout_seed max_nonfinite_steps log_every_steps stop_after_evaluations_without_gain
        """,
        "checkpoint": "every_minutes keep keep_best keep_every",
        "evaluation": "metric every_steps num_sentences num_samples beam_size",
        "decoding": """
            beam_rule temperature top_k top_p tokens_per_batch quantize max_source_length
            long_lines min_length no_repeat_ngram_size forbidden forbidden_ids
        """,
        "parallel": """
            backend data fsdp hang_minutes loss_chunks remat rendezvous_minutes tensor
            tokens_per_device
        """,
    }.items()
    for name in names.split()
}
"""`d_k` and `d_v` are stated as `key_size` and `value_size`, and averages are not by the clock."""


def test_every_field_of_the_config_is_a_constant_of_the_paper_or_one_that_it_does_not_state():
    constants = {path for constant in paper.CONSTANTS for path in constant.values}
    fields = {path for path, _, _ in walk(Config())}
    assert constants & _NOT_STATED == set()
    assert constants - {"model.key_size", "model.value_size"} == fields - _NOT_STATED


def test_experiments_change_constants_and_nothing_else():
    constants = {path for constant in paper.CONSTANTS for path in constant.values}
    for changes in (*paper.EXPERIMENTS.values(), paper.TABLE_3_CHANGES):
        assert changes.keys() <= constants


def test_constants_are_numbered_by_the_sections_of_the_paper():
    sections = {
        *("3.1", "3.2.1", "3.2.2", "3.2.3", "3.3", "3.4", "3.5"),
        *("5.1", "5.2", "5.3", "5.4", "6.1"),
    }
    assert {constant.section for constant in paper.CONSTANTS} == sections
    names = [constant.name for constant in paper.CONSTANTS]
    assert len(set(names)) == len(names)


def test_a_row_of_table_3_makes_a_smaller_model_of_the_same_proportions():
    small = {name: row.changes(narrower=8, shallower=2) for name, row in paper.TABLE_3.items()}
    base = small["base"]
    assert [base[f"model.{name}"] for name in ("d_model", "d_ff", "d_k", "d_v")] == [
        64,
        256,
        None,
        None,
    ]
    assert base["model.num_encoder_layers"] == base["model.num_decoder_layers"] == 3
    differing = {
        name: {path: value for path, value in changes.items() if value != base[path]}
        for name, changes in small.items()
    }
    assert differing["A-h1"] == {"model.num_heads": 1}
    assert differing["B-dk16"] == {"model.d_k": 2}
    assert differing["C-N2"] == {"model.num_encoder_layers": 1, "model.num_decoder_layers": 1}
    assert differing["C-d256"] == {"model.d_model": 32}
    assert differing["E-learned"] == {"model.position": "learned"}
    for name, row in paper.TABLE_3.items():
        config = Config().replace(row.changes())
        assert (config.model.key_size, config.model.value_size) == (row.d_k, row.d_v), name
