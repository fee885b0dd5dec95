"""The command that scores given translations by their probability under a model."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import tyro

from t2t_jax.commands.model_flags import LanguageFlags
from t2t_jax.commands.streams import writing
from t2t_jax.data.lines import check_aligned, read_lines


@dataclass(frozen=True)
class ScoreCommand(LanguageFlags):
    """Compute the log-probability of given translations under a model (forced decoding).

    Each pair of lines gives a line `log-probability ||| log-probability of each subword`, in nats,
    with the end of the sentence. With --subwords each is written as `subword=log-probability`.
    """

    command: ClassVar = "score"
    source: Path = tyro.MISSING
    """File of source sentences."""
    target: Path = tyro.MISSING
    """File of their translations, line by line."""
    output: Path | None = None
    """File to write, all of it or nothing; None is the standard output."""
    subwords: bool = False
    """Write the subwords too."""

    def run(self) -> int:
        """Write a line for each pair of sentences, and return the exit code."""
        from t2t_jax.decoding.scoring import score

        sources, targets = list(read_lines(self.source)), list(read_lines(self.target))
        check_aligned(self.source, len(sources), self.target, len(targets))
        with writing(self.output) as file:
            translator = self.load()
            scores = score(translator, sources, targets)
            pieces = translator.vocabulary.target_pieces([one.tokens for one in scores])
            for one, subwords in zip(scores, pieces, strict=True):
                tokens = [f"{log_prob:.4f}" for log_prob in one.token_log_probs]
                if self.subwords:
                    tokens = list(map("=".join, zip(subwords, tokens, strict=True)))
                file.write(f"{one.log_prob:.4f} ||| {' '.join(tokens)}\n".encode())
        return 0
