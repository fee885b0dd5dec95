"""The writer of an imported model as a run directory, which commands use as any other run."""

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
    """Write a model as a run directory with one checkpoint: all of it, or nothing.

    The run computes in float32 unless the config names a dtype, as the original program did.

    Args:
      workdir: a directory that does not exist yet, or is empty.
      imported: a record of the origin of the model, which the directory keeps.
    """
    one_set = {"training.ema_decay": None}  # of parameters, which may be that average
    config = model.config.replace({"model.compute_dtype": model.config.model.dtype, **one_set})
    mesh = make_mesh(MeshConfig(), local_devices())
    network = models.make_model(config, len(model.vocabulary), mesh)
    like = nn.unbox(declared_parameters(network))
    try:
        params = jax.tree.map(jnp.asarray, names.parameters_of(model.arrays, like))
    except UserError as error:
        place = imported.get("path", "the model")
        raise UserError(f"{place}: {error}; its options are those of another model") from error
    step = model.steps[-1] if model.steps else 0
    with atomic_file.writing_directory(workdir) as place:
        claim_for_import(place, config, model.vocabulary, imported)
        directory = place / CHECKPOINTS
        directory.mkdir()
        identity = Identity(config, {"vocabulary": model.vocabulary.fingerprint})
        items = ocp.args.Composite(
            params=ocp.args.StandardSave(params),
            origin=ocp.args.JsonSave(make_origin(identity, step, {"params": params})),
        )
        keep = ocp.checkpoint_managers.LatestN(1)
        with writing_checkpoints(directory), closing(open_manager(directory, keep)) as manager:
            manager.save(step, args=items, force=True)
            manager.wait_until_finished()
