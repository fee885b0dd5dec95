"""Export a run without its checkpoints; `t2t_jax.load` and every command open the result as a run.

OUT/config.json ... README.md   files of the format safetensors
OUT/scores.jsonl ...            records of origin and quality
OUT/SHA256SUMS                  hash of each file
"""

from pathlib import Path

from t2t_jax.extras.interchange import safetensors
from t2t_jax.extras.interchange.portable import PortableModel
from t2t_jax.extras.interchange.safetensors import VOCABULARIES as VOCABULARIES
from t2t_jax.extras.interchange.safetensors import carried as carried
from t2t_jax.system.sums import write_sums


def write(model: PortableModel, directory: Path, dtype: str = "float32") -> None:
    """Write a run without its checkpoints, with parameters in float32 or bfloat16."""
    write_without_sums(model, directory, dtype)
    write_sums(directory)


def write_without_sums(model: PortableModel, directory: Path, dtype: str) -> None:
    """Write a run without checkpoints and SHA256SUMS, so that the caller can add files."""
    safetensors.write(model, directory, dtype)
    for name, content in model.records.items():
        (directory / name).write_bytes(content)
