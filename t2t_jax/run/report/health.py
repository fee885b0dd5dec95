"""The warnings of a training, and the reason why it ended before its last step."""

from collections.abc import Sequence

from t2t_jax.config import Config
from t2t_jax.run.history import History
from t2t_jax.run.report.page import Row, Section
from t2t_jax.system.records import Record


def health_sections(config: Config, log: Sequence[Record]) -> list[Section]:
    """Return the section with a run's warnings and the reason of an early end; [] without any."""
    history = History.of(log)
    rows: list[Row] = [(f"{one['step']:,}", one.get("text", "")) for one in history.warnings]
    end = history.end
    is_early = end is not None and end["step"] < config.training.num_train_steps
    notes = [end.get("text", "")] if end is not None and is_early else []
    header = ("step", "warning") if rows else ()
    return [Section("What the training said", notes, header, rows)] if rows or notes else []
