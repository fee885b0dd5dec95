"""Searches with the base model in bfloat16: sources of 32 random tokens, outputs of 48.

The model is not trained and never ends a sentence, so every search writes as many tokens as it may.
A search reads its sentences from the host and ends when its hypotheses are back there.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import measuring
import workload
from workload import jax

from on_accelerator.sizes import config_of, repeats
from t2t_jax.decoding.programs import proceed

_CASES = ((32, 1), (32, 4), (1, 1), (1, 4), (256, 1), (256, 4), (1024, 1), (1024, 4))
"""The number of sentences decoded together, and the size of the beam."""


def measure(tiny: bool) -> Iterator[dict[str, Any]]:
    """Measure this part, and yield its rows."""
    if not tiny:
        measuring.compile_afresh()
    config = config_of("base", "bfloat16", tiny)
    source_length, target_length = (4, 5) if tiny else (32, 48)
    params = workload.random_parameters(config)
    for batch_size, beam_size in _CASES[:2] if tiny else _CASES:
        search = config.replace({"decoding.beam_size": beam_size})
        lengths = source_length, target_length
        fixed, fresh = workload.search_arguments(search, params, batch_size, *lengths)
        program, cost = measuring.compiled(proceed, *fixed, *fresh())
        call = partial(_search, program, fresh)
        taken = measuring.spread(measuring.in_turns({"": call}, repeats(tiny))[""])
        yield {
            "table": "searches",
            "sentences": batch_size,
            "beam_size": beam_size,
            "milliseconds_median": 1e3 * taken["seconds_median"],
            "tokens_per_second": batch_size * target_length / taken["seconds_median"],
            "sentences_per_second": batch_size / taken["seconds_median"],
            "milliseconds_per_position": 1e3 * taken["seconds_median"] / target_length,
            "compile_seconds": cost["compile_seconds"],
            "program_gib": cost["program_bytes"] / 2**30,
        }


def _search(program: Any, fresh: Any) -> None:
    jax.device_get(program(*fresh())[1].best.tokens)
