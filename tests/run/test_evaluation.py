import dataclasses
import json
import signal
import sys
from functools import partial

import jax
import numpy as np
import pytest

from t2t_jax import Batch, Config, MeshConfig, Translator, UserError, score
from t2t_jax.data.corpus import open_corpus
from t2t_jax.data.tokenized import tokenize
from t2t_jax.data.vocabularies.learning import train_vocabulary
from t2t_jax.parallel.mesh import make_mesh, replicated
from t2t_jax.run import evaluation as evaluate_module
from t2t_jax.run.evaluation import corpus_loss, evaluate, evaluate_split, prepare_evaluation
from t2t_jax.system.signals import StopSignal
from t2t_jax.tasks.measures.bleu import corpus_scores
from t2t_jax.tasks.task import Scored
from t2t_jax.tasks.translation import Translation
from tests.commands.untrained import NETWORK
from tests.decoding.random_models import random_translator, with_fields
from tests.parallel.test_meshes import on_eight_devices
from tests.scores import Score
from tests.selection import thorough_after

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
        NETWORK
        | {
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
    return random_translator(config, vocabulary, seed=1), open_corpus(config.data)


def loss_of(translator, corpus):
    pairs = prepare_evaluation(translator.config, corpus, translator.vocabulary, "dev")
    return corpus_loss(translator, pairs)


def pair_by_pair(translator) -> tuple[float, float, int]:
    """Mean smoothed loss and nll of dev by NumPy, from the logits of one pair at a time."""
    model, vocabulary = translator.model.network, translator.vocabulary
    forward = jax.jit(partial(model.apply, deterministic=True))
    smoothed, nll, tokens = 0.0, 0.0, 0
    for source, target in zip(*map(vocabulary.encode, (SOURCES, TARGETS)), strict=True):
        logits = forward({"params": translator.params}, Batch.of([source], [target]))
        log_probs = np.array(jax.nn.log_softmax(logits[0]), np.float64)
        wanted = np.full(log_probs.shape, SMOOTHING / log_probs.shape[1])
        wanted[np.arange(len(target)), target] += 1 - SMOOTHING
        smoothed -= (wanted * log_probs).sum()
        nll -= log_probs[np.arange(len(target)), target].sum()
        tokens += len(target)
    return smoothed / tokens, nll / tokens, tokens


@pytest.mark.thorough
@pytest.mark.parametrize("batching", ["bucket", "pack"])
def test_losses_are_those_of_all_pairs_one_by_one(setting, batching):
    translator, corpus = setting
    loss = loss_of(with_fields(translator, {"data.batching": batching}), corpus)
    smoothed, nll, tokens = pair_by_pair(translator)
    assert loss.tokens == tokens
    assert loss.smoothed == pytest.approx(smoothed, rel=1e-5)
    assert loss.nll == pytest.approx(nll, rel=1e-5)
    assert abs(loss.smoothed - loss.nll) > 1e-3


LAYOUTS = {
    "packed": ({"data.batching": "pack"}, 1),
    "several passes": ({"data.batching": "bucket", "parallel.tokens_per_device": 40}, 1),
    "grouped by length": ({"data.batching": "bucket"}, 1),
    "an ensemble": ({"data.batching": "pack"}, 2),
}


@pytest.mark.parametrize("layout", thorough_after(2, LAYOUTS))
def test_each_sentence_has_the_negative_log_likelihood_that_score_computes(setting, layout):
    translator, corpus = setting
    fields, num_models = LAYOUTS[layout]
    config = translator.config.replace(fields)
    larger = jax.tree.map(lambda x: x * 1.3, translator.params)
    evaluated = Translator(
        config,
        translator.vocabulary,
        translator.params,
        others=[(config.model, larger)] * (num_models - 1),
    )
    loss = loss_of(evaluated, corpus)
    expected = [-pair.log_prob for pair in score(evaluated, SOURCES, TARGETS)]
    np.testing.assert_allclose(loss.sentence_nll, expected, rtol=1e-4)
    lengths = [len(ids) for ids in evaluated.encode_targets(TARGETS)]
    assert loss.sentence_tokens.tolist() == lengths
    assert loss.sentence_nll.sum() == pytest.approx(loss.nll * loss.tokens, rel=1e-6)


def test_a_split_without_some_of_its_sentences_has_no_losses_by_sentence(setting):
    translator, corpus = setting
    dev, train = (
        evaluate_split(translator, corpus, split, num_sentences=1, beam_size=1).loss
        for split in ("dev", "train")
    )
    assert len(dev.sentence_nll) == len(dev.sentence_tokens) == len(SOURCES)
    assert train.sentence_nll is None  # training leaves out two pairs
    assert train.sentence_tokens is None


def in_parts():
    """Losses by sentence of a model whose rows are split over eight devices."""
    config = Config().replace(
        NETWORK
        | {
            "model.compute_dtype": "float32",
            "data.batching": "pack",
            "data.source_tokens_per_step": 256,
            "data.target_tokens_per_step": 256,
        }
    )
    vocabulary = train_vocabulary([(SOURCES, TARGETS)], 50)
    translator = random_translator(config, vocabulary, seed=1)
    pairs = tokenize([(SOURCES, TARGETS)], vocabulary, None)
    found = []
    for mesh in (MeshConfig(data=1), MeshConfig(data=4, fsdp=2)):
        on_mesh = jax.device_put(translator.params, replicated(make_mesh(mesh)))
        found.append(corpus_loss(Translator(config, vocabulary, on_mesh), pairs))
    np.testing.assert_allclose(found[1].sentence_nll, found[0].sentence_nll, rtol=1e-5)
    np.testing.assert_array_equal(found[1].sentence_tokens, found[0].sentence_tokens)


@pytest.mark.thorough
def test_eight_devices_compute_the_losses_by_sentence_of_one():
    on_eight_devices("in_parts", file=__file__)


def test_an_evaluation_of_the_first_sentences_takes_scores_and_losses_of_these(setting):
    translator, corpus = setting
    evaluation = evaluate(translator, corpus, "dev", num_sentences=4, beam_size=1)
    assert evaluation.sources == SOURCES[:4]
    assert evaluation.references == TARGETS[:4]
    assert evaluation.hypotheses == translator.translate(SOURCES[:4], beam_size=1)
    assert evaluation.scores == corpus_scores(evaluation.hypotheses, TARGETS[:4], "de")
    nll = -sum(pair.log_prob for pair in score(translator, SOURCES[:4], TARGETS[:4]))
    tokens = sum(map(len, translator.encode_targets(TARGETS[:4])))
    assert evaluation.loss.tokens == tokens
    assert evaluation.loss.nll == pytest.approx(nll / tokens, rel=1e-5)
    assert evaluation.perplexity == pytest.approx(np.exp(evaluation.loss.nll))


def test_an_evaluation_in_training_takes_scores_of_some_and_the_loss_of_all(setting):
    translator, corpus = setting
    evaluation = evaluate_split(translator, corpus, "dev", num_sentences=4, beam_size=1)
    assert (evaluation.num_sentences, evaluation.sources) == (4, SOURCES[:4])
    assert evaluation.loss[:3] == loss_of(translator, corpus)[:3]


def test_scores_and_what_is_shown_are_those_of_the_task(setting, monkeypatch):
    class Shouting(Translation):
        def score_outputs(self, sources, outputs, targets, target_language):
            assert (sources, target_language) == (SOURCES[:2], "de")
            upper = [[line.upper() for line in lines] for lines in (outputs, targets)]
            return Scored(Score(len(outputs)), sources, *upper)

    monkeypatch.setattr(evaluate_module, "task_of", lambda *corpus: Shouting())
    translator, corpus = setting
    evaluation = evaluate(translator, corpus, "dev", num_sentences=2, beam_size=1)
    assert evaluation.scores.best == evaluation.summary()["best"] == 2
    assert evaluation.references == [line.upper() for line in TARGETS[:2]]
    outputs = translator.translate(SOURCES[:2], beam_size=1)
    assert evaluation.hypotheses == [line.upper() for line in outputs]
    assert evaluation.sources == SOURCES[:2]


def test_without_a_corpus_the_one_of_the_config_is_opened(setting):
    translator, corpus = setting
    settings = {"num_sentences": 2, "beam_size": 1}
    given = evaluate(translator, corpus, "dev", **settings).summary()
    opened = evaluate(translator, split="dev", **settings).summary()
    assert opened | {"seconds": 0} == given | {"seconds": 0}
    with pytest.raises(UserError, match="has no test split, only train, dev"):
        evaluate(translator)


@pytest.mark.parametrize(
    "work",
    [lambda translator, corpus: translator.translate(SOURCES), loss_of],
    ids=["translating", "the losses"],
)
def test_an_evaluation_that_is_not_wanted_any_more_is_left_on_the_way(setting, work):
    stop = StopSignal()

    def begun():
        stop.number = signal.SIGTERM
        return work(*setting)

    assert stop.attempt(begun) is None
    assert work(*setting) is not None  # and what comes after it is not concerned


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


def test_a_split_is_prepared_whole_except_train(setting):
    translator, corpus = setting
    for split, pairs in (("dev", 5), ("train", 3)):  # an empty source and a long target less
        prepared = prepare_evaluation(translator.config, corpus, translator.vocabulary, split)
        assert len(prepared) == pairs


def test_sentences_beyond_a_learned_table_are_refused_before_anything_is_translated(setting):
    translator, corpus = setting
    vocabulary = translator.vocabulary
    sources, targets = (list(map(len, vocabulary.encode(lines))) for lines in (SOURCES, TARGETS))

    def prepared(positions: int, extra: int, long_lines: str = "refuse") -> int:
        config = translator.config.replace(
            {
                "model.position": "learned",
                "model.max_positions": positions,
                "data.max_length": 8,
                "decoding.max_extra_length": extra,
                "decoding.long_lines": long_lines,
            }
        )
        return len(prepare_evaluation(config, corpus, vocabulary, "dev"))

    room = max(targets) - max(sources)
    assert prepared(max(targets), room) == 5
    line = targets.index(max(targets)) + 1
    message = rf"target line {line} in the dev split of {corpus.name} has {max(targets)} subwords"
    with pytest.raises(UserError, match=message):
        prepared(max(targets) - 1, 1)
    line = sources.index(max(sources)) + 1
    with pytest.raises(UserError, match=rf"source line {line} .* allow {max(sources) - 1} "):
        prepared(max(targets), room + 1)
    assert prepared(max(targets), room + 1, "split") == 5
    learned = {"model.position": "learned", "model.max_positions": max(targets) - 1}
    narrow = with_fields(translator, learned)
    narrow.translate = None
    with pytest.raises(UserError, match="target line"):
        evaluate(narrow, corpus, "dev")


def test_a_number_of_sentences_that_is_not_positive_is_refused(setting):
    translator, corpus = setting
    with pytest.raises(UserError, match="num_sentences=0 is not positive; use None"):
        evaluate(translator, corpus, "dev", num_sentences=0)


def test_at_most_two_batches_of_the_loss_are_on_the_device(setting, monkeypatch):
    translator, corpus = setting
    few = {"data.source_tokens_per_step": 16, "data.target_tokens_per_step": 16}
    small = with_fields(translator, few)
    whole = loss_of(small, corpus)
    events = []
    step, get = evaluate_module.eval_step, jax.device_get
    monkeypatch.setattr(
        evaluate_module, "eval_step", lambda *arguments: events.append(1) or step(*arguments)
    )
    monkeypatch.setattr(jax, "device_get", lambda sums: events.append(-1) or get(sums))
    assert loss_of(small, corpus)[:3] == whole[:3]
    under_way = np.cumsum(events)
    assert under_way.max() == 2
    assert under_way[-1] == 0
    assert len(events) >= 6


if __name__ == "__main__":
    globals()[sys.argv[1]]()
