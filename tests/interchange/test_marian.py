"""An exported Marian model: what transformers of Hugging Face computed with the same arrays."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from t2t_jax import UserError, score
from t2t_jax.interchange.formats import write_model
from tests.interchange.models import OPTIONS, portable, real_pairs, translator_of

_GOLDENS = json.loads(
    (Path(__file__).parents[1] / "goldens" / "marian_goldens.json").read_text(encoding="utf-8")
)
_REFUSED = {
    "modern": "model.norm='rms' in place of 'layer' and model.norm_order='pre' in place of 'post'",
    "tensor2tensor-sinusoids": "model.position='sinusoidal_t2t' in place of 'sinusoidal'",
    "learned-positions": "model.position='learned'",
    "pre-norm": "model.norm_order='pre'",
    "multi-query": "model.num_kv_heads=1 in place of None or 4",
    "wide-heads": "model.d_k=8 in place of None or 4.0 and model.d_v=8 in place of None or 4.0",
    "glu": "model.feed_forward='glu'",
    "untied": "model.share_target_embedding=False in place of True and model.embedding_norm=True",
    "window": "model.attention_window=4",
}


@pytest.mark.parametrize("name", _GOLDENS)
def test_transformers_computes_the_same(name, tmp_path):
    golden, model = _GOLDENS[name], portable(OPTIONS[name])
    write_model(model, "marian", tmp_path / "out")
    arrays = load_file(tmp_path / "out" / "model.safetensors")
    assert arrays.keys() == golden["sums"].keys()
    for array, (total, weighted) in zip(arrays.values(), golden["sums"].values(), strict=True):
        flat = array.astype(np.float64).ravel()
        np.testing.assert_allclose(flat.sum(), total, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(flat @ np.arange(1, flat.size + 1), weighted, rtol=1e-4, atol=1)
    translator, lines = translator_of(model), len(golden["sources"])
    sources, targets = (side[:lines] for side in real_pairs())
    assert translator.encode(sources) == golden["sources"]
    for own, log_probs in zip(
        score(translator, sources, targets), golden["log_probs"], strict=True
    ):
        np.testing.assert_allclose(own.token_log_probs, log_probs, rtol=2e-5, atol=2e-5)
    greedy = translator.nbest(sources, 1, beam_size=1)
    for (best,), tokens in zip(greedy, golden["greedy"], strict=True):
        shorter = min(len(best.tokens), len(tokens))
        assert list(best.tokens[:shorter]) == tokens[:shorter]


@pytest.mark.parametrize("name", _REFUSED)
def test_what_marian_cannot_be_is_refused_by_name(name, tmp_path):
    with pytest.raises(UserError, match="marian cannot have this model") as refusal:
        write_model(portable(OPTIONS[name]), "marian", tmp_path / "out")
    assert _REFUSED[name] in str(refusal.value)
    assert not list(tmp_path.iterdir())
