"""Whether a run fits the memory there is: asked before anything is allocated, and if it did not."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import jax
from jax.sharding import Mesh

from t2t_jax.config import Config
from t2t_jax.cost import TrainingMemory, training_memory
from t2t_jax.errors import UserError
from t2t_jax.parallel.hardware import usable_memory
from t2t_jax.parallel.host import usable_host_memory
from t2t_jax.parallel.mesh import batch_layout, row_parts

_LESS_MEMORY = (
    "take less at once by parallel.tokens_per_device (or a smaller data.source_tokens_per_step and "
    "data.target_tokens_per_step), keep less by parallel.remat='layer' and parallel.loss_chunks=8, "
    "or share the parameters by parallel.fsdp (or make the model smaller)"
)
_LESS_TO_DECODE = "lower decoding.tokens_per_batch, decoding.beam_size or decoding.max_extra_length"
# As XLA words it where it allocates, and where an allocation fails in the middle of a program.
_EXHAUSTED = re.compile("RESOURCE_EXHAUSTED|Out of memory")


def check_memory(
    config: Config,
    vocab_size: int,
    mesh: Mesh,
    shapes: Iterable[tuple[int, int, int]] = (),
) -> None:
    """Refuse a run that cannot fit its devices. Nothing is allocated, traced or compiled.

    The estimate is a lower bound (`cost.training_memory`): a run that passes may still be too large
    by up to about a factor of two, and then ends as `out_of_memory` says.

    Args:
      config: the run.
      vocab_size: entries of the shared vocabulary.
      mesh: its devices.
      shapes: of its batches: rows, source length, target length. Without them only the state of
        the training is counted.

    Raises:
      UserError: it needs more memory than a device has.
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
            f"{_gib(available)}; {_LESS_MEMORY}"
        )


def out_of_memory(error: BaseException, *, decoding: bool = False) -> UserError | None:
    """What to tell where memory did not suffice; None if that was not the fault.

    Args:
      error: what compiling or computing has raised.
      decoding: whether that was in decoding, and not in training.
    """
    is_memory = isinstance(error, MemoryError)
    is_xla = isinstance(error, jax.errors.JaxRuntimeError)
    if not is_memory and not (is_xla and _EXHAUSTED.search(str(error))):
        return None
    way_out = _LESS_TO_DECODE if decoding else _LESS_MEMORY
    reason = " ".join(str(error).split("\n")[0].split())[:200]
    return UserError(f"out of memory{f' ({reason})' if reason else ''}; {way_out}")


@contextmanager
def within_memory(*, decoding: bool = False) -> Iterator[None]:
    """Within it, that memory did not suffice is an error in one line.

    Args:
      decoding: whether what is computed is decoding, and not training.

    Raises:
      UserError: memory did not suffice.
    """
    try:
        yield
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        told = out_of_memory(error, decoding=decoding)
        if told is None:
            raise
        raise told from error


def _of_batch(
    config: Config, vocab_size: int, mesh: Mesh, rows: int, source_length: int, target_length: int
) -> TrainingMemory:
    longest = max(source_length, target_length)
    layout = batch_layout(mesh, rows, longest, config.parallel.tokens_per_device)
    rows = layout.rows_per_pass // row_parts(mesh)
    return training_memory(config, vocab_size, rows, source_length, target_length, layout.passes)


def memory_of_a_device(mesh: Mesh) -> int | None:
    """Bytes; CPU devices of a process share what is left on its host."""
    devices = mesh.local_devices
    if devices[0].platform != "cpu":
        return usable_memory(devices)
    usable = usable_host_memory()
    return None if usable is None else usable // len(devices)


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"
