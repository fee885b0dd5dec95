"""Interceptors of Flax work in all compiled programs, and in none after their `with` statement."""

from concurrent.futures import ThreadPoolExecutor

import flax.linen as nn
import jax
import numpy as np
import pytest

import t2t_jax
from t2t_jax import Batch, FeedForward
from t2t_jax.config import EncoderDecoderConfig
from t2t_jax.modules.attention import Norm
from t2t_jax.modules.interceptors import current_interceptors, in_other_thread
from t2t_jax.modules.network import declared_parameters
from t2t_jax.training.step import eval_step
from tests.decoding.random_models import sentences
from tests.selection import thorough_after

LINES = sentences(3, 4, seed=8)
_SMALL = EncoderDecoderConfig(d_model=16, num_encoder_layers=1, num_decoder_layers=1)


def _doubling(next_fun, args, kwargs, context):
    """Double the output of every feed-forward network."""
    result = next_fun(*args, **kwargs)
    is_output = isinstance(context.module, FeedForward) and context.method_name == "__call__"
    return 2 * result if is_output else result


def _doubled(translator):
    """Return a translator whose parameters do the same as `_doubling`."""
    double = {"kernel_2", "bias_2"}
    params = jax.tree_util.tree_map_with_path(
        lambda path, x: 2 * x if path[-1].key in double else x, translator.params
    )
    return translator.with_params(params)


def _nbest(translator, **settings):
    return [
        [(one.tokens, one.log_prob) for one in of] for of in translator.nbest(LINES, **settings)
    ]


def _losses(translator):
    batch = Batch.of([[5, 6, 1]], [[7, 8, 1]])
    return eval_step(
        translator.model, 0.1, translator.params, jax.tree.map(lambda x: x[None], batch)
    )


USES = {
    "greedy search": lambda translator: _nbest(translator, num_best=1, beam_size=1),
    "losses": _losses,
    "score": lambda translator: t2t_jax.score(translator, LINES, LINES),
    "beam search": lambda translator: _nbest(translator, num_best=2, beam_size=2),
    "encoder states": lambda translator: t2t_jax.encoder_states(translator, LINES).states,
    "attention": lambda translator: t2t_jax.attention_maps(translator, *LINES[:2]).cross,
}


@pytest.mark.parametrize("use", thorough_after(1, USES))
def test_an_interceptor_does_what_the_same_change_of_parameters_does(translator, use):
    figures = [USES[use](translator)]
    with nn.intercept_methods(_doubling):
        figures.append(USES[use](translator))
    figures += [USES[use](translator), USES[use](_doubled(translator))]
    before, during, after, expected = (
        np.concatenate([np.ravel(x) for x in jax.tree.leaves(each)]) for each in figures
    )
    np.testing.assert_array_equal(after, before)
    np.testing.assert_allclose(during, expected, rtol=1e-5)
    assert during.shape != before.shape or not np.allclose(during, before, rtol=1e-3)


def test_interceptors_that_skip_layers_do_not_change_the_declared_parameters():
    def without_norms(next_fun, args, kwargs, context):
        return args[0] if isinstance(context.module, Norm) else next_fun(*args, **kwargs)

    networks = [t2t_jax.build(_SMALL, n) for n in (23, 24)]
    with nn.intercept_methods(without_norms):
        first = declared_parameters(networks[0])
    other = declared_parameters(networks[1])
    assert jax.tree.structure(nn.unbox(first)) == jax.tree.structure(nn.unbox(other))


def test_another_thread_traces_with_the_interceptors_and_the_precision_of_its_caller():
    def context():
        return current_interceptors(), jax.config.jax_default_matmul_precision

    with nn.intercept_methods(_doubling), jax.default_matmul_precision("highest"):
        call = in_other_thread(context)
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(call).result() == ((_doubling,), "highest")
        assert thread.submit(context).result() == ((), None)
