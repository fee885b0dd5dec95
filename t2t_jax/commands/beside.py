"""The files that `translate` writes beside its output: alignments and confidences."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from t2t_jax.errors import UserError

if TYPE_CHECKING:
    from t2t_jax.decoding.translations import Hypothesis
    from t2t_jax.decoding.translator import Translator


@dataclass
class FilesBeside:
    """The files of alignments and of confidences, with a line for each line of output."""

    translator: "Translator"
    """The model."""
    alignments: BinaryIO | None
    """The file of alignments, if any."""
    head: tuple[int, ...] | None
    """The layer and head of the attention, and the step; None is that whose links agree most."""

    def write(self, sources: Sequence[str], found: list[list["Hypothesis"]]) -> None:
        """Write a line for each hypothesis of each line of the input."""
        each = [
            (source, one)
            for source, hypotheses in zip(sources, found, strict=True)
            for one in hypotheses
        ]
        if self.alignments:
            self._write_alignments(self.alignments, each)

    def _write_alignments(self, file: BinaryIO, each: Sequence[tuple[str, "Hypothesis"]]) -> None:
        from t2t_jax.decoding.alignments import alignments

        sources = [source for source, _ in each]
        targets = [one.text for _, one in each]
        found = alignments(self.translator, sources, targets, head=self.head)
        if any(found.links):  # some line is not blank, so the head is chosen
            self.head = found.head
        lines = (" ".join(f"{i}-{j}" for i, j in links) for links in found.links)
        file.writelines(f"{line}\n".encode() for line in lines)


def head_of(flag: str | None) -> tuple[int, ...] | None:
    """Return the numbers of a flag of the form LAYER:HEAD or LAYER:HEAD:STEP; None without it.

    Raises:
      UserError: the value names no head.
    """
    if flag is None:
        return None
    numbers = flag.split(":")
    if len(numbers) not in (2, 3) or not all(map(str.isdecimal, numbers)):
        raise UserError(
            f"--alignment-head {flag} is no head; give LAYER:HEAD or LAYER:HEAD:STEP, as in 5:3"
        )
    return tuple(map(int, numbers))
