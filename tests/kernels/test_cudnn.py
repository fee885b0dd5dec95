"""Whether cuDNN takes few queries is found by trying it on the devices that are there."""

from functools import partial

import jax
import pytest

from t2t_jax.kernels.cudnn import takes_few_queries

_ATTENTION = jax.nn.dot_product_attention


@pytest.fixture(autouse=True)
def _tried_anew():
    takes_few_queries.cache_clear()
    yield
    takes_few_queries.cache_clear()


def test_a_device_that_is_only_described_is_taken_to_do_so():
    assert takes_few_queries("a description")


def test_a_device_that_is_there_is_tried(monkeypatch):
    [device, *_] = jax.local_devices()
    assert not takes_few_queries(device)  # a CPU has no cuDNN
    takes_few_queries.cache_clear()
    tried = []

    def attention(query, *arrays, mask, implementation):
        tried.append((query.shape[1], implementation))
        return partial(_ATTENTION, implementation="xla")(query, *arrays, mask=mask)

    monkeypatch.setattr(jax.nn, "dot_product_attention", attention)
    assert takes_few_queries(device)
    assert tried == [(1, "cudnn"), (4, "cudnn")]
