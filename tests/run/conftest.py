"""A clock that a test moves."""

import pytest

from t2t_jax.run import progress


@pytest.fixture
def clock(monkeypatch):
    """The time that `PhaseTimer` and `StepMeter` see, in a list of one number."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress.time, "time", lambda: 1e9 + now[0])
    return now
