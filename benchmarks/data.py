"""Measure how fast the host makes batches, without a model: the rate at which it can feed one.

    python benchmarks/data.py
    python benchmarks/data.py --data.corpus text:DIR --data.source-language en

Every field of the config is a flag. Vocabulary and tokenised corpus are made, or found in the
cache, before anything is timed. Then, in turns:

    encode     SentencePiece on all cores: lines of text, of both languages, to subwords
    bucket     one epoch of training batches in length buckets, the shuffle included
    pack       the same in packed rows

Batches are made in two ways: on one core (`alone`), and ahead in the background as in training
(`prefetch`). The batches are not used. Padding is the share of all positions that hold no token; it
depends on the size of a step, as longer rows are fewer. `layout_seconds` is spent once at the start
of a run.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count
from typing import Any

import command_line
import measuring

from t2t_jax.config import DataConfig
from t2t_jax.data.batching import Batch, Batches
from t2t_jax.data.corpus import open_corpus
from t2t_jax.data.rows import Examples
from t2t_jax.system.program import run
from t2t_jax.tasks import task_of


@dataclass(frozen=True)
class Data(command_line.Benchmark):
    """Measure the host's part in training."""


def main(arguments: Sequence[str]) -> int:
    """Measure what the command line asks for."""
    asked = command_line.command(Data, arguments)
    config = asked.fields.data
    corpus = open_corpus(config)
    task = task_of(config.corpus, config.task)
    vocabulary = task.vocabulary(asked.fields, corpus)
    split = task.training_examples(asked.fields, corpus, vocabulary)
    lines = list(chain.from_iterable(next(corpus.pairs("train"))))
    columns = [{"measured": "encode", "how": "all cores", "lines": len(lines)}]
    columns[0]["tokens"] = sum(map(len, vocabulary.encode(lines)))
    calls: list[Callable[[], object]] = [partial(vocabulary.encode, lines)]
    for batching in ("bucket", "pack"):
        made, readers = _readers(split, config, batching, asked.fields.training.seed)
        for how, reader in readers.items():
            columns.append({"measured": batching, "how": how} | made)
            calls.append(reader)
    seconds = measuring.in_turns(dict(enumerate(calls)), asked.repeats)
    for number, column in enumerate(columns):
        column |= measuring.spread(seconds[number])
        for what in ("lines", "pairs", "target_tokens", "tokens"):
            if what in column:
                column[f"{what}_per_second"] = column[what] / column["seconds_median"]
    common = command_line.setting(asked) | {"corpus": config.corpus, "vocabulary": len(vocabulary)}
    measuring.show(common, columns, asked.json)
    if not asked.json:
        fed = {
            column["measured"]: f"{column['target_tokens_per_second']:,.0f}"
            for column in columns
            if column.get("how") == "prefetch"
        }
        print()
        print(
            f"The trainer is fed {fed['bucket']} target tokens/s in buckets, {fed['pack']} packed."
        )
    return 0


def _readers(
    split: Examples, config: DataConfig, batching: Any, seed: int
) -> tuple[dict[str, Any], dict[str, Callable[[], object]]]:
    """Return the figures of an epoch, and functions that each read one more epoch."""
    start = time.perf_counter()
    batches = Batches(split, replace(config, batching=batching), seed)
    seconds = time.perf_counter() - start
    source, target = len(split.source_tokens), len(split.target_tokens)
    figures = {
        "pairs": len(split),
        "target_tokens": target,
        "tokens": source + target,
        "steps": batches.steps_per_epoch,
        "shapes": len(batches.shapes),
        **{f"{side}_padding": waste for side, waste in batches.padding_waste.items()},
        "layout_seconds": seconds,
    }

    def alone(start: int, stop: int) -> Iterable[Batch]:
        return map(batches, range(start, stop))

    return figures, {
        "alone": partial(_read_epoch, alone, batches.steps_per_epoch, count()),
        "prefetch": partial(_read_epoch, batches.prefetch, batches.steps_per_epoch, count()),
    }


def _read_epoch(
    read: Callable[[int, int], Iterable[Batch]], steps: int, epochs: Iterator[int]
) -> None:
    epoch = next(epochs)
    for _ in read(epoch * steps, (epoch + 1) * steps):
        pass


if __name__ == "__main__":
    run(main)
