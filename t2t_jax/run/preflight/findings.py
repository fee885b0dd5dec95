"""What a check of a preflight finds on one process, and how a check is kept within its time."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from threading import Thread

from t2t_jax.errors import UserError, in_one_line, way_out_of


@dataclass
class Findings:
    """What the checks of one process have found."""

    texts: dict[str, str] = field(default_factory=dict)
    """Facts to show, by the titles of their columns."""
    times: dict[str, list[float]] = field(default_factory=dict)
    """Seconds, less is better, by title: each of some measurements."""
    rates: dict[str, list[float]] = field(default_factory=dict)
    """Amounts a second, more is better, by title, which ends with the unit."""
    peaks: dict[str, float | None] = field(default_factory=dict)
    """What the vendor states for rates, by their titles; None where that is not known."""
    facts: dict[str, dict[str, str]] = field(default_factory=dict)
    """What has to be equal on all processes, by its kind and its name; see `verdicts.WAYS_OUT`."""
    problems: list[str] = field(default_factory=list)
    """What would end or harm the run, each with the way out."""
    notes: list[str] = field(default_factory=list)
    """What is worth knowing, but no problem."""
    is_stuck: bool = False
    """Whether a check has not ended in its time; it may go on in its thread."""

    def to_json(self) -> str:
        """Return the findings as text, even while a check that is stuck adds to them."""
        return json.dumps(
            {
                name: part.copy() if hasattr(part, "copy") else part
                for name, part in vars(self).items()
            }
        )

    @classmethod
    def from_json(cls, text: str) -> "Findings":
        """Return the findings that a text of `to_json` holds."""
        return cls(**json.loads(text))

    def join(self, others: "Findings") -> None:
        """Add the findings of a further check."""
        for name in ("texts", "times", "rates", "peaks"):
            getattr(self, name).update(getattr(others, name))
        for kind, facts in others.facts.items():
            self.facts.setdefault(kind, {}).update(facts)
        self.problems += others.problems
        self.notes += others.notes
        self.is_stuck |= others.is_stuck


Work = Callable[[Findings], None]
"""The work of a check, which adds to findings what it finds."""


def begin_check(work: Work, findings: Findings) -> Thread:
    """Start the work of a check in a thread, which can be left behind if it never ends.

    An error of the work becomes a problem of the findings.
    """
    thread = Thread(target=partial(_attempt, work, findings), daemon=True, name="preflight")
    thread.start()
    return thread


def _attempt(work: Work, findings: Findings) -> None:
    try:
        work(findings)
    except UserError as error:
        findings.problems.append(str(error))
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        findings.problems.append(f"{place}{error.strerror or error}; {way_out_of(error)}")
    except Exception as error:  # of many kinds: whatever it is belongs into the report
        reason = in_one_line(error)[:300]
        findings.problems.append(f"{type(error).__name__}: {reason}")
