"""The origin of a checkpoint: a record of its step and its run, with a hash, and checksums.

A checkpoint belongs to a step of a run, and a run is a config, a vocabulary and a training text.
Every checkpoint records all four, so that it is not mistaken for one of another step or run, even
if its directory was renamed or copied.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jaxtyping import Array, PyTree, UInt32

from t2t_jax.config import Config, differences, format_differences, from_dict, to_dict
from t2t_jax.errors import UserError
from t2t_jax.system.records import Record, Schema, check, digest, schema
from t2t_jax.training.storage import Reader, UnreadableError, restore

NO_STEPS = 0.0, 0.0, 0.0
"""The window of a meter that has seen no step; see `run.meter.StepMeter`."""
_SEAL = "sha256"
_SCHEMA = schema(
    {"step": int, "config": dict, "sums": dict, "fingerprints": dict},
    {"for_safety": bool, "provenance": dict, "window": list[float]},
)


class Identity(NamedTuple):
    """The config and the hashes that identify a run."""

    config: Config
    fingerprints: Mapping[str, str]
    """Hashes of the run's `vocabulary` and training text (`corpus`), as far as they are known."""
    provenance: Record | None = None
    """The software that writes checkpoints of the run; it may differ between checkpoints."""


def seal(record: Record) -> Record:
    """Add a hash of its contents to a record, so that `unseal` detects any change."""
    return {**record, _SEAL: digest(record)}


def unseal(stored: Any, schema: Schema, place: Path) -> Record:
    """Return the record that `seal` sealed.

    Raises:
      UnreadableError: the record was changed.
    """
    try:
        check(stored, schema)
    except ValueError as error:
        raise UnreadableError(place, str(error)) from error
    record = {name: value for name, value in stored.items() if name != _SEAL}
    if stored.get(_SEAL) != digest(record):
        raise UnreadableError(place, "what it says of itself is not what was written")
    return record


def make_origin(
    identity: Identity,
    step: int,
    arrays: Mapping[str, PyTree[Array]],
    *,
    for_safety: bool = False,
    window: Sequence[float] | None = None,
) -> Record:
    """Make the record of a checkpoint's origin.

    Args:
      arrays: the arrays to save, by item.
      for_safety: whether averages leave the checkpoint out, as the config does not ask for it.
      window: sums of the steps that the log has no record of yet; see `run.meter`.
    """
    return seal(
        {
            "step": step,
            "config": to_dict(identity.config),
            "fingerprints": dict(identity.fingerprints),
            "sums": {name: _checksums(item) for name, item in arrays.items()},
            **({"for_safety": True} if for_safety else {}),
            **({"window": list(window)} if window else {}),
            **({"provenance": identity.provenance} if identity.provenance else {}),
        }
    )


def read_origin(manager: Reader, directory: Path, identity: Identity, step: int) -> Record:
    """Read the record of a checkpoint's origin, and refuse that of another step or run.

    Raises:
      UnreadableError: the record was changed.
      UserError: the checkpoint is complete, but belongs to another step or run.
    """
    place = directory / str(step)
    stored = restore(manager, directory, step, origin=ocp.args.JsonRestore())["origin"]
    origin = unseal(stored, _SCHEMA, place)
    if origin["step"] != step:
        raise UserError(
            f"checkpoint {place} is of step {origin['step']}: it is a copy of "
            f"{place.with_name(str(origin['step']))}, or that one under another name; remove it, "
            "or give it its name back"
        )
    try:
        changed = differences(identity.config, from_dict(origin["config"]), only_binding=True)
    except UserError as error:
        raise UnreadableError(place, str(error)) from error
    if changed:
        raise UserError(
            f"checkpoint {place} is of a run with another config than config.json "
            f"({format_differences(changed)}); remove it, or put it back to where it came from"
        )
    for name, fingerprint in origin["fingerprints"].items():
        if identity.fingerprints.get(name, fingerprint) != fingerprint:
            raise UserError(
                f"checkpoint {place} was trained with another {name} than this run's; bring the "
                f"run's own {name} back, or put the checkpoint back to where it came from"
            )
    return origin


def _checksums(arrays: PyTree[Array]) -> list[int]:
    return [int(each) for each in jax.device_get(_sums(arrays))]


@jax.jit
def _sums(arrays: PyTree[Array]) -> list[UInt32[Array, ""]]:
    return [checksum(x) for x in jax.tree.leaves(arrays)]


def checksum(x: Array) -> UInt32[Array, ""]:
    """Compute a weighted sum of an array's bits, which changes whenever a single element changes.

    The sum is modulo 2**32, so the order of the summands, and with it the layout over devices,
    makes no difference. The weights are odd, and differ between positions.
    """
    bits = jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}").astype(jnp.uint32)
    place = jnp.zeros(x.shape, jnp.uint32)
    for axis, size in enumerate(x.shape):
        place = place * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
    return (bits * (2 * place + 1)).sum(dtype=jnp.uint32)


def check_unaltered(restored: Mapping[str, PyTree[Array]], origin: Record, place: Path) -> None:
    """Refuse arrays that differ from the saved ones, as TensorStore has no checksum of values.

    Raises:
      UnreadableError: an array has other values.
    """
    for item, expected in origin["sums"].items():
        if item in restored and _checksums(restored[item]) != expected:
            raise UnreadableError(place, f"other values in {item} than were saved")
