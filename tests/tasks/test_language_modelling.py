"""A language model is scored by the likelihood of its text, and continues prompts."""

import math
from functools import partial

import jax
import numpy as np
import pytest

from t2t_jax import Config, UserError
from t2t_jax.batch import Batch, Sequence
from t2t_jax.data.corpus import open_corpus
from t2t_jax.data.tokenized import prepare_vocabulary
from t2t_jax.run.evaluation import evaluate, score_record
from t2t_jax.tasks import task_of
from t2t_jax.tasks.language_modelling import TASK, generate
from t2t_jax.tasks.task import Task
from tests.decoding.random_models import random_translator, with_fields
from tests.tiny import tiny_sizes

WORDS = "a small red house stands by the long street and old tree".split()  # noqa: SIM905
CONFIG = (
    Config()
    .replace(tiny_sizes(16, (1, 1)))
    .replace(
        {
            "model.architecture": "decoder_only",
            "model.position": "learned",
            "model.max_positions": 24,
            "data.task": "language_modelling",
            "data.vocab_size": 60,
            "data.max_length": 8,
            "data.target_tokens_per_step": 64,
            "data.source_tokens_per_step": 64,
        }
    )
)


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    directory = tmp_path_factory.mktemp("text")
    rng = np.random.default_rng(0)
    for name, count in (("train", 60), ("dev", 7)):
        lines = (" ".join(rng.choice(WORDS, rng.integers(1, 9))) for _ in range(count))
        (directory / f"{name}.txt").write_text("".join(f"{line} \u00e9\n" for line in lines))
    changes = {"data.corpus": f"text:{directory}", "data.cache_dir": str(directory / "cache")}
    config = CONFIG.replace(changes)
    vocabulary = prepare_vocabulary(config.data, open_corpus(config.data))
    return random_translator(config, vocabulary)


@partial(jax.jit, static_argnums=0)
def _log_probs(model, params, batch):
    return jax.nn.log_softmax(model.logits(params, batch)[0])


def log_probs(translator, tokens):
    """Of each token after the start, in a pass over them alone, with empty places after them."""
    none = Sequence(*(np.zeros((1, 0), np.int32),) * 3)
    row, room = np.array([tokens], np.int32), ((0, 0), (0, 24 - len(tokens)))
    text = Sequence(row, np.ones_like(row), np.arange(row.size, dtype=np.int32)[None])
    batch = Batch(none, Sequence(*(np.pad(x, room) for x in text)))
    return np.asarray(_log_probs(translator.model, translator.params, batch))


def test_scores_are_the_likelihood_of_every_token_in_its_window(translator):
    corpus = open_corpus(translator.config.data)
    _, documents = corpus.lines("dev")
    nll, count = 0.0, 0
    for tokens in translator.encode_targets(documents):
        done = 0
        while done < len(tokens):  # windows of 8 with a stride of 4
            end = min(len(tokens), 8 if done == 0 else done + 4)
            window = tokens[max(0, end - 8) : end] if done == 0 else tokens[done - 4 : end]
            of_window = log_probs(translator, window)
            for place in range(len(window) - (end - done), len(window)):
                nll -= of_window[place, window[place]]
            count, done = count + end - done, end
    evaluation = evaluate(translator, corpus, "dev", beam_size=1)
    assert evaluation.loss.tokens == count
    assert evaluation.loss.nll == pytest.approx(nll / count, rel=1e-4)
    assert evaluation.num_sentences == len(documents)
    assert evaluation.loss.sentence_nll is None  # windows are not documents
    scores = evaluation.scores
    num_bytes = sum(len(line.encode()) + 1 for line in documents)
    assert scores.bits_per_byte == pytest.approx(nll / math.log(2) / num_bytes, rel=1e-4)
    assert scores.bits_per_character > scores.bits_per_byte  # as some characters have two bytes
    assert scores.best == -scores.bits_per_byte
    record = score_record(translator, corpus, evaluation)
    rows = list(TASK.score_rows(record))
    assert rows[0][:2] == ("bits per byte", f"{scores.bits_per_byte:.4f}")
    assert task_of(record["corpus"], record["task"]) is TASK
    assert isinstance(TASK, Task)


@pytest.mark.thorough
def test_greedy_continuations_take_the_most_probable_token(translator):
    prompts = ["", "a small", "the long street and"]
    texts = generate(translator, prompts, max_tokens=5, temperature=0, beam_size=1)
    for prompt, text in zip(prompts, texts, strict=True):
        begin = translator.encode_targets([prompt])[0][:-1]
        tokens = list(begin)
        for _ in range(5):
            tokens.append(int(log_probs(translator, [*tokens, 3])[len(tokens)].argmax()))
            if tokens[-1] == 1:
                break
        [whole] = translator.vocabulary.decode([tokens])
        assert prompt + text == whole


def test_what_is_written_depends_on_the_prompt_the_seed_and_its_number_alone(translator):
    draw = partial(generate, translator, max_tokens=6, temperature=1.5)
    prompts = ["a", "the old", "a", "red house"]
    together = draw(prompts, seed=3)
    assert together == [draw([p], seed=3, first_line=n)[0] for n, p in enumerate(prompts, 1)]
    assert together != draw(prompts, seed=4)


def test_a_text_ends_before_a_stop_string(translator):
    [text] = generate(translator, ["a small"], max_tokens=8, temperature=0, beam_size=1)
    stop = text[2:4]
    ended = generate(translator, ["a small"], max_tokens=8, stop=[stop], temperature=0, beam_size=1)
    assert ended == [text[: text.index(stop)]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 40}, "prompt 1 has .* positions, and the model has 24"),
        ({"stop": [""]}, "empty stop string"),
        ({"max_tokens": 0}, "max_extra_length"),
    ],
)
def test_what_cannot_be_written_is_refused(translator, options, message):
    with pytest.raises(UserError, match=message):
        generate(translator, ["a"], **options)


def test_a_model_is_for_its_own_task(translator):
    with pytest.raises(UserError, match="t2t-jax generate"):
        translator.translate(["a"])
    other = with_fields(translator, {"data.task": "auto", "model.max_positions": 80})
    with pytest.raises(UserError, match="not to continue text"):
        generate(other, ["a"])
