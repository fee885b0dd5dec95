"""Measure the speed of a search: tokens/s and sentences/s over a grid of batch and beam sizes.

    python benchmarks/decode.py
    python benchmarks/decode.py --config configs/big.py --batch-sizes 64 --beam-sizes 1 4 8

Every field of the config is a flag. Sources are random and all of one length; the model is
untrained and never ends a sentence, so every search writes as many tokens as it may. The tokens of
the best hypothesis of each sentence are counted, not those of the others in the beam. A search
reads its sentences from the host and ends when its hypotheses are back there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import command_line
import measuring
import numpy as np
import workload

from t2t_jax.config import Config
from t2t_jax.decoding.programs import proceed
from t2t_jax.errors import UserError
from t2t_jax.system.program import run


@dataclass(frozen=True)
class Decode(command_line.Benchmark):
    """Measure the search with a config's model."""

    batch_sizes: tuple[int, ...] = (1, 8, 32)
    """Sentences decoded together."""
    beam_sizes: tuple[int, ...] = (1, 4)
    """Hypotheses kept for each sentence; 1 is greedy search."""
    source_length: int = 32
    """Tokens of a source."""
    target_length: int = 48
    """Tokens of a translation."""


def main(arguments: Sequence[str]) -> int:
    """Measure what the command line asks for."""
    asked = command_line.command(Decode, arguments)
    measuring.compile_afresh()
    params = workload.random_parameters(asked.fields)
    columns, searches = [], {}
    for number, (beam_size, batch_size) in enumerate(product(asked.beam_sizes, asked.batch_sizes)):
        config = asked.fields.replace({"decoding.beam_size": beam_size})
        cost, searches[number] = _compiled(config, params, batch_size, asked)
        columns.append({"beam_size": beam_size, "batch_size": batch_size} | cost)
    seconds = measuring.in_turns(searches, asked.repeats)
    for number, column in enumerate(columns):
        column["tokens"] = column["batch_size"] * asked.target_length
        column |= measuring.spread(seconds[number])
        column["tokens_per_second"] = column["tokens"] / column["seconds_median"]
        column["sentences_per_second"] = column["batch_size"] / column["seconds_median"]
    common = command_line.device_setting(asked) | {
        "source_length": asked.source_length,
        "target_length": asked.target_length,
        "process_bytes": measuring.process_bytes(),
    }
    measuring.show(common, columns, asked.json)
    return 0


def _compiled(
    config: Config, params: Any, batch_size: int, asked: Decode
) -> tuple[dict[str, float], Callable[[], None]]:
    """Compile a search; return the seconds and bytes of compiling, and a function that runs it."""
    fixed, fresh = workload.search_arguments(
        config, params, batch_size, asked.source_length, asked.target_length
    )
    program, cost = measuring.compiled(proceed, *fixed, *fresh())
    return cost, partial(_search, program, fresh, asked.target_length)


def _search(program: Any, fresh: Callable[[], Sequence[Any]], target_length: int) -> None:
    _, progress = program(*fresh())
    shortest = int(np.asarray(progress.best.lengths).min())
    np.asarray(progress.best.tokens)
    if shortest < target_length:
        raise UserError(
            f"a search ended after {shortest} tokens of {target_length}; use a larger "
            "data.vocab_size, and model.share_embeddings"
        )


if __name__ == "__main__":
    run(main)
