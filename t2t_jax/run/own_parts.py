"""Compare the registered parts of a resumed run with those that the run was started with.

`W/registered/parts.json` has the learning rate at 16 steps, the tree of the optimizer state, and a
hash of each definition.
"""

import json
from itertools import islice
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from t2t_jax.config import Config
from t2t_jax.config.registered import registered_parts
from t2t_jax.errors import UserError
from t2t_jax.modules.network import Network, declared_parameters
from t2t_jax.parallel.processes import is_main
from t2t_jax.run.provenance import hash_of_definition
from t2t_jax.run.stored_parts import changed_fields, stored_parts
from t2t_jax.system.atomic_file import write_whole
from t2t_jax.system.records import Record
from t2t_jax.training.checkpoint_files import steps_of_run
from t2t_jax.training.optimizer import probe
from t2t_jax.training.recipe import make_optimizer
from t2t_jax.training.schedule import scheduled_rate
from t2t_jax.training.state import abstract_state
from t2t_jax.workdir import CHECKPOINTS, PARTS

_STEPS = [2**power for power in range(16)]


def compare_own_parts(config: Config, model: Network, mesh: Mesh, workdir: Path) -> None:
    """Refuse to resume a run with another schedule, optimizer or loss than it was started with.

    For a run without checkpoints, process 0 writes what a later call compares.
    """
    path, now = workdir / PARTS, _record(config, model, mesh)
    if not steps_of_run(workdir, CHECKPOINTS):
        if is_main() and any(now.values()):
            path.parent.mkdir(exist_ok=True)
            write_whole(path, json.dumps(now).encode())
        return
    stored = stored_parts(workdir)
    if stored is None:
        return
    rates = zip(_STEPS, stored.get("rates", ()), now.get("rates", ()), strict=False)
    for step, before, rate in rates:
        if not np.isclose(before, rate, rtol=1e-5, atol=0, equal_nan=True):
            raise _mismatch(config, "schedule", f"rate {before:.6g} at step {step}, not {rate:.6g}")
    if stored.get("state", now.get("state")) != now.get("state"):
        raise _mismatch(config, "optimizer", "another tree of state")
    if not np.allclose(stored.get("updates", ()), now.get("updates", ()), rtol=1e-4):
        raise _mismatch(config, "optimizer", "other updates")
    for field in changed_fields(stored["definitions"], now["definitions"]):
        raise _mismatch(config, field, "another definition")


def _mismatch(config: Config, field: str, difference: str) -> UserError:
    part = registered_parts(config)[field]
    return UserError(
        f"{part.title} is not the one that the run was started with, which has {difference}; "
        "bring it back, or choose another workdir"
    )


def _record(config: Config, model: Network, mesh: Mesh) -> Record:
    parts = registered_parts(config)
    # `check_registered` compares the files of parts that a file registered.
    hashes = {field: hash_of_definition(part) for field, part in parts.items() if not part.source}
    record: Record = {"definitions": hashes}
    if "schedule" in parts:
        width = config.model.scaling_width
        rates = [scheduled_rate(config.training, width, step) for step in _STEPS]
        record["rates"] = [float(rate) for rate in rates]
    if "optimizer" in parts:
        optimizer = make_optimizer(config, declared_parameters(model))
        record["updates"] = [*islice(probe(optimizer, declared_parameters(model)), 3)]
        state = abstract_state(config, model, mesh).optimizer
        record["state"] = str(jax.tree.map(lambda x: f"{x.dtype}{list(x.shape)}", state))
    return record
