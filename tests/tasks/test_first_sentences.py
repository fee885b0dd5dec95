"""With `num_sentences`, every figure of an evaluation is that of a corpus without the others."""

import numpy as np
import pytest

from t2t_jax import Config, evaluate
from t2t_jax.data.corpus import open_corpus
from t2t_jax.tasks import task_of
from tests.decoding.random_models import random_translator
from tests.selection import thorough_after

_WORDS = ["the", "dog", "barks", "at", "a", "cat"]
_ENCODER = {"model.architecture": "encoder_only", "model.num_encoder_layers": 1}
_DECODER = {"model.architecture": "decoder_only", "model.num_decoder_layers": 1}
_LABELS = {"model.share_embeddings": False, "model.source_vocab_size": 40}
CASES = {
    "masked_language_modelling": (["txt"], _ENCODER),
    "language_modelling": (["txt"], _DECODER),
    "tagging": (["txt", "tags"], _ENCODER | _LABELS),
    "auto": (["en", "de"], {"model.num_encoder_layers": 1, "model.num_decoder_layers": 1}),
}


@pytest.mark.parametrize("task", thorough_after(1, CASES))
def test_figures_are_of_the_first_sentences(tmp_path, task):
    suffixes, changes = CASES[task]
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(_WORDS, 2 + n % 5)) + "\n" for n in range(60)]
    configs = []
    for name, count in (("whole", 12), ("short", 5)):
        (tmp_path / name).mkdir()
        for suffix in suffixes:
            (tmp_path / name / f"train.{suffix}").write_text("".join(lines))
            (tmp_path / name / f"test.{suffix}").write_text("".join(lines[:count]))
        data = {"task": task, "corpus": f"text:{tmp_path / name}", "cache_dir": str(tmp_path)}
        data |= {"vocab_size": 40, "max_length": 32, "masked_share": 0.3}
        fields = {f"data.{field}": value for field, value in data.items()}
        sizes = {"model.d_model": 16, "model.num_heads": 2, "model.d_ff": 32}
        configs.append(Config().replace(fields | sizes | changes))
    whole, short = (open_corpus(config.data) for config in configs)
    vocabulary = task_of(whole.name, whole.task).vocabulary(configs[0], whole)
    translator = random_translator(configs[0], vocabulary)
    of_short = evaluate(translator, short, beam_size=1).summary()
    of_first = evaluate(translator, whole, num_sentences=5, beam_size=1).summary()
    of_whole = evaluate(translator, whole, num_sentences=100, beam_size=1).summary()
    assert of_first | {"seconds": 0} == pytest.approx(of_short | {"seconds": 0})
    assert (of_first["num_sentences"], of_whole["num_sentences"]) == (5, 12)
    assert of_first["target_tokens"] < of_whole["target_tokens"]
