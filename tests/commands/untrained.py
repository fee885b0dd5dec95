"""Runs of untrained models on a tiny corpus of pairs and trees."""

from functools import partial

import jax

from t2t_jax.config import Config
from t2t_jax.data.corpus import open_corpus
from t2t_jax.modules.models import make_model
from t2t_jax.tasks import task_of
from t2t_jax.training.checkpoint import Checkpoints
from t2t_jax.training.origin import Identity
from t2t_jax.training.state import init_state
from t2t_jax.workdir import claim, fingerprints
from tests.tiny import tiny_sizes

NETWORK = tiny_sizes(16, (1, 1))
SOURCES = ["a red house", "the dog", "two dogs see a red house", "the house sees two dogs"]
TARGETS = ["ein rotes Haus", "der Hund", "zwei Hunde sehen ein Haus", "das Haus sieht zwei Hunde"]
TREES = """(TOP (S (NP-SBJ (DT The) (NN dog)) (VP (VBZ barks)) (. .)))
( (S (NP (NNS Cats)) (VP (VBP sleep)
    (PP (IN in) (NP (DT the) (NN house)))) (. .)) )
(TOP (NP (NP (NN Rain)) (, ,) (NP (NN wind))))
"""


def write_corpus(folder):
    """Write the same pairs and trees as train, dev and test split."""
    for split in ("train", "dev", "test"):
        (folder / f"{split}.mrg").write_text(TREES)
        for language, lines in (("en", SOURCES), ("de", TARGETS)):
            (folder / f"{split}.{language}").write_text("".join(f"{line}\n" for line in lines))


def make_run(folder, name, corpus, vocab_size, seed=0, **changes):
    """A run directory with an untrained model in two checkpoints."""
    fields = {
        "data.corpus": corpus,
        "data.vocab_size": vocab_size,
        "data.cache_dir": str(folder / "cache"),
        "training.seed": seed,
        "checkpoint.every_steps": 3,
        "decoding.max_extra_length": 5,
        "decoding.beam_size": 2,
    }
    config = Config().replace({**NETWORK, **fields, **changes})
    workdir = folder / name
    workdir.mkdir()
    data = open_corpus(config.data)
    vocabulary = task_of(corpus).vocabulary(config, data)
    write_untrained(workdir, config, data, vocabulary, steps=(3, 6))
    return workdir


def write_untrained(workdir, config, corpus, vocabulary, steps):
    """Write a run that was not trained; its parameters grow from checkpoint to checkpoint."""
    claim(workdir, config, corpus, vocabulary)
    state = jax.jit(partial(init_state, config, make_model(config, len(vocabulary), None)))()
    checkpoints = Checkpoints(workdir, Identity(config, fingerprints(corpus, vocabulary)))
    for step in steps:
        grown = jax.tree.map(lambda x, step=step: x * (1 + step / 10), state.params)
        checkpoints.save(state._replace(step=jax.numpy.int32(step), params=grown))
    checkpoints.close()
