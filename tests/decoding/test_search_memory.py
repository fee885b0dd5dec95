"""What a search keeps, against the arrays that it makes."""

import dataclasses

import jax
import pytest

from t2t_jax.config import Config
from t2t_jax.decoding.programs import Search, Sizes, search_bytes
from t2t_jax.decoding.scheduler import strategy_of
from t2t_jax.modules.models import make_decoding_model
from t2t_jax.parallel.mesh import make_mesh


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("rows", "beam", "room"), [(3, 4, 20), (1, 1, 128)])
def test_keys_and_values_are_those_of_the_real_cache(rows, beam, room, dtype):
    strategy = strategy_of(dataclasses.replace(Config().decoding, beam_size=beam))
    mesh = make_mesh(Config().parallel, jax.devices()[:1])
    model = dataclasses.replace(Config().model, compute_dtype=dtype)
    sizes = Sizes(rows, rows, 0, room, room)
    layers = model.num_decoder_layers
    deeper = dataclasses.replace(model, num_decoder_layers=2 * layers)
    shallow, deep = (
        search_bytes(Search(make_decoding_model(each, 100, None), strategy, mesh, 1), 100, sizes)
        for each in (model, deeper)
    )
    cache = jax.eval_shape(
        lambda: make_decoding_model(model, 100, None).empty_cache(rows, beam, room)
    )
    assert deep - shallow == sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(cache))
