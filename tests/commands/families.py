"""A run of every family of models, without a training: for tests of what commands do with each."""

import json
from pathlib import Path

import numpy as np

from t2t_jax.config import Config
from t2t_jax.data.corpus import open_corpus
from t2t_jax.tasks import task_of
from tests.commands.untrained import NETWORK, write_untrained

LINES = ["the old dog runs", "a red house", "the dog", "a house runs", "two dogs see a red house"]
GERMAN = ["der alte Hund", "ein rotes Haus", "der Hund", "ein Haus", "zwei Hunde sehen ein Haus"]
_TREES = "(TOP (S (NP (DT the) (NN dog)) (VP (VBZ runs))))\n(TOP (NP (DT a) (NN house)))\n" * 2
MODEL = {
    **NETWORK,
    "data.vocab_size": 40,
    "data.max_length": 24,
    "data.source_tokens_per_step": 256,
    "data.target_tokens_per_step": 256,
    "decoding.max_extra_length": 4,
    "decoding.beam_size": 2,
    "checkpoint.average": 1,
}
_ENCODER = {"model.architecture": "encoder_only"}
_LABELS = {**_ENCODER, "model.share_embeddings": False}
IMAGES = {
    "model.architecture": "image_encoder",
    "model.patch_size": 2,
    "model.image_size": 4,
    "model.image_channels": 1,
    "model.position": "learned",
}
FAMILIES = {
    "translator": {},
    "decoder alone": {"model.architecture": "decoder_only"},
    "parser": {"data.vocab_size": 60},
    "language model": {"data.task": "language_modelling", "model.architecture": "decoder_only"},
    "masked model": {"data.task": "masked_language_modelling", **_ENCODER},
    "tagger": {"data.task": "tagging", **_LABELS},
    "classifier": {"data.task": "classification", **_LABELS},
    "image classifier": {"data.task": "image_classification", **IMAGES},
}
"""What the config of a family has beside what all have."""


def write_corpora(folder: Path) -> None:
    """Write the corpora of all families."""
    files = {
        "en": LINES,
        "de": GERMAN,
        "txt": LINES,
        "tags": [" ".join("NN" for _ in line.split()) + " " for line in LINES],
        "label": ["some", "none", "some", "none", "some"],
    }
    files["tags"] = [line.strip().replace("NN", "DT", 1) for line in files["tags"]]
    for split in ("train", "dev", "test"):
        (folder / f"{split}.mrg").write_text(_TREES)
        for suffix, lines in files.items():
            (folder / f"{split}.{suffix}").write_text("".join(f"{line}\n" for line in lines))
    images = np.arange(6 * 16, dtype=np.uint8).reshape(6, 4, 4)
    labels = np.array(["left", "right"] * 3)
    parts = {f"x_{name}": images for name in ("train", "val", "test")}
    np.savez(folder / "images.npz", **parts, **{f"y_{n[2:]}": labels for n in parts})


def make_family(folder: Path, name: str) -> Path:
    """A run directory with an untrained model of a family; `write_corpora` has been there."""
    scheme = {"parser": "trees:", "image classifier": "npz:"}.get(name, "text:")
    place = folder / "images.npz" if scheme == "npz:" else folder
    own = {"data.corpus": f"{scheme}{place}", "data.cache_dir": str(folder / "cache")}
    config = Config().replace(MODEL).replace(own | FAMILIES[name])
    corpus = open_corpus(config.data)
    task = task_of(corpus.name, corpus.task)
    vocabulary = task.vocabulary(config, corpus)
    if corpus.facts.predicts_labels and vocabulary.source_size:
        config = config.replace({"model.source_vocab_size": vocabulary.source_size})
    workdir = folder / name.replace(" ", "_")
    workdir.mkdir()
    write_untrained(workdir, config, corpus, vocabulary, steps=(3,))
    record = {"step": 3, "of": "train", "loss": 3.0, "nll": 3.0, "gradient_norm": 1.0}
    (workdir / "log.jsonl").write_text(f"{json.dumps(record)}\n")
    return workdir
