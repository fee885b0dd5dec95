"""No tensor and no option of a source file is dropped without a word.

Each one of a small model of each importer is altered in turn: then the import is refused, or the
imported model differs.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16
from safetensors.numpy import load_file, save_file

from t2t_jax import UserError
from tests.extras.interchange.models import GOLDENS, altered_json, copied, golden_model
from tests.selection import thorough_after

_TABLE = "model.decoder.embed_positions.weight"


def sinusoids(rows: int, frequency: np.ndarray) -> np.ndarray:
    """All sines, and then all cosines."""
    angle = np.arange(rows)[:, None] * frequency
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=1).astype(np.float32)


OF_TRANSFORMERS = sinusoids(256, 10_000 ** (-np.arange(0, 32, 2) / 32))
"""The positions that `MarianSinusoidalPositionalEmbedding` of transformers computes."""
OF_MARIAN = sinusoids(256, 10_000 ** (-np.arange(16) / 15))
"""The positions that Marian's C++ toolkit computes."""
OF_M2M100 = sinusoids(1026, 10_000 ** (-np.arange(8) / 7))
"""The positions of M2M100, in which the row of padding is 0."""
OF_M2M100[1] = 0

_MASKS = {
    "h.0.attn.bias": np.tri(64, dtype=np.uint8)[None, None],
    "h.0.attn.masked_bias": np.array(-1e4, np.float32),
    "lm_head.weight": load_file(GOLDENS / "pretrained/gpt2/model.safetensors")[
        "transformer.wte.weight"
    ],
}
_VERSION = {"model.encoder.version": np.array([3], np.float32)}
_CONSTANTS: dict[str, dict[str, np.ndarray]] = {
    "gpt2": _MASKS,
    "shared": {_TABLE: OF_TRANSFORMERS},
    "separate": {_TABLE: OF_TRANSFORMERS},
    "m2m100": {"model.encoder.embed_positions.weights": OF_M2M100},
    "mbart": _VERSION,
    "bart": _VERSION,
}
"""The models, with tensors that their files may hold besides parameters."""


def outcome(source: str, place: Path, **options: Any) -> Any:
    """An imported model as plain values, or the message of a refusal."""
    try:
        model = golden_model(source, place, **options)
    except UserError as error:
        return str(error)
    arrays = {name: array.tobytes() for name, array in model.arrays.items()}
    return model.config, model.vocabulary.fingerprint, arrays


@pytest.mark.parametrize("source", thorough_after(1, _CONSTANTS))
def test_each_altered_tensor_is_refused_or_changes_the_model(source, tmp_path):
    place = copied(source, tmp_path)
    file, constants = place / "model.safetensors", _CONSTANTS[source]
    before, tensors = outcome(source, place), load_file(file) | constants
    save_file(tensors, file)
    assert outcome(source, place) == before
    for name, array in tensors.items():
        save_file({**tensors, name: np.asarray(np.float32(1.5) * array + 1)}, file)
        found = outcome(source, place)
        assert found != before, name
        assert name not in constants or name in found


_BOTH = ["huggingface", "marian"]
_ONE_OTHER = np.float32(0.25) * (np.arange(256 * 32) == 3000).reshape(256, 32)


@pytest.mark.parametrize(
    ("table", "refused_by", "difference"),
    [
        (OF_TRANSFORMERS[:100], [], ""),
        (OF_TRANSFORMERS.astype(np.float16), [], ""),
        (OF_TRANSFORMERS.astype(bfloat16), [], ""),
        (OF_MARIAN, ["huggingface"], "2"),
        (OF_TRANSFORMERS + _ONE_OTHER, _BOTH, "0.25"),
        (OF_TRANSFORMERS + np.float32(0.003), _BOTH, "0.003"),
        (np.full_like(OF_TRANSFORMERS, np.nan), _BOTH, "nan"),
        (OF_TRANSFORMERS[None], _BOTH, "inf"),
    ],
)
@pytest.mark.parametrize("positions", _BOTH)
def test_a_table_of_positions_has_the_values_of_its_formula(
    table, refused_by, difference, positions, tmp_path
):
    place = copied("shared", tmp_path)
    file = place / "model.safetensors"
    save_file({**load_file(file), _TABLE: table}, file)
    refusal = f"has the array {_TABLE}, which differs by up to {difference}"
    found = outcome("shared", place, positions=positions)
    assert (refusal in found) == (positions in refused_by)


_WITHOUT_EFFECT = {
    *("architectures", "dtype", "transformers_version", "use_cache", "bos_token_id"),
    *("init_std", "initializer_range", "reorder_and_upcast_attn", "forced_eos_token_id"),
    *("static_position_embeddings", "classifier_dropout", "id2label", "label2id"),
    *("summary_activation", "summary_first_dropout", "summary_proj_to_labels"),
    *("summary_type", "summary_use_proj"),
}
_WITHOUT_EFFECT_IN = {
    "gpt2": "pad_token_id",
    "shared": "tie_word_embeddings",  # the file may have equal copies of the matrix
}


def other(value: Any) -> Any:
    """Return another value of the same kind."""
    if isinstance(value, str):
        return "relu" if value != "relu" else "gelu"
    return not value if isinstance(value, bool) else 2 * (value or 0) or 1


@pytest.mark.parametrize("source", thorough_after(2, _CONSTANTS))
def test_each_altered_option_is_refused_or_named_or_changes_the_model(source, tmp_path, capsys):
    place = copied(source, tmp_path)
    (place / "generation_config.json").unlink()  # which counts before config.json
    file = place / "config.json"
    content = json.loads(file.read_text(encoding="utf-8")) | {"num_attention_heads": 4}
    before = outcome(source, place)
    for name in content.keys() - _WITHOUT_EFFECT - {_WITHOUT_EFFECT_IN.get(source)}:
        altered_json(file, **{**content, name: other(content[name])})
        capsys.readouterr()
        found = outcome(source, place)
        assert found != before or f"{name}=" in capsys.readouterr().err, name
