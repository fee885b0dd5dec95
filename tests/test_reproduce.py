"""Every command of docs/reproduce.md, run with small archives and small models."""

import contextlib
import json
import re
import shlex
from pathlib import Path

import pytest

from t2t_jax.__main__ import main
from t2t_jax.data.download import prepare
from t2t_jax.data.download.catalogue import public_corpus
from tests.data.archive_server import resized, serving, small

ROOT = Path(__file__).parents[1]
SMALL = {
    "model.d_model": 16,
    "model.num_heads": 2,
    "model.d_ff": 16,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "data.vocab_size": 34,
    "data.max_length": 32,
    "data.source_tokens_per_step": 64,
    "data.target_tokens_per_step": 64,
    "data.cache_dir": "cache",
    "training.num_train_steps": 2,
    "evaluation.num_samples": 0,
    "decoding.max_extra_length": 5,
}
CONFIG = """import runpy


def get_config():
    return runpy.run_path({path!r})["get_config"]().replace({small!r})
"""


def _commands():
    """The command lines of the document, in order."""
    text = (ROOT / "docs/reproduce.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


@pytest.fixture
def small_wmt(monkeypatch):
    """A server of small archives of WMT 2014 English-German, which have sums of their own."""
    corpus = public_corpus("wmt14-en-de")
    with serving() as server:
        server.files = small(corpus)
        monkeypatch.setattr(prepare, "public_corpus", lambda _: resized(corpus, server.files))
        yield server


@pytest.mark.slow
def test_every_command_of_the_road_runs(tmp_path, small_wmt, capsys):
    (tmp_path / "configs").mkdir()
    for path in (ROOT / "configs").glob("ende_*.py"):
        text = CONFIG.format(path=str(path), small=SMALL)
        (tmp_path / "configs" / path.name).write_text(text)
    called = []
    with contextlib.chdir(tmp_path):
        for program, command, *flags in _commands():
            assert program == "t2t-jax"
            called.append(command)
            mirror = ["--mirror", small_wmt.url] if command == "data" else []
            assert main([command, *flags, *mirror]) == 0
    assert {*called} == {"data", "train", "evaluate", "report"}
    printed = capsys.readouterr().out
    # By the report, to which so small a model is a base one. Five sentences are no newstest2014.
    assert printed.count("27.3 BLEU on newstest2014 (Table 2)") == 1
    for size in ("base", "big"):
        lines = (tmp_path / f"runs/ende_{size}/scores.jsonl").read_text().splitlines()
        scores = [json.loads(line) for line in lines]
        assert [score["split"] for score in scores] == ["test", "newstest2014-filtered"]
        for score in scores:
            assert score["test_set"] == "newstest2014 (5 sentences)"
            assert {"bleu", "tokenized_split_bleu", "chrf"} <= score.keys()
