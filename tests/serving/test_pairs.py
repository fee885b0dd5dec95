"""A model of several languages serves all pairs of them, with one set of searches."""

import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from t2t_jax.config import DataConfig
from t2t_jax.data.corpus import open_corpus
from t2t_jax.data.vocabularies.framed import FramedVocabulary
from t2t_jax.decoding import open_search, programs
from t2t_jax.decoding.open_search import Limits
from t2t_jax.interchange.formats import read_model
from t2t_jax.interchange.numbering import new_order
from t2t_jax.serving.engine import Wanted
from t2t_jax.serving.searches import Searches
from tests.interchange.models import translator_of
from tests.serving.conftest import Quick, running

_GOLDENS = Path(__file__).parents[1] / "goldens" / "seq2seq"
_FORMATS = {"nllb": "m2m100", "m2m100": "m2m100", "mbart50": "mbart", "mbart": "mbart"}
LINES = list(open_corpus(DataConfig()).lines("dev")[0])[:3]


class Golden(NamedTuple):
    """What transformers finds for a pair of languages, with our ids."""

    sources: list[list[int]]
    tokens: list[tuple[int, ...]]
    log_probs: list[float]


@pytest.fixture(
    scope="module",
    params=[
        "nllb",
        *(pytest.param(kind, marks=pytest.mark.thorough) for kind in [*_FORMATS][1:]),
    ],
)
def served(request):
    """What transformers finds for pairs of languages, and the engine of the model."""
    kind = request.param
    translator = translator_of(read_model(_FORMATS[kind], _GOLDENS / kind))
    _, order = new_order([""] * len(translator.vocabulary), translator.vocabulary.first)
    ours = {int(number): place for place, number in enumerate(order)}
    theirs = json.loads((_GOLDENS / kind / "pairs.json").read_text("utf-8"))
    wanted = {
        tuple(pair.split()): Golden(
            [[ours[one] for one in row] for row in found["sources"]],
            [tuple(ours[one] for one in row) for row in found["greedy"]],
            found["log_probs"],
        )
        for pair, found in theirs.items()
    }
    decoding = replace(translator.config.decoding, beam_size=1, max_extra_length=5)
    longest = max(map(len, translator.encode(LINES)))
    engine = Searches(translator, decoding, Limits(rows=4, longest=longest))
    for [tokens] in engine.prepare(LINES):  # compiles, for which a request has no time
        engine.submit(tokens, Wanted(), timeout=600).result()
    yield wanted, engine
    engine.close()


def test_pairs_share_parameters_and_programs_and_find_what_transformers_finds(served, monkeypatch):
    wanted, engine = served
    of_pairs = {pair: engine.between(*pair) for pair in wanted}
    assert all(one._translator.params is engine._translator.params for one in of_pairs.values())
    assert all(one._searches is engine._searches for one in of_pairs.values())
    together, let_in = [], open_search.RowGroup.let_in

    def noted(group, arrivals, *how):
        together.append({tuple(sentence.prefix) for _, sentence in arrivals})
        let_in(group, arrivals, *how)

    def submitted(pair, row):
        [[tokens]] = of_pairs[pair].prepare([LINES[row]])
        assert tokens == wanted[pair].sources[row]
        return of_pairs[pair].submit(tokens, Wanted(), timeout=600)

    def check(pair, row, future):
        [best] = future.result()
        assert best.tokens == wanted[pair].tokens[row], (pair, row)
        assert best.log_prob == pytest.approx(wanted[pair].log_probs[row], rel=1e-4)

    [pair, *_] = wanted
    engine_of_pair, [[tokens]] = of_pairs[pair], of_pairs[pair].prepare(LINES[:1])
    [short] = engine_of_pair.submit(tokens, Wanted(max_tokens=1), timeout=600).result()
    begin = engine_of_pair._translator.vocabulary.target_begin  # is told, and no part of the text
    assert short.tokens == wanted[pair].tokens[0][: len(begin) + 1]
    compiled = []
    for pair in wanted:
        for row in range(len(LINES)):
            check(pair, row, submitted(pair, row))
        compiled.append((programs.proceed._cache_size(), programs.let_in._cache_size()))
    assert len({*compiled}) == 1
    monkeypatch.setattr(open_search.RowGroup, "let_in", noted)
    asked = [(pair, row, submitted(pair, row)) for row in range(len(LINES)) for pair in wanted]
    for one in asked:
        check(*one)
    if engine.languages.targets == engine.languages.sources:
        assert max(map(len, together)) > 1  # sentences of several target languages


def test_a_request_chooses_its_languages(served):
    wanted, engine = served
    vocabulary = engine._translator.vocabulary
    own = vocabulary.pair
    with running({own: engine}, split="lines") as (client, _):
        for (source, target), golden in wanted.items():
            names = source.upper(), target.partition("_")[0]  # as far as they are clear
            fields = {"q": LINES, "source": names[0], "target": names[1]}
            answer = client.post("/v1/translations", json=fields).json()
            assert (answer["source"], answer["target"]) == (source, target)
            found = [one["hypotheses"][0]["text"] for one in answer["translations"]]
            assert found == vocabulary.decode(golden.tokens)
        listed = {one["code"]: one["targets"] for one in client.get("/languages").json()}
        for source, target in wanted:
            assert target in listed[source]
            assert source not in listed[source]
        is_one = len(vocabulary.marked_targets) == 1
        assert len(listed) == len(vocabulary.marks)
        assert listed[own[0]] == [one for one in vocabulary.marked_targets if one != own[0]]
        assert listed[own[1]] == [] if is_one else own[0] in listed[own[1]]
        bad = {"q": "a", "source": own[0], "target": "tlh"}
        answer = client.post("/translate", json=bad)
        first = sorted(vocabulary.marked_targets)[0]
        assert answer.status_code == 400
        assert answer.json()["error"].startswith(
            f"there is no language 'tlh' here; there are {first}"
        )
        same = client.post("/translate", json={"q": "a", "source": own[1], "target": own[1]})
        assert same.status_code == 400
        assert f"{own[1]} to {own[1]} is not served here" in same.json()["error"]


def test_the_first_model_that_has_a_pair_translates_it(served):
    _, engine = served
    source, target = engine._translator.vocabulary.pair
    with running({(source, target): Quick(), ("xx", "yy"): engine}) as (client, _):
        fields = {"q": "abc", "source": source, "target": target}
        assert client.post("/translate", json=fields).json()["translatedText"] == "ABC"


def test_pairs_of_a_vocabulary_are_made_without_reading_it_again(monkeypatch):
    vocabulary = read_model("m2m100", _GOLDENS / "nllb").vocabulary
    monkeypatch.setattr(FramedVocabulary, "__init__", lambda *_: pytest.fail("it is read again"))
    other = vocabulary.between("deu", "fra")
    assert vocabulary.between("eng", "deu") is vocabulary
    monkeypatch.undo()
    again = FramedVocabulary(other.serialized)
    assert again.pair == other.pair == ("deu_Latn", "fra_Latn")
    assert again.encode(["file"]) == other.encode(["file"]) != vocabulary.encode(["file"])
    assert again.encode_targets(["file"]) == other.encode_targets(["file"])
    assert other.between("eng", "deu").serialized == vocabulary.serialized
    assert other.speller is vocabulary
