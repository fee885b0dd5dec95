"""Write an imported model as a run directory."""

from contextlib import closing
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from t2t_jax.config import MeshConfig
from t2t_jax.errors import UserError
from t2t_jax.extras.interchange.portable import PortableModel
from t2t_jax.modules import models, names
from t2t_jax.modules.network import declared_parameters
from t2t_jax.parallel.devices import local_devices
from t2t_jax.parallel.mesh import make_mesh
from t2t_jax.system import atomic_file, records
from t2t_jax.training.origin import Identity, make_origin
from t2t_jax.training.storage import open_manager, writing_checkpoints
from t2t_jax.workdir import CHECKPOINTS, claim_for_import


def write_run(model: PortableModel, workdir: Path, imported: records.Record) -> None:
    """Write a model atomically as a run directory with one checkpoint.

    Args:
      workdir: a missing or empty directory.
      imported: the record of the origin of the model, to store in the directory.
    """
    # "auto" becomes float32, as in the original program. The parameters may already be the average.
    changes = {"model.compute_dtype": model.config.model.dtype, "training.ema_decay": None}
    config = model.config.replace(changes)
    mesh = make_mesh(MeshConfig(), local_devices())
    network = models.make_model(config, len(model.vocabulary), mesh)
    shapes = nn.unbox(declared_parameters(network))
    try:
        params = jax.tree.map(jnp.asarray, names.parameters_of(model.arrays, shapes))
    except UserError as error:
        origin_name = imported.get("path", "the model")
        raise UserError(f"{origin_name}: {error}; its options belong to another model") from error
    step = model.steps[-1] if model.steps else 0
    with atomic_file.writing_directory(workdir) as new_directory:
        claim_for_import(new_directory, config, model.vocabulary, imported)
        directory = new_directory / CHECKPOINTS
        directory.mkdir()
        identity = Identity(config, {"vocabulary": model.vocabulary.fingerprint})
        items = ocp.args.Composite(
            params=ocp.args.StandardSave(params),
            origin=ocp.args.JsonSave(make_origin(identity, step, {"params": params})),
        )
        retention = ocp.checkpoint_managers.LatestN(1)
        with writing_checkpoints(directory), closing(open_manager(directory, retention)) as manager:
            manager.save(step, args=items, force=True)
            manager.wait_until_finished()
