"""The section on the software that trained a run."""

from collections.abc import Sequence
from itertools import pairwise

from t2t_jax.run.provenance import COMPUTING, changes
from t2t_jax.run.report.page import UNKNOWN, Row, Section
from t2t_jax.system.records import Record


def software_section(software: Sequence[Record]) -> Section:
    """Return the section with the code and the packages that trained a run.

    Args:
      software: the result of `read_provenance`.
    """
    if not software:
        return Section("Software", ["The software of the training is not recorded."])
    notes = [
        f"From step {now['first_step'] + 1:,} on, other software continued the training: "
        f"{', '.join(changes(before, now))}."
        for before, now in pairwise(software)
    ]
    rows = [_row(one) for one in software]
    return Section("Software", notes, ("from step", "t2t-jax", "commit", "code", *COMPUTING), rows)


def _row(software: Record) -> Row:
    numbers, commit = software["versions"], software.get("commit", "")[:12] or UNKNOWN
    return (
        f"{software['first_step'] + 1:,}",
        numbers.get("t2t-jax", UNKNOWN),
        f"{commit} (modified)" if software.get("dirty") else commit,
        software["code"],
        *(numbers.get(name, UNKNOWN) for name in COMPUTING),
    )
