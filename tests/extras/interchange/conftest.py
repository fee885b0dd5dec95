import pytest

from tests.hub_server import serving


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub without a model, which the library of the hub uses."""
    with serving(monkeypatch, tmp_path / "cache") as server:
        yield server
