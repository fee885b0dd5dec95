"""The command `init`: write a config, a README and a script for a new corpus."""

import os
import re
import shlex
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from t2t_jax.errors import UserError, quote
from t2t_jax.system.atomic_file import check_writable, write_whole
from t2t_jax.system.bucket import check_local

_FILES = ("config.py", "README.md", "run.sh")
_LANGUAGE = re.compile(r"\w[\w-]*")


@dataclass(frozen=True)
class InitCommand:
    """Write a config, a README and a script to train on your own corpus.

    The command asks no questions. It fails if one of these files exists.
    """

    examples: ClassVar = ("translator", "translator --source de --target en")
    directory: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")] = tyro.MISSING
    """Directory to write the files to."""
    source: str = "en"
    """Source language: the suffix of the text files, as in train.en."""
    target: str = "de"
    """Target language: the suffix of the text files, as in train.de."""

    def run(self) -> int:
        """Write the files, print what to do next, and return the exit code."""
        for flag, language in (("source", self.source), ("target", self.target)):
            if not _LANGUAGE.fullmatch(language):
                raise UserError(
                    f"--{flag} {quote(language)} is not a language; give the suffix of your text "
                    "files, such as de for train.de"
                )
        if self.source == self.target:
            raise UserError(f"--source and --target are both {self.source!r}; give two languages")
        check_local(self.directory, "name a directory of this machine")
        check_writable(self.directory)
        if conflicts := [name for name in _FILES if os.path.lexists(self.directory / name)]:
            raise UserError(
                f"{self.directory} already has {', '.join(conflicts)}; move these, or change DIR"
            )
        (self.directory / "corpus").mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            text = (files(__package__) / "templates" / name).read_text("utf-8")
            text = text.replace("@{source}", self.source).replace("@{target}", self.target)
            write_whole(self.directory / name, text.encode())
        (self.directory / "run.sh").chmod(0o755)
        print(
            f"{self.directory} has {', '.join(_FILES)}; put your text into "
            f"{self.directory / 'corpus'} as README.md says, and start "
            f"{shlex.quote(str(self.directory / 'run.sh'))}"
        )
        return 0
