"""The files of configs/, against numbers copied from the paper."""

import ast
import re
from functools import cache
from operator import attrgetter
from pathlib import Path

import pytest

import t2t_jax
from t2t_jax.config import Config
from t2t_jax.config.cost import num_parameters
from t2t_jax.config.file import load_config, load_grid
from t2t_jax.paper import TABLE_3

pytestmark = pytest.mark.usefixtures("forgotten_parts")

_ROOT = Path(t2t_jax.__file__).parents[1]
_FILES = sorted((_ROOT / "configs").glob("*.py"))

# Sections 3 and 5 for the base model, and 6.1; by attribute of the config.
_BASE = {
    "model.num_encoder_layers": 6,
    "model.num_decoder_layers": 6,
    "model.d_model": 512,
    "model.num_heads": 8,
    "model.key_size": 64,
    "model.value_size": 64,
    "model.d_ff": 2048,
    "model.norm_order": "post",
    "model.position": "sinusoidal",
    "model.share_embeddings": True,
    "model.dropout_rate": 0.1,
    "model.attention_dropout_rate": 0.0,
    "model.activation_dropout_rate": 0.0,
    "data.corpus": "wmt14-en-de:corpora/wmt14-en-de",
    "data.source_language": "en",
    "data.target_language": "de",
    "data.vocab_size": 37_000,
    "data.batching": "bucket",
    "data.source_tokens_per_step": 25_000,
    "data.target_tokens_per_step": 25_000,
    "training.num_train_steps": 100_000,
    "training.warmup_steps": 4000,
    "training.learning_rate_factor": 1.0,
    "training.adam_beta1": 0.9,
    "training.adam_beta2": 0.98,
    "training.adam_epsilon": 1e-9,
    "training.label_smoothing": 0.1,
    "checkpoint.every_steps": 1400,  # 10 minutes of 12 hours for 100,000 steps
    "checkpoint.average": 5,
    "decoding.beam_size": 4,
    "decoding.length_penalty": 0.6,
    "decoding.max_extra_length": 50,
    "decoding.temperature": 0.0,
}
# The bottom line of Table 3; 20 checkpoints are averaged, 10 minutes of 3.5 days apart (6.1).
_BIG = {
    "model.d_model": 1024,
    "model.d_ff": 4096,
    "model.num_heads": 16,
    "model.dropout_rate": 0.3,
    "training.num_train_steps": 300_000,
    "checkpoint.every_steps": 600,
    "checkpoint.average": 20,
}
_FRENCH = {
    "data.corpus": "wmt14-en-fr:corpora/wmt14-en-fr",
    "data.target_language": "fr",
    "data.vocab_size": 32_000,
}
_PARSING = {
    "model.num_encoder_layers": 4,
    "model.num_decoder_layers": 4,
    "model.d_model": 1024,
    "model.key_size": 128,
    "model.value_size": 128,
    "data.corpus": "trees:wsj",
    "data.vocab_size": 16_000,
    "data.max_length": 512,
    "training.learning_rate_factor": 0.5,  # from here: tensor2tensor's, the paper states none
    "training.warmup_steps": 16_000,
    "model.dropout_rate": 0.2,
    "model.attention_dropout_rate": 0.2,
    "decoding.beam_size": 21,
    "decoding.length_penalty": 0.3,
    "decoding.max_extra_length": 300,
}
# What configs for any corpus share; their vocabulary is not the paper's.
_ANY_CORPUS = {
    "data.corpus": "bundled:",
    "data.vocab_size": 32_768,
    "parallel.tokens_per_device": "auto",
}
_PRESETS = {
    "base": _ANY_CORPUS,
    "big": _BIG | _ANY_CORPUS,
    "ende_base": {},
    "ende_big": _BIG,
    "enfr_base": _FRENCH,
    "enfr_big": _BIG | _FRENCH | {"model.dropout_rate": 0.1},
    "ende_t2t": {
        "model.norm_order": "pre",
        "model.position": "sinusoidal_t2t",
        "model.attention_dropout_rate": 0.1,
        "model.activation_dropout_rate": 0.1,
        "data.vocab_size": 2**15,
        "data.source_tokens_per_step": 8 * 4096,
        "data.target_tokens_per_step": 8 * 4096,
        "training.num_train_steps": 250_000,
        "training.learning_rate_factor": 2.0,
        "training.warmup_steps": 8000,
        "training.adam_beta2": 0.997,
    },
    "ende_deep_encoder": {"model.num_encoder_layers": 12, "model.num_decoder_layers": 1},
    "parsing_wsj": _PARSING,
    "parsing_semi": _PARSING
    | {
        "data.corpus": "trees:wsj+silver",
        "data.vocab_size": 32_000,
        "training.warmup_steps": 4000,
        "model.dropout_rate": 0.1,
        "model.attention_dropout_rate": 0.0,
    },
}


def _load(name):
    return load_config(str(_ROOT / "configs" / f"{name}.py"))


@cache
def _configs(path):
    """All configs of a file."""
    if "VARIANTS" in path.read_text():
        return list(load_grid(str(path)).variants.values())
    return [load_config(str(path))]


def _values(config, paths):
    return {path: attrgetter(path)(config) for path in paths}


@pytest.mark.parametrize("name", _PRESETS)
def test_constants_of_a_preset_are_the_paper_s(name):
    expected = _BASE | _PRESETS[name] | {"parallel.tokens_per_device": "auto"}
    assert _values(_load(name), expected) == expected
    checkpoint = _load(name).checkpoint
    assert checkpoint.keep == checkpoint.average


def test_defaults_are_the_base_model_of_the_paper():
    expected = {path: value for path, value in _BASE.items() if path not in _ANY_CORPUS}
    assert _values(Config(), expected) == expected


def test_the_largest_config_has_a_billion_parameters():
    config = _load("billion")
    assert num_parameters(config.model, config.data.vocab_size) == pytest.approx(1e9, rel=0.01)
    assert _values(config, _ANY_CORPUS) == _ANY_CORPUS


def test_what_a_config_is_computed_in_is_left_to_the_devices_unless_its_figures_hang_on_it():
    chosen = {
        path.stem: config.model.compute_dtype
        for path in (_ROOT / "configs").glob("*.py")
        for config in _configs(path)
        if config.model.compute_dtype != "auto"
    }
    chosen_in_float32 = dict.fromkeys(("quickstart", "demo", "tiny", "breaking_lab"), "float32")
    assert chosen == {**chosen_in_float32, "billion": "bfloat16"}


# The columns of Table 3, whose numbers tests/test_paper.py compares with the printed ones.
_COLUMNS = {
    "model.num_encoder_layers": "num_layers",
    "model.num_decoder_layers": "num_layers",
    "model.d_model": "d_model",
    "model.d_ff": "d_ff",
    "model.num_heads": "num_heads",
    "model.key_size": "d_k",
    "model.value_size": "d_v",
    "model.dropout_rate": "dropout_rate",
    "model.position": "position",
    "training.label_smoothing": "label_smoothing",
    "training.num_train_steps": "num_train_steps",
}


def test_table_3_has_every_row_of_the_paper_and_its_figures():
    grid = load_grid(str(_ROOT / "configs/table3.py"))
    assert list(grid.variants) == list(TABLE_3)
    assert grid.base == "base"
    assert grid.published == TABLE_3


@pytest.mark.parametrize("row", TABLE_3)
def test_a_variant_is_its_row_of_table_3_and_in_all_else_the_base_model(row):
    config = load_config(f"{_ROOT / 'configs/table3.py'}:{row}")
    columns = {path: getattr(TABLE_3[row], column) for path, column in _COLUMNS.items()}
    expected = _BASE | {"checkpoint.average": 1} | columns  # section 6.2: no averaging
    assert _values(config, expected) == expected
    assert TABLE_3[row].settings == columns


@pytest.mark.parametrize("path", _FILES, ids=[path.stem for path in _FILES])
def test_a_config_file_loads_and_commands_in_its_docstring_train_it_and_fit_its_corpus(path):
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert all(isinstance(config, Config) for config in _configs(path))
    assert re.search(rf"t2t-jax (train|sweep) --config configs/{path.name}\b", docstring)
    (fitting,) = {config.data.facts.commands for config in _configs(path)}
    known = {*fitting, "train", "sweep", "data", "evaluate"}
    assert set(re.findall(r"t2t-jax ([\w-]+)", docstring)) <= known
    assert "\\\\" not in docstring  # it pastes into a shell
