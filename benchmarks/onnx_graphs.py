"""Measure graphs of ONNX by onnxruntime in one thread: their size, and the tokens of greedy search.

    t2t-jax export runs/quickstart exported/onnx --to onnx
    python benchmarks/onnx_graphs.py exported/onnx

Sources are random and of 24 subwords, and every search writes 48, whatever comes. Beside the tokens
a second there are those of a second of a core, which a busy machine changes less. Of five searches
it is the median.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import onnxruntime

_SOURCE, _STEPS, _ROUNDS = 24, 48, 5


def _session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def main() -> None:
    """Print a line for the size, and one for each number of rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    about = json.loads((directory / "model.json").read_text())
    paths = [directory / about[name] for name in ("encoder", "decoder")]
    print(json.dumps({path.name: path.stat().st_size for path in paths}))
    encoder, decoder = map(_session, paths)
    names = ["logits", *(f"present.{name}" for name in about["cache"])]

    def search(rows: int) -> None:
        sources = np.random.default_rng(0).integers(4, 100, (rows, _SOURCE)).astype(np.int32)
        memory = encoder.run(about["memory"], {"sources": sources})
        state = dict(zip(about["memory"], memory, strict=True))
        cache = {
            f"past.{name}": np.zeros([rows, *shape], np.float32)
            for name, shape in about["cache"].items()
        }
        tokens = np.zeros(rows, np.int32)
        for _ in range(_STEPS):
            logits, *arrays = decoder.run(names, {"tokens": tokens, **state, **cache})
            tokens = logits.argmax(-1).astype(np.int32)
            cache = dict(zip(cache, arrays, strict=True))

    for rows in (1, 16):
        rates = []
        for _ in range(_ROUNDS):
            start = time.perf_counter(), time.process_time()
            search(rows)
            ends = time.perf_counter(), time.process_time()
            rates.append([rows * _STEPS / (b - a) for a, b in zip(start, ends, strict=True)])
        wall, core = map(statistics.median, zip(*rates, strict=True))
        print(json.dumps({"rows": rows, "tokens/s": round(wall), "of a core": round(core)}))


if __name__ == "__main__":
    main()
