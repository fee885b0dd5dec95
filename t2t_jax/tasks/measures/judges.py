"""Judges of single translations: measures of sacreBLEU, COMET, or any command; higher is better."""

import functools
import os
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from t2t_jax.errors import UserError, in_one_line, needs_extra

Judge: TypeAlias = Callable[[Sequence[str], Sequence[str], Sequence[str]], list[float]]
"""A function of sources, translations and references that gives a score for each translation."""
NAMES = "chrf, bleu, cmd:COMMAND or comet:MODEL"


@functools.cache
def judge_of(name: str) -> Judge:
    """Return the judge of a name.

    - `chrf` and `bleu`: sacreBLEU's scores of single sentences, 0 to 100.
    - `cmd:COMMAND`: a command of the shell. It gets a line for each translation, with the source,
      the translation and the reference between tabs, and prints as many lines, a number on each.
    - `comet:MODEL`: a model of the package unbabel-comet, by its name or its file.

    Raises:
      UserError: there is no such judge, or its package is not installed. The judge itself raises
        one where a command fails, or prints something else.
    """
    kind, _, rest = name.partition(":")
    if name in ("chrf", "bleu"):
        return partial(_of_sacrebleu, name)
    if kind == "cmd" and rest.strip():
        return partial(_by_command, rest)
    if kind == "comet" and rest:
        return _comet(rest)
    raise UserError(f"there is no metric {name!r}; give {NAMES}")


def _of_sacrebleu(
    name: str, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
) -> list[float]:
    with needs_extra("train", f"--metric {name}"):
        import sacrebleu
    metric: Any = sacrebleu.CHRF() if name == "chrf" else sacrebleu.BLEU(effective_order=True)
    pairs = zip(hypotheses, references, strict=True)
    return [metric.sentence_score(ours, [reference]).score for ours, reference in pairs]


def _by_command(
    command: str, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
) -> list[float]:
    rows = zip(sources, hypotheses, references, strict=True)
    text = "".join("\t".join(side.replace("\t", " ") for side in row) + "\n" for row in rows)
    done = subprocess.run(
        command, shell=True, input=text, capture_output=True, text=True, encoding="utf-8"
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["and said nothing"])[-1]
        raise UserError(f"the metric cmd:{command} ended with {done.returncode}: {said}")
    lines = done.stdout.splitlines()
    if len(lines) != len(hypotheses):
        raise UserError(
            f"the metric cmd:{command} printed {len(lines):,} lines for {len(hypotheses):,} "
            "translations; it has to print a number for each"
        )
    return [_number(line, number, command) for number, line in enumerate(lines, start=1)]


def _number(line: str, number: int, command: str) -> float:
    try:
        return float(line)
    except ValueError:
        raise UserError(
            f"line {number:,} of what the metric cmd:{command} printed is no number: {line!r:.80}"
        ) from None


def _comet(name: str) -> Judge:
    try:
        import comet
    except ImportError as error:
        raise UserError(
            f"--metric comet:{name} needs the package unbabel-comet ({in_one_line(error)}); "
            "install it: pip install unbabel-comet"
        ) from error
    model = comet.load_from_checkpoint(name if os.path.exists(name) else comet.download_model(name))

    def judge(
        sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
    ) -> list[float]:
        rows = zip(sources, hypotheses, references, strict=True)
        data = [{"src": source, "mt": ours, "ref": reference} for source, ours, reference in rows]
        return [float(one) for one in model.predict(data, progress_bar=False).scores]

    return judge
