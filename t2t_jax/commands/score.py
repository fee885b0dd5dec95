"""The command `score`: compute the probability of translations under a model."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import tyro

from t2t_jax.commands.model_flags import LanguageFlags
from t2t_jax.commands.streams import open_output
from t2t_jax.data.lines import check_aligned, read_lines


@dataclass(frozen=True)
class ScoreCommand(LanguageFlags):
    """Compute the log-probability of given translations under a model (forced decoding).

    For each sentence pair, the command writes a line `log-probability ||| log-probability of each
    subword`, in nats, including the end-of-sentence token. With --subwords, it writes
    `subword=log-probability` for each subword.
    """

    command: ClassVar = "score"
    source: Path = tyro.MISSING
    """File of source sentences, one per line."""
    target: Path = tyro.MISSING
    """File of translations, line by line parallel to --source."""
    output: Path | None = None
    """Output file, written atomically; None is the standard output."""
    subwords: bool = False
    """Also write the subwords."""

    def run(self) -> int:
        """Write a line for each sentence pair, and return the exit code."""
        from t2t_jax.decoding.scoring import score

        sources, targets = list(read_lines(self.source)), list(read_lines(self.target))
        check_aligned(self.source, len(sources), self.target, len(targets))
        with open_output(self.output) as file:
            translator = self.load()
            scores = score(translator, sources, targets)
            pieces = translator.vocabulary.target_pieces([pair.tokens for pair in scores])
            for pair, subwords in zip(scores, pieces, strict=True):
                columns = [f"{log_prob:.4f}" for log_prob in pair.token_log_probs]
                if self.subwords:
                    columns = list(map("=".join, zip(subwords, columns, strict=True)))
                file.write(f"{pair.log_prob:.4f} ||| {' '.join(columns)}\n".encode())
        return 0
