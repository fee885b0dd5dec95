"""Write runs without checkpoints; `t2t_jax.load` and every command open the result as a run.

OUT/config.json ... README.md   files of the format safetensors
OUT/scores.jsonl ...            records of origin and quality
OUT/SHA256SUMS                  hash of each file
"""

import json
from dataclasses import replace
from pathlib import Path

import flax.linen as nn

from t2t_jax.errors import UserError
from t2t_jax.extras.interchange import safetensors
from t2t_jax.extras.interchange.portable import PortableModel
from t2t_jax.extras.interchange.safetensors import VOCABULARIES as VOCABULARIES
from t2t_jax.extras.interchange.safetensors import carried as carried
from t2t_jax.modules import models, names
from t2t_jax.modules.network import declared_parameters
from t2t_jax.system.atomic_file import writing_directory
from t2t_jax.system.records import Record
from t2t_jax.system.sums import write_sums
from t2t_jax.workdir import IMPORTED, keep_registered


def write(model: PortableModel, directory: Path, dtype: str = "float32") -> None:
    """Write a run without its checkpoints, with parameters in float32 or bfloat16."""
    safetensors.write(model, directory, dtype)
    for name, content in model.records.items():
        (directory / name).write_bytes(content)
    write_sums(directory)


def write_run(model: PortableModel, workdir: Path, imported: Record) -> None:
    """Write a model atomically as a run directory with a parameter file.

    Args:
      workdir: a missing or empty directory.
      imported: the record of the origin of the model, to store in the directory.
    """
    # "auto" becomes float32, as in the original program. The parameters may already be the average.
    changes = {"model.compute_dtype": model.config.model.dtype, "training.ema_decay": None}
    config = model.config.replace(changes)
    network = models.make_model(config, len(model.vocabulary), None)
    try:
        names.parameters_of(model.arrays, nn.unbox(declared_parameters(network)))
    except UserError as error:
        origin_name = imported.get("path", "the model")
        raise UserError(f"{origin_name}: {error}; its options belong to another model") from error
    records = {IMPORTED: f"{json.dumps(imported, indent=2)}\n".encode()}
    model = replace(model, config=config, steps=model.steps or (0,), records=records)
    with writing_directory(workdir) as new_directory:
        keep_registered(config, new_directory)
        write(model, new_directory)
