"""Contrastive tests: what counts as right, which items are refused, and that contexts are used."""

import itertools
import json
import random

import numpy as np
import pytest
from scipy.stats import binomtest

from t2t_jax.__main__ import main
from t2t_jax.errors import UserError
from t2t_jax.run.loading import load
from t2t_jax.tasks.measures.contrast import exact_p, read_contrasts


@pytest.mark.parametrize("counts", [(0, 0), (1, 0), (3, 9), (12, 12), (40, 7)])
def test_p_is_that_of_the_binomial_test(counts):
    first = np.array([True] * counts[0] + [False] * counts[1] + [True, False])
    second = np.array([False] * counts[0] + [True] * counts[1] + [True, False])
    wanted = binomtest(counts[0], sum(counts)).pvalue if sum(counts) else 1.0
    assert exact_p(first, second) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "not JSON"),
        ('{"source": "a", "target": "b"}', "no field 'wrong'"),
        ('{"source": "a", "target": "b", "wrong": []}', "is empty"),
        ('{"source": "a", "target": "b", "wrong": ["c", "b"]}', "has the right translation"),
        ('{"source": "a", "target": "b", "wrong": [1]}', "wrong.0"),
        ('{"source": "a", "target": "b", "wrong": ["c"], "context": [["d"]]}', "pairs"),
    ],
)
def test_a_line_that_is_no_item_is_refused_by_its_number(tmp_path, line, why):
    file = tmp_path / "items.jsonl"
    file.write_text('{"source": "a", "target": "b", "wrong": ["c"]}\n' + line + "\n")
    with pytest.raises(UserError, match=f"items.jsonl line 2 .*{why}"):
        read_contrasts(file)
    file.write_text("")
    with pytest.raises(UserError, match="no items"):
        read_contrasts(file)


_NOUNS = {
    "er": ["hund", "baum", "tisch", "stuhl"],
    "sie": ["katze", "blume", "lampe", "tür"],
    "es": ["haus", "boot", "kind", "tier"],
}
_VERBS = ["runs", "falls", "burns", "stands", "sleeps"]
_IDS = {word: f"n{number}" for number, word in enumerate(itertools.chain(*_NOUNS.values()))}


def _document(rng):
    """A sentence with a noun, one with the pronoun that stands for it, and the pronoun."""
    pronoun = rng.choice([*_NOUNS])
    noun, verbs = rng.choice(_NOUNS[pronoun]), rng.choices(_VERBS, k=2)
    first = f"{_IDS[noun]} {verbs[0]}", f"{noun} {verbs[0]}"
    return [first, (f"it {verbs[1]}", f"{pronoun} {verbs[1]}")], pronoun


@pytest.mark.thorough
@pytest.mark.parametrize("sides", ["source", "both"])
def test_a_model_learns_what_a_pronoun_stands_for_from_the_sentence_before(
    tmp_path, monkeypatch, capsys, sides
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rng = random.Random(0)
    text = tmp_path / "text"
    text.mkdir()
    for split, count in (("train", 600), ("dev", 30)):
        pairs = [pair for _ in range(count) for pair in [*_document(rng)[0], ("", "")]]
        for language, lines in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            (text / f"{split}.{language}").write_text("".join(f"{line}\n" for line in lines))
    items = []
    for _ in range(60):
        [context, (source, target)], pronoun = _document(rng)
        wrong = [target.replace(pronoun, other, 1) for other in _NOUNS if other != pronoun]
        fields = {"source": source, "target": target, "wrong": wrong, "context": [context]}
        items.append(json.dumps(fields | {"kind": pronoun}))
    (tmp_path / "items.jsonl").write_text("\n".join(items) + "\n")
    run = str(tmp_path / "run")
    flags = {
        "data.corpus": f"text:{text}",
        "data.context-sentences": 1,
        "data.context-sides": sides,
        "data.vocab-size": 90,
        "data.max-length": 24,
        "data.batching": "pack",
        "data.source-tokens-per-step": 512,
        "data.target-tokens-per-step": 512,
        "model.d-model": 32,
        "model.num-heads": 2,
        "model.d-ff": 64,
        "model.num-encoder-layers": 1,
        "model.num-decoder-layers": 1,
        "model.norm-order": "pre",
        "training.num-train-steps": 400,
        "training.warmup-steps": 50,
        "evaluation.every-steps": 400,
    }
    given = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    assert main(["train", "--config", "base", "--workdir", run, *given]) == 0
    capsys.readouterr()
    assert main(["contrast", run, "--input", str(tmp_path / "items.jsonl")]) == 0
    last = next(line for line in capsys.readouterr().out.splitlines() if "all kinds" in line)
    in_context, alone, in_another = (float(one) for one in last.replace("%", "").split()[3:6])
    assert in_context > 95
    assert alone < 60
    assert in_another < 60
    translator = load(run)
    document = _document(random.Random(1))[0]
    sources, targets = zip(*document, strict=True)
    assert translator.translate(sources) == list(targets)
