"""Check that a training fits the memory of its devices and hosts before anything is allocated."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from t2t_jax.config import Config
from t2t_jax.errors import UserError
from t2t_jax.modules.cost import TrainingMemory, training_memory
from t2t_jax.parallel.memory import LESS_MEMORY, memory_of_a_device
from t2t_jax.parallel.mesh import batch_layout, row_parts
from t2t_jax.parallel.processes import is_main, one_without
from t2t_jax.system.bucket import BucketPath
from t2t_jax.system.host import usable_host_memory


def check_memory(
    config: Config,
    vocab_size: int,
    mesh: Mesh,
    shapes: Iterable[tuple[int, int, int]] = (),
) -> None:
    """Refuse a run that cannot fit its devices. Nothing is allocated, traced or compiled.

    The estimate is a lower bound (`modules.cost.training_memory`): a run that passes may still be
    too large by up to about a factor of two, and then ends as `parallel.memory.out_of_memory` says.

    Args:
      config: the config of the run.
      vocab_size: entries of the shared vocabulary.
      mesh: the devices.
      shapes: the shapes of its batches: rows, source length, target length. Without them only the
        state of the training is counted.

    Raises:
      UserError: the training needs more memory than a device has.
    """
    needed = max(
        (_of_batch(config, vocab_size, mesh, *shape) for shape in shapes),
        key=lambda memory: memory.total,
        default=training_memory(config, vocab_size),
    )
    available = memory_of_a_device(mesh)
    if available is not None and needed.total > available:
        platform = mesh.devices.flat[0].platform
        raise UserError(
            f"training needs at least {_gib(needed.total)} on each {platform} device (parameters "
            f"and optimizer {_gib(needed.state)}, gradients {_gib(needed.gradients)}, activations "
            f"{_gib(needed.activations)}, logits {_gib(needed.logits)}), but there are "
            f"{_gib(available)}; {LESS_MEMORY}"
        )


def check_gathering(state: Any, workdir: Path) -> None:
    """Refuse a run of several processes in a bucket whose state process 0 cannot gather.

    Args:
      state: a `jax.ShapeDtypeStruct` for every array of the state of the training.
      workdir: the run directory.

    Raises:
      UserError: in all processes, if the state is larger than the memory of process 0's host.
    """
    if jax.process_count() == 1 or not isinstance(workdir, BucketPath):
        return
    needed = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state))
    available = usable_host_memory()
    fits = not is_main() or available is None or needed <= available
    if one_without(fits) is not None:
        raise UserError(
            f"the state of the training is {_gib(needed)}, more than the memory that the host of "
            f"process 0 has left, where a checkpoint for a bucket is gathered; give a --workdir on "
            "a filesystem that the hosts share, where each writes its own part"
        )


def _of_batch(
    config: Config, vocab_size: int, mesh: Mesh, rows: int, source_length: int, target_length: int
) -> TrainingMemory:
    longest = max(source_length, target_length)
    layout = batch_layout(mesh, rows, longest, config.parallel.pass_tokens)
    rows = layout.rows_per_pass // row_parts(mesh)
    return training_memory(config, vocab_size, rows, source_length, target_length, layout.passes)


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"
