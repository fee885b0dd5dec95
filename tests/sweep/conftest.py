"""Fixtures of the tests of grids."""

import pytest
from threadpoolctl import threadpool_limits


@pytest.fixture
def one_blas_thread():
    """Compute products of small arrays in one thread, as simulations need many of them."""
    with threadpool_limits(1):
        yield
