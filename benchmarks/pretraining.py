"""Measure the gain of a tagger with few sentences from an encoder that learned to fill in words.

    python benchmarks/pretraining.py --trees WSJ --text WSJ GUM --workdir runs/pretraining

An encoder of configs/mlm_small.py learns to fill in words of the sentences of some treebanks, whose
brackets it never sees. Then taggers of configs/tagger_small.py learn the tags of the first
sentences of one treebank: some start from that encoder, and some from an encoder of the same kind
after a single step, so that both have the same vocabulary. Each is scored on dev. A run that is
done already is not repeated.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Table

from t2t_jax.config import Config
from t2t_jax.config.file import load_config
from t2t_jax.data.trees import clean_tree, is_tag, linearise, read_trees
from t2t_jax.run.evaluation import evaluate
from t2t_jax.run.loading import load
from t2t_jax.run.trainer import train
from t2t_jax.system.program import run
from t2t_jax.system.records import as_line


@dataclass(frozen=True)
class Pretraining:
    """Compare taggers that start from another encoder."""

    trees: Path
    """Directory with train.mrg and dev.mrg, whose tags are learned and scored."""
    text: tuple[Path, ...]
    """Directories with train.mrg, whose words the encoder fills in."""
    workdir: Path
    """Directory for all runs."""
    sentences: int = 200
    """Sentences with tags, from the first on."""
    steps: int = 2000
    """Steps in which words are filled in."""
    tagging_steps: int = 300
    """Steps in which tags are learned."""
    seeds: int = 3
    """Taggers of each kind, each with a seed of its own."""
    json: bool = False
    """Print one JSON object for each row of the table."""


def main(arguments: Sequence[str]) -> int:
    """Train everything, and print the table."""
    asked = tyro.cli(Pretraining, args=list(arguments))
    corpora = asked.workdir / "corpora"
    _write(corpora / "text", "train.txt", (words for words, _ in _sentences(asked.text)))
    for split, most in (("train", asked.sentences), ("dev", None)):
        pairs = list(islice(_sentences([asked.trees], split), most))
        _write(corpora / "tags", f"{split}.txt", (words for words, _ in pairs))
        _write(corpora / "tags", f"{split}.tags", (tags for _, tags in pairs))
    masked = load_config("configs/mlm_small.py").replace({"data.corpus": f"text:{corpora}/text"})
    rows = []
    for name, steps in (("after one step", 1), (f"after {asked.steps:,} steps", asked.steps)):
        encoder = asked.workdir / f"encoder-{steps}"
        _train(masked.replace({"training.num_train_steps": steps}), encoder)
        scores = [_tagger(asked, encoder, steps, seed) for seed in range(asked.seeds)]
        rows.append({"encoder": name, "accuracy": scores})
    _show(rows, asked.json)
    return 0


def _tagger(asked: Pretraining, encoder: Path, steps: int, seed: int) -> float:
    """Train a tagger that starts from an encoder, and return its accuracy on dev."""
    workdir = asked.workdir / f"tagger-{steps}-{seed}"
    changes = {
        "data.corpus": f"text:{asked.workdir}/corpora/tags",
        "training.init_from": str(encoder),
        "training.seed": seed,
        "training.num_train_steps": asked.tagging_steps,
        "training.peak_learning_rate": 1e-3,
        "evaluation.every_steps": asked.tagging_steps,
        "evaluation.num_samples": 0,
    }
    _train(load_config("configs/tagger_small.py").replace(changes), workdir)
    return evaluate(load(workdir), split="dev").scores.best


def _train(config: Config, workdir: Path) -> None:
    if code := train(config, workdir):
        raise SystemExit(code)


def _sentences(directories: Sequence[Path], split: str = "train") -> Iterator[tuple[str, str]]:
    """Yield the words and the tags of the sentences of some treebanks."""
    for directory in directories:
        for tree in read_trees(directory / f"{split}.mrg"):
            words, symbols = linearise(clean_tree(tree))
            yield " ".join(words), " ".join(filter(is_tag, symbols))


def _write(directory: Path, name: str, lines: Iterator[str]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _show(rows: list[dict[str, object]], as_json: bool) -> None:
    if as_json:
        for row in rows:
            print(as_line(row))
        return
    table = Table("encoder", "accuracy on dev", "of each seed", box=None)
    for row in rows:
        scores = row["accuracy"]
        assert isinstance(scores, list)
        each = ", ".join(f"{score:.2f}" for score in scores)
        table.add_row(str(row["encoder"]), f"{statistics.mean(scores):.2f}", each)
    Console().print(table)


if __name__ == "__main__":
    run(main)
