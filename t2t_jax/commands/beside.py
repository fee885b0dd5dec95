"""The files that `translate` writes beside its output: alignments and confidences."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from t2t_jax.commands.streams import writing
from t2t_jax.errors import UserError

if TYPE_CHECKING:
    from t2t_jax.decoding.translations import Hypothesis
    from t2t_jax.decoding.translator import Translator
    from t2t_jax.run.calibration import Calibration


class FilesBeside:
    """The files of alignments and of confidences, with a line for each line of output."""

    def __init__(
        self,
        alignments: Path | None,
        head: tuple[int, int] | None,
        confidence: Path | None,
        stack: ExitStack,
    ) -> None:
        """Open the files in a context; head None is the head whose links agree most."""
        self._head = head
        self._alignments, self._confidence = (
            stack.enter_context(writing(path)) if path else None
            for path in (alignments, confidence)
        )

    def begin(self, translator: "Translator", workdirs: Sequence[Path]) -> None:
        """Read the calibration of a model and its run directories, if confidences are written."""
        from t2t_jax.run.calibration import FILE, read_calibration

        self._translator = translator
        self._calibration: Calibration | None = None
        if self._confidence:
            self._calibration = read_calibration(workdirs, translator)
            stored = [path / FILE for path in workdirs if (path / FILE).is_file()]
            if stored and self._calibration is None:
                print(f"{stored[0]} is of other checkpoints, and not used", file=sys.stderr)

    def write(self, sources: Sequence[str], found: list[list["Hypothesis"]]) -> None:
        """Write a line for each hypothesis of each line of the input."""
        each = [
            (source, one)
            for source, hypotheses in zip(sources, found, strict=True)
            for one in hypotheses
        ]
        if self._confidence:
            from t2t_jax.run.calibration import confidence

            numbers = (confidence(one, self._calibration) for _, one in each)
            self._confidence.writelines(f"{number:.4f}\n".encode() for number in numbers)
        if self._alignments:
            self._write_alignments(self._alignments, each)

    def _write_alignments(self, file: BinaryIO, each: Sequence[tuple[str, "Hypothesis"]]) -> None:
        from t2t_jax.decoding.alignments import alignments

        sources = [source for source, _ in each]
        targets = [one.text for _, one in each]
        found = alignments(self._translator, sources, targets, head=self._head)
        if any(found.links):  # some line is not blank, so the head is chosen
            self._head = found.head
        lines = (" ".join(f"{i}-{j}" for i, j in links) for links in found.links)
        file.writelines(f"{line}\n".encode() for line in lines)


def head_of(flag: str | None) -> tuple[int, int] | None:
    """Return the layer and the head that a flag names as LAYER:HEAD; None without the flag."""
    if flag is None:
        return None
    layer, colon, head = flag.partition(":")
    if not (colon and layer.isdecimal() and head.isdecimal()):
        raise UserError(f"--alignment-head {flag} is no head; give LAYER:HEAD, as in 5:3")
    return int(layer), int(head)
