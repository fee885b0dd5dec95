"""Measure the time from the start of a training to the end of the first training step.

    python benchmarks/startup.py
    python benchmarks/startup.py --config configs/big.py --repeats 1

Every field of the config is a flag. So that the step itself takes little time, it has 1,024
positions a side unless flags say more. Vocabulary and tokenised corpus, which a corpus needs once,
are made before anything is timed. Each repeat starts `train.py` twice in a new directory and ends
it after the step: `cold`, with an empty compilation cache of JAX, and `warm`, with the cache that
the cold start has filled. The parts:

    imports       until the program calls `train`: Python, its packages, the flags
    preparation   until the first step: devices, corpus, batches, parameters, run directory
    first_step    the first step: traced, compiled or read from the cache, and taken

JAX logs, for preparation and first step together, how long it traced (and lowered), how long XLA
compiled or read from the cache, and for how many programs. The first step should need one.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import command_line
import measuring

from t2t_jax.config import Config
from t2t_jax.data.corpus import open_corpus
from t2t_jax.errors import UserError
from t2t_jax.system.program import run
from t2t_jax.tasks import task_of

_TRAIN = Path(__file__).parents[1] / "train.py"
_BEGINS = re.compile(r"step 1 of 1 begins ([\d.]+) s after the start")
_ENDS = re.compile(r"step 1 +loss")
_TRACED = re.compile(r"Finished (?:tracing|jaxpr to MLIR) .*in ([\d.]+) sec")
_COMPILED = re.compile(r"Finished XLA compilation of .*in ([\d.]+) sec")
_CONFIG_FILE = """\
from pathlib import Path
from t2t_jax import Config

def get_config() -> Config:
    return Config.from_json(Path(__file__).with_suffix(".json").read_text())
"""


def main(arguments: Sequence[str]) -> int:
    """Measure what the command line asks for."""
    asked = command_line.command(command_line.Benchmark, arguments, _with_small_step)
    _prepare(asked.fields)
    imports = {name: partial(_import, name) for name in ("t2t_jax", "t2t_jax.run.trainer")}
    import_seconds = measuring.in_turns(
        {"python": partial(_python, "pass")} | imports, asked.repeats
    )
    started: dict[str, list[dict[str, float]]] = {"cold": [], "warm": []}
    for _ in range(asked.repeats):
        with tempfile.TemporaryDirectory() as folder:
            for cache, runs in started.items():
                runs.append(_first_step(asked.fields, Path(folder), cache))
    columns = [{"started": cache} | _summary(runs) for cache, runs in started.items()]
    bare = statistics.median(import_seconds["python"])
    common = command_line.setting(asked) | {
        f"import_{name}_seconds": statistics.median(import_seconds[name]) - bare for name in imports
    }
    measuring.show(common, columns, asked.json)
    return 0


def _with_small_step(config: Config) -> Config:
    """Return the config with steps that are small, but large enough for the longest sentence."""
    tokens = max(1024, -(-config.data.max_length // 8) * 8)
    bounds = ("data.source_tokens_per_step", "data.target_tokens_per_step")
    return config.replace(dict.fromkeys(bounds, tokens))


def _prepare(config: Config) -> None:
    """Fill the cache of corpora with everything that a run would write to it."""
    corpus = open_corpus(config.data)
    task = task_of(config.data.corpus, config.data.task)
    vocabulary = task.vocabulary(config, corpus)
    task.training_examples(config, corpus, vocabulary)
    if "dev" in corpus.splits:
        task.examples(config, corpus, vocabulary, "dev", config.model.longest_sentence)


def _python(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], cwd=_TRAIN.parent, check=True)


def _import(name: str) -> None:
    _python(f"import {name}")


def _first_step(config: Config, folder: Path, cache: str) -> dict[str, float]:
    """Start a run in a new directory, end it after its first step, and return its figures."""
    file = folder / "config.py"
    file.write_text(_CONFIG_FILE)
    config = config.replace({"training.num_train_steps": 1})
    file.with_suffix(".json").write_text(config.to_json())
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        "JAX_LOG_COMPILES": "1",
        "PYTHONUNBUFFERED": "1",
    }
    command = [sys.executable, str(_TRAIN), f"--config={file}", f"--workdir={folder / cache}"]
    start = time.perf_counter()
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    printed: list[tuple[float, str]] = []
    try:
        for line in process.stdout:
            printed.append((time.perf_counter() - start, line))
            if _ENDS.search(line):
                return _figures(printed)
    finally:
        process.kill()
        process.communicate()
    last = printed[-1][1].strip() if printed else "nothing was printed"
    raise UserError(f"train.py ended before its first step: {last}")


def _figures(printed: Sequence[tuple[float, str]]) -> dict[str, float]:
    """Return the seconds of each part of a run, from its printed lines and their times."""
    lines = [line for _, line in printed]
    first, begins = next(
        (n, found) for n, line in enumerate(lines) if (found := _BEGINS.search(line))
    )
    (begun, _), (ended, _) = printed[first], printed[-1]
    preparation = float(begins[1])

    def seconds_of(what: re.Pattern[str], start: int = 0) -> list[float]:
        return [float(found[1]) for line in lines[start:] if (found := what.search(line))]

    return {
        "seconds": ended,
        "imports_seconds": begun - preparation,
        "preparation_seconds": preparation,
        "first_step_seconds": ended - begun,
        "tracing_seconds": sum(seconds_of(_TRACED)),
        "tracing_seconds_of_first_step": sum(seconds_of(_TRACED, first)),
        "xla_seconds": sum(seconds_of(_COMPILED)),
        "xla_seconds_of_first_step": sum(seconds_of(_COMPILED, first)),
        "programs": len(seconds_of(_COMPILED)),
        "programs_of_first_step": len(seconds_of(_COMPILED, first)),
        "programs_from_cache": sum("compilation cache hit" in line for line in lines),
    }


def _summary(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the spread of the whole time, and the median of every other figure."""
    medians = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    return measuring.spread([run["seconds"] for run in runs]) | {
        name: value for name, value in medians.items() if name != "seconds"
    }


if __name__ == "__main__":
    run(main)
