import dataclasses
import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t2t_jax.config import Config
from t2t_jax.data.corpus import open_corpus
from t2t_jax.data.vocabulary import train_vocabulary
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError
from t2t_jax.evaluation.bleu import corpus_scores
from t2t_jax.evaluation.evaluate import corpus_loss, evaluate
from t2t_jax.modules.transformer import Transformer

SOURCES = ["a red house", "the dog", "", "two dogs see a  red house ", "the house sees two dogs"]
TARGETS = ["ein rotes Haus", "der Hund", "nichts", "zwei Hunde", "das Haus sieht zwei Hunde " * 6]
SMOOTHING = 0.1


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    for split in ("train", "dev"):
        for language, lines in (("en", SOURCES), ("de", TARGETS)):
            text = "".join(f"{line}\n" for line in lines)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
    config = Config().replace(
        {
            "model.d_model": 16,
            "model.num_heads": 2,
            "model.d_ff": 32,
            "model.num_encoder_layers": 1,
            "model.num_decoder_layers": 1,
            "data.corpus": f"text:{folder}",
            "data.max_length": 16,  # shorter than the last pair of dev
            "data.source_tokens_per_step": 64,
            "data.target_tokens_per_step": 64,
            "data.cache_dir": str(folder / "cache"),
            "training.label_smoothing": SMOOTHING,
            "decoding.max_extra_length": 4,
        }
    )
    vocabulary = train_vocabulary([(SOURCES, TARGETS)], 50)
    tokens = jnp.ones((1, 8), jnp.int32)
    model = Transformer(config.model, len(vocabulary), 2)
    params = model.init(jax.random.key(1), *[tokens] * 6, deterministic=True)["params"]
    params["embedding"]["embedding"] *= 2
    return Translator(config, vocabulary, params), open_corpus(config.data)


@pytest.fixture(scope="module")
def pair_by_pair(setting) -> tuple[float, float, int]:
    """Mean smoothed loss and nll of dev by NumPy, from the logits of one pair at a time."""
    translator, _ = setting
    forward = jax.jit(partial(translator.model.apply, deterministic=True))
    smoothed, nll, tokens = 0.0, 0.0, 0
    for source, target in zip(*map(translator.vocabulary.encode, (SOURCES, TARGETS)), strict=True):
        rows = []
        for ids in (source, target):
            row = jnp.array([ids], jnp.int32)
            rows += [row, jnp.ones_like(row), jnp.arange(len(ids), dtype=jnp.int32)[None]]
        logits = np.asarray(forward({"params": translator.params}, *rows)[0], np.float64)
        log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        wanted = np.full(log_probs.shape, SMOOTHING / log_probs.shape[1])
        wanted[np.arange(len(target)), target] += 1 - SMOOTHING
        smoothed -= (wanted * log_probs).sum()
        nll -= log_probs[np.arange(len(target)), target].sum()
        tokens += len(target)
    return smoothed / tokens, nll / tokens, tokens


@pytest.mark.parametrize("batching", ["bucket", "pack"])
def test_losses_are_those_of_all_pairs_one_by_one(setting, pair_by_pair, batching):
    translator, corpus = setting
    config = translator.config.replace({"data.batching": batching})
    loss = corpus_loss(Translator(config, translator.vocabulary, translator.params), corpus, "dev")
    smoothed, nll, tokens = pair_by_pair
    assert loss.tokens == tokens
    assert loss.smoothed == pytest.approx(smoothed, rel=1e-5)
    assert loss.nll == pytest.approx(nll, rel=1e-5)
    assert abs(loss.smoothed - loss.nll) > 1e-3


def test_an_evaluation_scores_the_first_sentences_and_takes_the_loss_of_all(setting):
    translator, corpus = setting
    evaluation = evaluate(translator, corpus, "dev", num_sentences=4, beam_size=1)
    assert evaluation.sources == SOURCES[:4]
    assert evaluation.references == TARGETS[:4]
    assert evaluation.hypotheses == translator.translate(SOURCES[:4], beam_size=1)
    assert evaluation.scores == corpus_scores(evaluation.hypotheses, TARGETS[:4])
    assert evaluation.loss == corpus_loss(translator, corpus, "dev")
    assert evaluation.perplexity == pytest.approx(np.exp(evaluation.loss.nll))


def test_a_summary_is_plain_json_with_every_figure(setting):
    translator, corpus = setting
    evaluation = evaluate(translator, corpus, "dev", num_sentences=2, beam_size=1)
    summary = json.loads(json.dumps(evaluation.summary()))
    assert summary.pop("seconds") == evaluation.seconds > 0
    assert summary == {
        "split": "dev",
        "num_sentences": 2,
        **dataclasses.asdict(evaluation.scores),
        "loss": evaluation.loss.smoothed,
        "nll": evaluation.loss.nll,
        "perplexity": evaluation.perplexity,
        "target_tokens": evaluation.loss.tokens,
    }


def test_a_missing_split_is_refused_with_those_that_exist(setting):
    translator, corpus = setting
    with pytest.raises(UserError, match="no test split, only train, dev"):
        evaluate(translator, corpus, "test")


def test_an_unknown_decoding_setting_is_refused(setting):
    translator, corpus = setting
    with pytest.raises(UserError, match="did you mean"):
        evaluate(translator, corpus, "dev", beamsize=2)


def test_a_sentence_beyond_a_learned_table_is_refused(setting):
    translator, corpus = setting
    learned = translator.config.replace({"model.position": "learned", "model.max_positions": 20})
    other = Translator(learned, translator.vocabulary, translator.params)
    with pytest.raises(UserError, match=r"the dev split has a sentence of \d+ subwords"):
        corpus_loss(other, corpus, "dev")
