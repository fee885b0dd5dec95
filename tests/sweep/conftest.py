"""Fixtures, consoles and launchers of the tests of grids."""

import pytest
from rich.console import Console
from threadpoolctl import threadpool_limits

from t2t_jax.sweep import run
from t2t_jax.sweep.launchers import Outcome

QUIET = Console(quiet=True)


class AtOnce:
    """A launcher whose cells end at once, after `write` has written their files."""

    def __init__(self, write=lambda cell: None):
        self.write = write

    def launch(self, cell):
        self.write(cell)
        return self

    def poll(self):
        return Outcome(0, "")

    def stop(self):
        pass

    def wait(self):
        pass


@pytest.fixture
def quick(monkeypatch):
    """Poll cells without a pause, and draw no figure."""
    monkeypatch.setattr(run, "_SECONDS_BETWEEN_LOOKS", 0)
    monkeypatch.setattr("t2t_jax.sweep.tables.effect_figure", lambda *_: {})
    monkeypatch.setattr("t2t_jax.sweep.cell.Cell.progress", lambda cell: {})


@pytest.fixture
def one_blas_thread():
    """Compute products of small arrays in one thread, as simulations need many of them."""
    with threadpool_limits(1):
        yield
