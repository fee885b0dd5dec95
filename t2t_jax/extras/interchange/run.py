"""The small form of a run, which `t2t_jax.load` and every command open as they do the run.

OUT/config.json ... README.md   as in the format safetensors
OUT/scores.jsonl ...            what the run recorded of its origin and its quality
OUT/SHA256SUMS                  the hash of each file
"""

from pathlib import Path

from t2t_jax.extras.interchange import safetensors
from t2t_jax.extras.interchange.portable import PortableModel
from t2t_jax.extras.interchange.safetensors import VOCABULARIES as VOCABULARIES
from t2t_jax.extras.interchange.safetensors import carried as carried
from t2t_jax.system.sums import write_sums


def write(model: PortableModel, directory: Path, dtype: str = "float32") -> None:
    """Write a run in its small form, with parameters in float32 or bfloat16."""
    write_without_sums(model, directory, dtype)
    write_sums(directory)


def write_without_sums(model: PortableModel, directory: Path, dtype: str) -> None:
    """Write the files of the small form but for SHA256SUMS, which follows any further files."""
    safetensors.write(model, directory, dtype)
    for name, content in model.records.items():
        (directory / name).write_bytes(content)
