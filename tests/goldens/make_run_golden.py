"""Write `runs/VERSION/`: a small run as the version of `t2t_jax` that is installed writes it.

    python tests/goldens/make_run_golden.py

The runs `before-cut-...` were made by this program as it was at commit f67f348f, with the package
of commit 08046c0 (tag before-cut); each has its fields in `run/config.json`. Runs are never
changed: every later version has to load them, compute the same outputs with them and train them
on, with the same losses.

    run/            the run directory: config, vocabulary, the log, and one checkpoint
    corpus/         the text that it was trained on: the first pairs of the bundled corpus
    expected.json   `tokens`: of some lines, those of their translation by greedy search and by a
                    beam of 4 (`texts` of other tasks: pairs of input and output); `losses`: the
                    training loss of each of the steps that come next
"""

import contextlib
import json
import shutil
import tempfile
from pathlib import Path

import t2t_jax
from t2t_jax.config import Config, DataConfig
from t2t_jax.data.corpus import open_corpus

STEPS, STEPS_MORE = 800, 6
PAIRS = {"train": 150, "dev": 8}
FIELDS = {
    "model.d_model": 32,
    "model.num_heads": 4,
    "model.d_ff": 64,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.compute_dtype": "float32",  # the same on every processor
    "data.vocab_size": 300,
    "data.max_length": 64,
    "data.batching": "pack",
    "data.source_tokens_per_step": 1024,
    "data.target_tokens_per_step": 1024,
    "training.num_train_steps": STEPS,
    "training.warmup_steps": 100,
    "training.log_every_steps": 100,
    "evaluation.every_steps": 400,
    "evaluation.num_samples": 0,
    "decoding.max_extra_length": 10,
    "checkpoint.every_minutes": None,
    "checkpoint.every_steps": STEPS,
    "checkpoint.keep": 1,
    "checkpoint.average": 1,
    "checkpoint.keep_best": False,
}


def write_corpus(folder):
    """The first pairs of the bundled corpus, as text files."""
    folder.mkdir(parents=True)
    bundled = open_corpus(DataConfig())
    for split, count in PAIRS.items():
        for language, lines in zip(("en", "de"), bundled.lines(split), strict=True):
            text = "".join(f"{line}\n" for line in lines[:count])
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")


def tokens_of(workdir, lines):
    """The tokens of the translations of lines; see `expected.json`."""
    translator = t2t_jax.load(workdir)
    nbest = {n: translator.nbest(lines, 1, beam_size=n) for n in (1, 4)}
    return [
        {"line": line, **{f"beam_{n}": list(nbest[n][i][0].tokens) for n in nbest}}
        for i, line in enumerate(lines)
    ]


def next_losses(config, workdir, scratch):
    """The training loss of each of the next steps, taken in a copy of the run."""
    shutil.copytree(workdir, scratch)
    steps = {
        "training.num_train_steps": STEPS + STEPS_MORE,
        "training.log_every_steps": 1,
        "evaluation.every_steps": 10 * STEPS,
    }
    assert t2t_jax.train(config.replace(steps), scratch).exit_code == 0
    records = map(json.loads, (scratch / "log.jsonl").read_text().splitlines())
    return {r["step"]: r["loss"] for r in records if r["of"] == "train" and r["step"] > STEPS}


def make(home):
    """Write a golden run into an empty directory, which is also where the program stands."""
    write_corpus(Path("corpus"))
    changes = {**FIELDS, "data.corpus": "text:corpus", "data.cache_dir": "cache"}
    config = Config().replace(changes)
    assert t2t_jax.train(config, Path("run")).exit_code == 0
    # Lines that the model has learned: rounding turns no choice of a token.
    learned = Path("corpus/train.en").read_text(encoding="utf-8").splitlines()[:12]
    expected = {
        "tokens": tokens_of(Path("run"), ["", *learned]),
        "losses": next_losses(config, Path("run"), Path("more")),
    }
    for path in (*Path("run").glob("events.*"), Path("run/.lock")):
        path.unlink()
    for name in ("corpus", "run"):
        shutil.copytree(name, home / name)
    (home / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        make(Path(__file__).parent / "runs" / t2t_jax.__version__)
