"""The warnings of a training, why it ended before its last step, and where its profiles are."""

from collections.abc import Sequence
from pathlib import Path

from t2t_jax.config import Config
from t2t_jax.run.history import History
from t2t_jax.run.report.page import Row, Section
from t2t_jax.system.records import Record


def health_sections(
    config: Config, log: Sequence[Record], profiles: Sequence[Path] = ()
) -> list[Section]:
    """Return the section with a run's warnings, its early end and its profiles; [] without any."""
    history = History.of(log)
    rows: list[Row] = [(f"{one['step']:,}", one.get("text", "")) for one in history.warnings]
    end = history.end
    is_early = end is not None and end["step"] < config.training.num_train_steps
    notes = [end.get("text", "")] if end is not None and is_early else []
    notes += [f"A profile, for xprof and Perfetto: {place}" for place in profiles]
    header = ("step", "warning") if rows else ()
    return [Section("What the training said", notes, header, rows)] if rows or notes else []
