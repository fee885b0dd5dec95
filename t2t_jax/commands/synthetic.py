"""The commands that have a model write one side of pairs to train on."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import tyro

from t2t_jax.commands.model_flags import DecodingFlags, LanguageFlags
from t2t_jax.commands.tables import counted, grid, print_line, print_result
from t2t_jax.data.lines import read_lines, survey
from t2t_jax.errors import UserError
from t2t_jax.system.bucket import as_path

_RULES = "empty", "length", "ratio", "broken", "copies"


@dataclass(frozen=True)
class SyntheticCommand(LanguageFlags, DecodingFlags):
    """Flags of a command that has a model write one side of pairs."""

    command: ClassVar = "translate"
    backward: ClassVar[bool]
    """Whether the translations are the sources of the pairs."""
    text: Path = tyro.MISSING
    """File with the text to translate, a sentence a line, plain or packed."""
    out: str = tyro.MISSING
    """Directory or bucket for the pairs, as shards. After an interruption, the same command goes
    on."""
    tag: str = ""
    """Token in front of each source, such as <BT>, by which a model tells these pairs from others;
    a training needs it among --data.protected-tokens."""
    rules: tuple[str, ...] = _RULES
    """Rules of data clean by which pairs are dropped, with their usual limits."""

    def run(self) -> int:
        """Translate the text, print what was dropped, and return the exit code."""
        from t2t_jax.data.cleaning.rules import PairCleaning
        from t2t_jax.data.shards.listing import written_place
        from t2t_jax.run.synthetic import synthesise

        if self.tag.split() != [self.tag] * bool(self.tag):
            raise UserError(f"--tag {self.tag!r} is not one token without spaces, such as <BT>")
        size = survey(self.text)
        translator = self.load()
        data = translator.config.data
        languages = data.source_language, data.target_language
        languages = languages[::-1] if self.backward else languages
        cleaning = PairCleaning(languages, rules=self.rules)
        about = {
            "text": size.digest,
            "runs": [str(run) for run in self.workdir],
            "steps": list(translator.steps),
            "decoding": asdict(self.decoding),
            "seed": self.seed,
            "tag": self.tag,
            "rules": list(cleaning.rules),
        }
        if translator.vocabulary.marked_languages:
            about["languages"] = list(languages)

        def translate(lines: list[str], first_line: int) -> list[str]:
            return translator.translate(lines, first_line=first_line, **self.settings)

        out = as_path(self.out)
        counts = synthesise(
            counted(read_lines(self.text, size), "lines", size.num_lines),
            out,
            translate,
            cleaning,
            about,
            backward=self.backward,
            tag=self.tag,
        )
        table = grid("rule", "pairs", "alone")
        for name, dropped in counts.dropped.items():
            table.add_row(name, f"{dropped.pairs:,}", f"{dropped.alone:,}")
        print_result(table)
        print_line(f"{counts.kept[0]:,} of {counts.read[0]:,} pairs are kept; train on them with")
        protected = f" --data.protected-tokens '{self.tag}'" if self.tag else ""
        print_line(f"--data.corpus 'text:DIR+{written_place(out)}'{protected}")
        return 0
