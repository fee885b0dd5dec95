"""Compare the registered parts of a stored run with those that are registered now."""

from collections.abc import Mapping
from pathlib import Path

from t2t_jax.config import Config
from t2t_jax.config.registered import registered_parts
from t2t_jax.errors import UserError, warn
from t2t_jax.run.provenance import UNKNOWN, hash_of_definition
from t2t_jax.system.records import Record, read_object, schema
from t2t_jax.workdir import PARTS, check_registered

_SCHEMA = schema(
    {"definitions": dict}, {"rates": list[float], "state": str, "updates": list[float]}
)


def stored_parts(workdir: Path) -> Record | None:
    """Read the record of a run's registered parts, if there is one."""
    path = workdir / PARTS
    if not path.is_file():
        return None
    return read_object(path, _SCHEMA, "remove it if the registered parts are the same")


def warn_of_changed_parts(config: Config, workdir: Path) -> None:
    """Warn of each registered part that is not the one that a stored run was trained with."""
    stored = (stored_parts(workdir) or {}).get("definitions", {})
    parts = registered_parts(config)
    now = {field: hash_of_definition(part) for field, part in parts.items() if field in stored}
    for field in changed_fields(stored, now):
        warn(f"{parts[field].title} is not the one that {workdir} was trained with")
    try:
        check_registered(config, workdir)
    except UserError as error:
        warn(str(error))


def changed_fields(stored: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the fields whose two hashes of a definition are known and differ."""
    both = ((field, {before, now.get(field, before)}) for field, before in stored.items())
    return [field for field, hashes in both if len(hashes) > 1 and UNKNOWN not in hashes]
