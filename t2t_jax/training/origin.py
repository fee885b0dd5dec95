"""Record and check the origin of a checkpoint: its step, its run and checksums of its arrays.

The origin stores the step, the config, and hashes of the vocabulary and the training text. The
reader thus detects checkpoints of another step or run, even in renamed directories.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jaxtyping import Array, PyTree, UInt32

from t2t_jax.config import Config, differences, format_differences, from_stored, to_dict
from t2t_jax.errors import UserError
from t2t_jax.system.records import Record, Schema, check, digest, schema
from t2t_jax.training.storage import Reader, UnreadableError, restore

_SEAL = "sha256"
_SCHEMA = schema(
    {"step": int, "config": dict, "sums": dict, "fingerprints": dict},
    {"for_safety": bool, "provenance": dict, "window": list[float]}
    | {"pairs": dict[str, tuple[float, float]]},
)


class Window(NamedTuple):
    """Sums over the steps since the last log record; see `run.meter`. The default is no step."""

    losses: Sequence[float] = (0.0, 0.0, 0.0)
    """The smoothed loss, the NLL and the target tokens."""
    pairs: Mapping[str, Sequence[float]] = {}
    """Sums and weights of a custom loss and of metrics, by name."""


class Identity(NamedTuple):
    """The config and the hashes that identify a run."""

    config: Config
    fingerprints: Mapping[str, str]
    """Hashes of the run's `vocabulary` and training text (`corpus`), where known."""
    provenance: Record | None = None
    """The software that writes checkpoints of the run; it may differ between checkpoints."""


def seal(record: Record) -> Record:
    """Add a SHA-256 hash of a record to it, so that `unseal` detects any change."""
    return {**record, _SEAL: digest(record)}


def unseal(stored: Any, schema: Schema, path: Path) -> Record:
    """Check the hash that `seal` added to a record, and return the record without it.

    Raises:
      UnreadableError: the record was changed.
    """
    try:
        check(stored, schema)
    except ValueError as error:
        raise UnreadableError(path, str(error)) from error
    record = {name: value for name, value in stored.items() if name != _SEAL}
    if stored.get(_SEAL) != digest(record):
        raise UnreadableError(path, "the hash of its origin record does not match")
    return record


def make_origin(
    identity: Identity,
    step: int,
    arrays: Mapping[str, PyTree[Array]],
    *,
    for_safety: bool = False,
    window: Window | None = None,
) -> Record:
    """Make the record of a checkpoint's origin.

    Args:
      arrays: the arrays to save, by item.
      for_safety: True for an unscheduled checkpoint, which averages skip.
      window: sums over the steps since the last log record; see `run.meter`.
    """
    return seal(
        {
            "step": step,
            "config": to_dict(identity.config),
            "fingerprints": dict(identity.fingerprints),
            "sums": {name: _checksums(item) for name, item in arrays.items()},
            **({"for_safety": True} if for_safety else {}),
            **({"window": list(window.losses)} if window else {}),
            **({"pairs": dict(window.pairs)} if window and window.pairs else {}),
            **({"provenance": identity.provenance} if identity.provenance else {}),
        }
    )


def read_origin(manager: Reader, directory: Path, identity: Identity, step: int) -> Record:
    """Read the origin of a checkpoint, and refuse a checkpoint of another step or run.

    Raises:
      UnreadableError: the record was changed.
      UserError: the checkpoint is complete, but belongs to another step or run.
    """
    path = directory / str(step)
    stored = restore(manager, directory, step, origin=ocp.args.JsonRestore())["origin"]
    origin = unseal(stored, _SCHEMA, path)
    if origin["step"] != step:
        raise UserError(
            f"checkpoint {path} is of step {origin['step']}: it is a copy of "
            f"{path.with_name(str(origin['step']))}, or was renamed; remove it, or restore its name"
        )
    try:
        changed = differences(identity.config, from_stored(origin["config"]), only_binding=True)
    except UserError as error:
        raise UnreadableError(path, str(error)) from error
    if changed:
        raise UserError(
            f"checkpoint {path} is of a run with another config than config.json "
            f"({format_differences(changed)}); remove it, or move it back to its run"
        )
    for name, fingerprint in origin["fingerprints"].items():
        if identity.fingerprints.get(name, fingerprint) != fingerprint:
            raise UserError(
                f"checkpoint {path} was trained with another {name} than this run; restore the "
                f"{name} of the run, or move the checkpoint back to its run"
            )
    return origin


def _checksums(arrays: PyTree[Array]) -> list[int]:
    return [int(total) for total in jax.device_get(_sums(arrays))]


@jax.jit
def _sums(arrays: PyTree[Array]) -> list[UInt32[Array, ""]]:
    return [checksum(x) for x in jax.tree.leaves(arrays)]


def checksum(x: Array) -> UInt32[Array, ""]:
    """Compute a weighted sum of the bits of an array, modulo 2**32.

    Any change of a single element changes the sum. The sum does not depend on the sharding. The
    weights are odd, and differ between positions.
    """
    bits = jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}").astype(jnp.uint32)
    position = jnp.zeros(x.shape, jnp.uint32)
    for axis, size in enumerate(x.shape):
        position = position * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
    return (bits * (2 * position + 1)).sum(dtype=jnp.uint32)


def check_unaltered(restored: Mapping[str, PyTree[Array]], origin: Record, path: Path) -> None:
    """Refuse arrays whose checksums differ from the saved ones.

    Raises:
      UnreadableError: an array has other values.
    """
    # TensorStore stores no checksum of values, so it does not detect flipped bits.
    for item, expected in origin["sums"].items():
        if item in restored and _checksums(restored[item]) != expected:
            raise UnreadableError(path, f"{item} has other values than were saved")
