"""Whole programs: the training loop beside its bare step, and a file translated.

The base model with 8,000 subwords learns from the bundled corpus, packed into rows of 64, with the
log and checkpoints of any run. The bare step is the same step on one full batch that stays on the
device. The file is the bundled test set, in English. The model has learned too little to end its
sentences, so that translations are nearly as long as they may be.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from on_accelerator.logs import seconds_of_a_step
from on_accelerator.sizes import QUEUED, config_of, repeats
from t2t_jax.config import Config, DataConfig, differences
from t2t_jax.config.file import load_config
from t2t_jax.data.corpus import open_corpus

_EVERY = 10
"""The number of steps from one line of the log to the next."""


def measure(tiny: bool) -> Iterator[dict[str, Any]]:
    """Measure this part, and yield its rows."""
    # The runs come first: what JAX does in this process may take all memory of the device.
    with tempfile.TemporaryDirectory() as folder:
        config, workdir = _config(tiny), Path(folder, "run")
        _run("train.py", "--config=configs/base.py", "--workdir", str(workdir), *_flags(config))
        looped = seconds_of_a_step(workdir)
        translated = [*_translations(workdir, Path(folder), tiny)]
    bare = _bare_step(config, tiny)
    yield {
        "table": "the loop",
        "loop_milliseconds": 1e3 * looped,
        "bare_step_milliseconds": 1e3 * bare,
        "speed_beside_the_bare_step": bare / looped,
    }
    yield from translated


def _config(tiny: bool) -> Config:
    tokens = 512 if tiny else 25_000
    steps = 3 if tiny else 10
    return config_of("base", "bfloat16", tiny).replace(
        {
            "data.corpus": "bundled:",
            "data.vocab_size": 500 if tiny else 8000,
            "data.max_length": 64,
            "data.batching": "pack",
            "data.source_tokens_per_step": tokens,
            "data.target_tokens_per_step": tokens,
            "training.num_train_steps": steps * _EVERY,
            "training.log_every_steps": _EVERY,
            "evaluation.num_sentences": 1,
            "decoding.max_extra_length": 5 if tiny else 50,
        }
    )


def _flags(config: Config) -> list[str]:
    """Return the flags that turn configs/base.py into this config."""
    changed = differences(load_config("configs/base.py"), config)
    return [f"--{path}={value}" for path, (_, value) in changed.items()]


def _bare_step(config: Config, tiny: bool) -> float:
    import measuring
    import workload

    length = config.data.max_length
    rows = config.data.target_tokens_per_step // length
    take = partial(workload.training(config, rows, length), QUEUED)
    return statistics.median(measuring.in_turns({"": take}, repeats(tiny))[""]) / QUEUED


def _translations(workdir: Path, folder: Path, tiny: bool) -> Iterator[dict[str, Any]]:
    source, output = folder / "source", folder / "output"
    lines = open_corpus(DataConfig()).lines("test")[0][: 5 if tiny else None]
    source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    for beam_size in (1,) if tiny else (1, 4):
        seconds = []
        for _ in range(1 if tiny else 2):  # the second call finds programs in the cache
            start = time.perf_counter()
            files = "--input", str(source), "--output", str(output)
            _run(
                "eval.py",
                "translate",
                "--workdir",
                str(workdir),
                *files,
                f"--beam-size={beam_size}",
            )
            seconds.append(time.perf_counter() - start)
        yield {
            "table": "a file translated",
            "lines": len(lines),
            "beam_size": beam_size,
            "seconds, with compilation": seconds[0],
            "seconds, compiled before": seconds[-1],
            "lines_per_second": len(lines) / seconds[-1],
        }


def _run(*command: str) -> None:
    subprocess.run([sys.executable, *command], check=True)
