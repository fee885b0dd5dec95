"""Judges of single translations."""

import re
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import sacrebleu

from t2t_jax.errors import UserError
from t2t_jax.tasks.measures.judges import judge_of
from t2t_jax.tasks.measures.significance import paired_bootstrap_of_means

SOURCES = ["a cat", "two\tdogs"]
OURS = ["eine Katze", "zwei Hund"]
REFERENCES = ["eine Katze", "zwei Hunde"]


def test_sentences_have_the_scores_of_sacrebleu():
    found = judge_of("chrf")(SOURCES, OURS, REFERENCES)
    assert found == [
        sacrebleu.sentence_chrf(a, [b]).score for a, b in zip(OURS, REFERENCES, strict=True)
    ]
    found = judge_of("bleu")(SOURCES, OURS, REFERENCES)
    assert found == [
        sacrebleu.sentence_bleu(a, [b]).score for a, b in zip(OURS, REFERENCES, strict=True)
    ]


def test_a_command_gets_the_lines_and_prints_numbers(tmp_path):
    command = f"tee {tmp_path / 'seen'} | awk -F'\\t' '{{ print length($2) }}'"
    assert judge_of(f"cmd:{command}")(SOURCES, OURS, REFERENCES) == [10.0, 9.0]
    seen = (tmp_path / "seen").read_text()
    assert seen == "a cat\teine Katze\teine Katze\ntwo dogs\tzwei Hund\tzwei Hunde\n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("chr", "there is no metric 'chr'; give chrf, bleu, cmd:COMMAND or comet:MODEL"),
        ("cmd:", "there is no metric 'cmd:'"),
        ("cmd:echo 1", "printed 1 lines for 2 translations; it has to print a number for each"),
        ("cmd:yes | head -n 2", "line 1 of what the metric cmd:yes | head -n 2 printed is no num"),
        ("cmd:echo no >&2; exit 3", "ended with 3: no"),
        ("comet:x", "--metric comet:x needs the package unbabel-comet (No module named 'comet'"),
    ],
)
def test_what_is_no_judge_is_named(name, message):
    with pytest.raises(UserError, match=re.escape(message)):
        judge_of(name)(SOURCES, OURS, REFERENCES)


def test_a_model_of_comet_gets_all_three_sides(monkeypatch, tmp_path):
    asked = []

    class Model:
        def predict(self, data, progress_bar):
            asked.extend(data)
            return SimpleNamespace(scores=[0.5] * len(data))

    comet = ModuleType("comet")
    comet.download_model = lambda name: f"fetched {name}"
    comet.load_from_checkpoint = lambda path: asked.append(path) or Model()
    monkeypatch.setitem(sys.modules, "comet", comet)
    assert judge_of("comet:Unbabel/x")(SOURCES, OURS, REFERENCES) == [0.5, 0.5]
    assert asked[0] == "fetched Unbabel/x"
    assert asked[1] == {"src": "a cat", "mt": "eine Katze", "ref": "eine Katze"}
    judge_of(f"comet:{tmp_path}")
    assert asked[-1] == str(tmp_path)


def test_means_are_compared_by_resampling():
    rng = np.random.default_rng(0)
    base = rng.normal(size=300)
    assert paired_bootstrap_of_means(base, base) == 1.0
    assert paired_bootstrap_of_means(base, base + 0.5 + 0.1 * rng.normal(size=300)) == 1 / 1001
    noise = rng.normal(size=300)
    # Of a difference of z standard errors, the normal distribution's p is near.
    shifted = base + noise - noise.mean() + 2 * noise.std() / np.sqrt(300)
    assert paired_bootstrap_of_means(base, shifted) == pytest.approx(0.0455, abs=0.02)
    assert paired_bootstrap_of_means(base, shifted) == paired_bootstrap_of_means(base, shifted)
