"""Update `parseval_goldens.json`: what EVALB counts for its pairs of trees, one for each rule.

    python tests/goldens/make_parseval_goldens.py DIRECTORY_OF_EVALB

The directory holds the program `evalb`, compiled from https://nlp.cs.nyu.edu/evalb/, and the file
`COLLINS.prm` that comes with it. The tests read the JSON and need neither. Add a case by its
`about`, `gold` and `predicted`; this program fills in the rest. The file has

    cases       of each pair what it is about, the gold and the predicted tree, and EVALB's row for
                it: `status` is 0 if the pair counts, 1 for an error and 2 if it is skipped
    all, short  EVALB's summary over all pairs, and over those of at most 40 words
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

GOLDENS = Path(__file__).with_name("parseval_goldens.json")
COLUMNS = (
    *("length", "status", "recall", "precision", "matched", "gold_brackets"),
    *("predicted_brackets", "crossing", "words", "correct_tags", "tagging_accuracy"),
)
SUMMARY = {
    "num_sentences": "Number of sentence",
    "num_errors": "Number of Error sentence",
    "num_skipped": "Number of Skip  sentence",
    "recall": "Bracketing Recall",
    "precision": "Bracketing Precision",
    "f1": "Bracketing FMeasure",
    "complete_match": "Complete match",
    "tagging_accuracy": "Tagging accuracy",
}


def run_evalb(directory: Path, cases: list[dict[str, Any]]) -> str:
    """What EVALB prints for all pairs."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, side) for side in ("gold", "predicted")]
        for path in paths:
            path.write_text("".join(f"{case[path.name]}\n" for case in cases), encoding="utf-8")
        options = ["-p", directory / "COLLINS.prm", "-e", "1000"]  # errors before it gives up
        command = [directory / "evalb", *options, *paths]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def read_summary(text: str) -> dict[str, float]:
    """The numbers of one block of the summary."""
    lines = dict(re.findall(r"^(.+?) += +(\S+)$", text, re.MULTILINE))
    return {name: float(lines[line]) for name, line in SUMMARY.items()}


def main() -> None:
    """Run EVALB and write the file."""
    cases = json.loads(GOLDENS.read_text(encoding="utf-8"))["cases"]
    table, _, summary = run_evalb(Path(sys.argv[1]), cases).partition("=== Summary ===")
    rows = [line.split()[1:] for line in table.splitlines() if re.match(r" *\d+  ", line)]
    for case, row in zip(cases, rows, strict=True):
        case.update(zip(COLUMNS, map(float, row), strict=True))
    overall, _, short = summary.partition("-- len<=40 --")
    goldens = {"cases": cases, "all": read_summary(overall), "short": read_summary(short)}
    text = json.dumps(goldens, indent=1, ensure_ascii=False) + "\n"
    GOLDENS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
