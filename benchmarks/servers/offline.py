"""Translate the lines of a file in one call, as often as the parent asks: the offline rate.

    python -m servers.offline RUN BEAM_SIZE LONGEST LINES OUTPUT

The translations are written to OUTPUT. Then the program prints the seconds that the call took. For
each line on its standard input it translates again, and prints the seconds of that call.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from t2t_jax.system.program import run


def main(arguments: Sequence[str]) -> int:
    """Translate until the standard input ends, and return the exit code."""
    from t2t_jax.run.loading import load

    workdir, beam_size, longest, source, out = arguments
    lines = json.loads(Path(source).read_text(encoding="utf-8"))
    translator = load(workdir)
    overrides = {
        "beam_size": int(beam_size),
        "max_source_length": min(int(longest), translator.config.decoding.max_source_length),
        "quantize": "none",
    }

    def seconds() -> float:
        start = time.perf_counter()
        found = translator.translate(lines, **overrides)
        Path(out).write_text(json.dumps(found), encoding="utf-8")
        return time.perf_counter() - start

    print(seconds(), flush=True)
    for _ in sys.stdin:
        print(seconds(), flush=True)
    return 0


if __name__ == "__main__":
    run(main)
