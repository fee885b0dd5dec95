"""The report of a cleaning: what each rule dropped, with samples, and what is left."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from t2t_jax.data.cleaning.clean import CleanedCounts
from t2t_jax.data.cleaning.rules import RULES, PairCleaning
from t2t_jax.data.shards.reading import Faults
from t2t_jax.data.splits import digest
from t2t_jax.system.atomic_file import write_whole

_NUMBERS = "pairs", "source_words", "target_words"


def cleaning_report(
    cleaning: PairCleaning,
    counts: CleanedCounts,
    inputs: Mapping[str, str],
    skipped: Faults,
    runs: Mapping[str, str],
) -> dict[str, Any]:
    """Return what `report.json` holds.

    Args:
      inputs: hash of the content of each split that was read.
      skipped: lines that could not be read.
      runs: names of the runs whose scores were used.

    Returns:
      The settings and `hash`, a hash of them and of the input; then the numbers.
    """
    settings = {
        "languages": cleaning.languages,
        "rules": cleaning.rules,
        "limits": asdict(cleaning.limits),
        "runs": dict(runs),
        "inputs": dict(inputs),
    }
    return {
        "hash": digest(json.dumps(settings)),
        **settings,
        "skipped": {
            reason: {"lines": count, "first": skipped.first[reason].rpartition("/")[2]}
            for reason, count in skipped.counts.items()
        },
        "read": dict(zip(_NUMBERS, counts.read, strict=True)),
        "kept": dict(zip(_NUMBERS, counts.kept, strict=True)),
        "dropped": {
            name: {
                "pairs": dropped.pairs,
                "alone": dropped.alone,
                "samples": [{"source": s, "target": t} for _, s, t in dropped.samples],
            }
            for name, dropped in counts.dropped.items()
        },
    }


def cleaning_rows(report: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of the table of a report: a rule, its two numbers of pairs, what it drops."""
    for reason, of in report["skipped"].items():
        lines = f"{of['lines']:,}"
        yield reason.replace("_", " "), lines, lines, f"Skip lines at fault; first {of['first']}."
    for name, of in report["dropped"].items():
        yield name, f"{of['pairs']:,}", f"{of['alone']:,}", RULES[name].about


def cleaning_summary(report: Mapping[str, Any]) -> str:
    """Return a line that says how much of a corpus a cleaning has kept."""
    read, kept = report["read"], report["kept"]
    share = kept["pairs"] / max(1, read["pairs"])
    return (
        f"{kept['pairs']:,} of {read['pairs']:,} pairs are kept ({share:.1%}), with "
        f"{kept['source_words']:,} and {kept['target_words']:,} words"
    )


def write_cleaning_report(directory: Path, report: Mapping[str, Any], sources: str) -> None:
    """Write `report.json`, `report.md` and `SOURCES.md` into the directory of a cleaned corpus.

    Args:
      sources: what the SOURCES.md of the input says, if there is one.
    """
    content = json.dumps(report, indent=1, ensure_ascii=False)
    lines = ["# What was dropped", "", f"{cleaning_summary(report)}.", ""]
    lines += ["| rule | pairs, first dropped by it | alone | what it does |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in cleaning_rows(report)]
    for name, of in report["dropped"].items():
        if of["samples"]:
            lines += ["", f"## Samples of {name}"]
        for pair in of["samples"]:
            lines += ["", f"    {pair['source']}", f"    {pair['target']}"]
    made = (
        "# A cleaned corpus\n\nMade by `t2t-jax data clean` from the text below. Training pairs "
        f"were chosen by the rules {', '.join(report['rules'])}, whose limits are in "
        f"`report.json`; the other splits are as they were.\n\nHash of rules, limits and text: "
        f"{report['hash']}\n"
    )
    text = made + (f"\n{sources}" if sources else "")
    files = {
        "SOURCES.md": text,
        "report.md": "\n".join(lines) + "\n",
        "report.json": f"{content}\n",
    }
    for name, content in files.items():
        write_whole(directory / name, content.encode())
