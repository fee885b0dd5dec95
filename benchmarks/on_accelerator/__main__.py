"""Run one part: `python -m on_accelerator NAME [--tiny]` prints each row of figures as JSON."""

import importlib
import json
import os
import sys


def main() -> None:
    """Measure the part that the command line names."""
    name, *flags = sys.argv[1:]
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as rows:
        # Whatever libraries print belongs to the log, and not among the figures.
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        for row in importlib.import_module(f"on_accelerator.{name}").measure("--tiny" in flags):
            print(json.dumps(row), file=rows, flush=True)


if __name__ == "__main__":
    main()
